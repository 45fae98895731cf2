"""Data sets: loading, checking, augmentation and batches."""
