"""Where a worker's records come from: librdkafka's consumer or our own fetcher behind one `Client`, what it is
assigned, and what was fetched, in runs.
"""
