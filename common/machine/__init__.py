"""What a process finds on its machine, sets up there, and must not leave behind."""
