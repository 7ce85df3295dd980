"""Who calls a handler: one call at a time (`inline`), threads, tasks of an event loop, or with rows of several
partitions (`together`). `executor` has what they share, `by_handler` all those of a worker.
"""
