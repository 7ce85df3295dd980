"""Our own fetcher of records: what a worker has in place of librdkafka's consumer where its records become columns.

What it asks whom for is decided by `table`, with `sessions` and `reactions`: pure, with time as an argument. `fetcher`
drives them on an event loop in a thread of its own, and `queue` is between that thread and the worker's loop.
"""
