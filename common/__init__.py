"""Code shared by the training scripts and the comparison."""
