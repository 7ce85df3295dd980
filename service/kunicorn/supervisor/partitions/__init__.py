"""Our partitions: what is known of each, which worker has it, and what becomes of it."""
