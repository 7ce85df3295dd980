"""A member of a group of confluent-kafka's consumers, as its documentation has it, until SIGTERM.

    python -m tests.soak.confluent_member PROPERTIES TOPIC

PROPERTIES: a file of JSON with librdkafka's. It writes what each `consume` gave as `tests.soak.consumed` reads it, and
leaves commits to the client.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message

from tests.soak.consumed import CONSUMED

_AT_ONCE, _WITHIN = 500, 0.1
"""Records and seconds of a `consume`: as many as a `poll` of the Java client gives, which waits for no more than are
there (confluent-kafka does, so the time is short)."""


def told(messages: Sequence[Message], wall_ms: int) -> str:
    """A line; nothing where there is no record among them."""
    offsets: dict[int, list[int]] = {}
    for message in messages:
        partition, offset = message.partition(), message.offset()
        if message.error() is None and partition is not None and offset is not None:
            offsets.setdefault(partition, []).append(offset)
    if not offsets:
        return ""
    partitions = [{"partition": each, "minOffset": at[0], "maxOffset": at[-1]} for each, at in offsets.items()]
    return json.dumps({"timestamp": wall_ms, "name": CONSUMED, "partitions": partitions})


def refused(messages: Sequence[Message]) -> KafkaError | None:
    """Why the client does nothing any more, if that is among them. The error itself says that it is not fatal."""
    errors = (message.error() for message in messages)
    return next((error for error in errors if error is not None and error.code() == KafkaError._FATAL), None)


def main(properties: Path, topic: str) -> None:
    """One member. Exits with 1 where it is refused for good."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = Consumer(json.loads(properties.read_text()))
    consumer.subscribe([topic])
    while not stop.is_set():
        messages = consumer.consume(_AT_ONCE, _WITHIN)
        if line := told(messages, time.time_ns() // 1_000_000):
            print(line, flush=True)
        if error := refused(messages):
            # A process manager starts another one.
            print(error.str(), file=sys.stderr, flush=True)
            os._exit(1)
    consumer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
