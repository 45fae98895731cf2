"""Networks as named blocks, where to cut them, and tensors of which every rank holds a share."""
