"""The measuring instrument: everything the training scripts share."""
