"""Statistics and conclusions from the measurements."""
