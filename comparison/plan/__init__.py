"""Which rows a comparison has."""
