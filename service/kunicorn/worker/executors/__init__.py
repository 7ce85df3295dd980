"""Who calls a handler: one call at a time (`inline`), threads, tasks of an event loop, or with rows of several
partitions (`together`). `executor` has what they share; the loop has all those of a worker.
"""
