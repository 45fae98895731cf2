"""The command line: flags, values and recipes."""
