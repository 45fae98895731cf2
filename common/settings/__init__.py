"""The command line: flags, their values, and recipes."""
