"""The gradient step: gradients of an agent's loss over batches and devices, and the draw of the batches."""
