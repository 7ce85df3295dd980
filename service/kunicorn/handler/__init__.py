"""The user's handler in a process: loading it, calling it, and what happens to a record that it fails on. Shared by
workers and Spark's tasks, and independent of both.
"""
