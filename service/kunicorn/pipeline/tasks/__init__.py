"""What runs in Spark's executors: processes of a job, which take ranges, fetch and handle their records, and tell what
became of them.
"""
