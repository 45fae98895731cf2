"""Running the rows: launches, turns, monitors, and when to stop."""
