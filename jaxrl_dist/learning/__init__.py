"""The gradient step: an agent's loss over batches and devices, and what is drawn for it."""
