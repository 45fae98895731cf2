"""Parallel training methods written by hand: one per file, at most 60 lines, to be read from top to bottom and run."""
