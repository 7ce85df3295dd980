"""Sends records at a steady rate, each at once; the values are when. `python -m bench.peers.sender …`"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer


def main(bootstrap: str, topic: str, partitions: str, rate: str, records: str) -> None:
    """In a process of its own, so that nothing else delays it."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    due = time.monotonic()
    for number in range(int(records)):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / float(rate)
        producer.produce(topic, b"%-200d" % time.time_ns(), partition=number % int(partitions))
        producer.poll(0)
    if producer.flush(30):
        sys.exit(f"{bootstrap} did not take the records of {topic} within half a minute")


if __name__ == "__main__":
    main(*sys.argv[1:])
