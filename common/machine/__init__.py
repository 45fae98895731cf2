"""Process start-up and exit, devices, memory, cores, and cleanup after a process ends."""
