"""The data sets: from disk, network or thin air, checked; augmented and cut into batches."""
