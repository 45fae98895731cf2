"""What is equal in every method: the loop, its clocks, the optimizer, checkpoints, one run from start to result."""
