"""The part that all methods share: loop, clocks, optimizer, checkpoints, and a run from its start to its result."""
