"""The supervisor process: group membership, the worker pool and every commit. It never fetches, handles or blocks."""
