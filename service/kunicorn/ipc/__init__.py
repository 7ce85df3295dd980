"""What runs between the supervisor and its workers: messages over a socket pair, offsets in shared memory."""
