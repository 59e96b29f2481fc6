"""The gradient step: an agent's loss over batches and devices, and the batches that are drawn for it."""
