"""Which topics the client knows: one that is new to it stalls up to a second when it is assigned.

librdkafka looks for unknown topics among its partitions once a second; asked for, their metadata is there within
milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException


class KnownTopics:
    """Caller: the runner, or who comes before it: the client lets one thread in at a time."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._known: set[str] = set()

    def learn(self, topics: Iterable[str], seconds: float) -> None:
        """Ask for those not asked for before; blocks up to `seconds`. A failure is none: fetching starts later."""
        deadline = time.monotonic() + seconds
        for topic in topics:
            left = deadline - time.monotonic()
            if topic in self._known or left <= 0:
                continue
            self._known.add(topic)
            with contextlib.suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=left)
