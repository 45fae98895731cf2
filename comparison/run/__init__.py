"""Runs the rows: child processes, turns, GPU monitoring, and when to stop."""
