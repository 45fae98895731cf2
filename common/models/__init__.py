"""Networks as named blocks, where to cut them, and tensors that are sharded over ranks."""
