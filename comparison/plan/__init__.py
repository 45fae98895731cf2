"""The comparison's flags, its rows and their commands."""
