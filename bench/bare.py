"""The yardstick of `bench.quick`: confluent-kafka as fast as it goes in one process, without a service around it.

    python -m bench.bare drain PROPERTIES TOPIC PARTITIONS RECORDS
    python -m bench.bare delays PROPERTIES TOPIC PARTITIONS RECORDS

PROPERTIES is JSON, the same that a worker gets. Prints records per second and CPU nanoseconds a record, or the delays
in nanoseconds, one a line.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from confluent_kafka import Consumer, TopicPartition


def tune_collector() -> None:
    """As in a worker: with its defaults the garbage collector costs as much as the records."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def drain(consumer: Consumer, records: int) -> tuple[float, float]:
    """Records per second from the first record on, in batches, touching every value; and CPU ns a record."""
    while (first := consumer.poll(1.0)) is None:
        pass
    total, left, began, used = len(first.value() or b""), records - 1, time.perf_counter(), time.process_time()
    while left > 0:
        message = consumer.poll(1.0)
        if message is None:
            continue
        batch = [message, *consumer.consume(499, 0)]
        for message in batch:
            total += len(message.value() or b"")
        left -= len(batch)
    return records / (time.perf_counter() - began), (time.process_time() - used) / records * 1e9


def delays(consumer: Consumer, records: int) -> list[int]:
    """How old each record was when `poll` returned it."""
    found: list[int] = []
    while len(found) < records:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(time.monotonic_ns() - int(message.value() or b"0"))
    return found


def main(what: str, properties: str, topic: str, partitions: str, records: str) -> None:
    """One measurement in one fresh process."""
    consumer = Consumer(json.loads(properties))
    consumer.list_topics(topic, timeout=10)
    tune_collector()
    consumer.incremental_assign([TopicPartition(topic, number, 0) for number in range(int(partitions))])
    if what == "drain":
        print(*drain(consumer, int(records)))
    else:
        print("\n".join(map(str, delays(consumer, int(records)))))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
