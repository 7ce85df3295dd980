"""Sends records at a steady rate, each at once; the values are when. `python -m bench.peers.sender …`"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer


def send(bootstrap: str, topic: str, partitions: int, rate: float, records: int) -> None:
    """Blocks until the broker has them all."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    due = time.monotonic()
    for number in range(records):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / rate
        producer.produce(topic, b"%-200d" % time.time_ns(), partition=number % partitions)
        producer.poll(0)
    if producer.flush(30):
        sys.exit(f"{bootstrap} did not take the records of {topic} within half a minute")


if __name__ == "__main__":
    server, name, count, pace, many = sys.argv[1:]
    send(server, name, int(count), float(pace), int(many))
