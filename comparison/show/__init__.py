"""Words, tables, figures, and the files that they are in."""
