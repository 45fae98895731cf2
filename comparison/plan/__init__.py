"""The rows of a comparison and their commands."""
