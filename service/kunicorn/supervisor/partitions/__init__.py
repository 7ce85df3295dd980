"""Partitions that are ours: their state, the worker that has each, and their lag."""
