"""confluent-kafka without anything around it: record by record as its documentation has it, and as fast as it goes.

The tuned loop is the yardstick: librdkafka's queue is emptied in batches, refilled without its pause of a second, and
the garbage collector leaves what is there at the start alone.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any, cast

import tally
from confluent_kafka import Consumer, Message

TUNING = {"fetch.queue.backoff.ms": 10, "queued.max.messages.kbytes": 16_384}
BATCH = 500

# Declared "or None", which is true of errors only.
PARTITION, OFFSET = cast(tuple[Callable[[Message], int], Callable[[Message], int]], (Message.partition, Message.offset))


def polled(consumer: Consumer) -> None:
    """Message by message."""
    handle = tally.handle
    while True:
        message: Any = consumer.poll(1.0)
        if message is not None and message.error() is None:
            handle(message.partition(), message.offset(), message.value())


def tuned(consumer: Consumer) -> None:
    """In batches, record by record; what a handler that does nothing would do stands in the loop."""
    cells, one, handle = tally.cells, tally.ONE, tally.handle
    while True:
        batch = _fetched(consumer)
        if tally.KIND == "nothing":
            for message in batch:
                len(message.value())
                cells[message.partition()] += one + message.offset()
        else:
            for message in batch:
                handle(message.partition(), message.offset(), message.value())


def in_runs(consumer: Consumer) -> None:
    """In batches, all records of a partition at once."""
    while True:
        for partition, messages in groupby(_fetched(consumer), PARTITION):
            run = list(messages)
            tally.handle_run(partition, list(map(OFFSET, run)), list(map(Message.value, run)))


def _fetched(consumer: Consumer) -> list[Any]:
    """What there is: `consume(n, t)` alone would wait the whole `t` unless `n` records come."""
    message = consumer.poll(1.0)
    if message is None:
        return []
    batch = [message, *consumer.consume(BATCH - 1, 0)]
    return [message for message in batch if message.error() is None] if any(map(Message.error, batch)) else batch


FORMS = {"poll": (polled, {}), "tuned": (tuned, TUNING), "runs": (in_runs, TUNING)}


def main() -> None:
    """Until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    loop, tuning = FORMS[tally.FORM]
    consumer = Consumer(
        {
            "bootstrap.servers": tally.BOOTSTRAP,
            "group.id": tally.GROUP,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": tally.HEARTBEAT_MS,
            "session.timeout.ms": tally.SESSION_MS,
            **tuning,
        }
    )
    consumer.subscribe([tally.TOPIC])
    if tuning:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
    try:
        loop(consumer)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
