"""Group membership as pure decisions: no I/O, and time is always an argument."""
