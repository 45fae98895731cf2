"""The measuring instrument: everything the training scripts share, and what shows results, which needs no torch."""
