"""Offsets in the supervisor: where partitions start, and every commit."""
