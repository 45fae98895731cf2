"""Everything the training scripts share, and the parts of it that the comparison uses without torch."""
