"""Produces keyed records at a steady pace and remembers where each one went."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer

from kunicorn.topics import TopicPartition

KEYS = 500


class Feed:
    """A thread that produces `rate` records a second to `topic` until `stop`."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        # Java's partitioner, so that keys go where every other producer of the topic would send them; idempotent, so
        # that what is counted once here is in the log once.
        properties = {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True}
        self._producer = Producer({**properties, "linger.ms": 5, "log_level": 0})
        self._topic = topic
        self._rate = rate
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._offsets: defaultdict[TopicPartition, set[int]] = defaultdict(set)
        self.acknowledged = 0
        """Records the broker has confirmed."""
        self.failure: str | None = None
        """The first delivery that failed for good."""

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Produce no more and wait for the last confirmations; harmless before `start` and when repeated."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._producer.flush(timeout) > 0 and self.failure is None:
            self.failure = f"the broker confirmed only {self.acknowledged} records within {timeout:g} s"

    @property
    def produced(self) -> Mapping[TopicPartition, set[int]]:
        """Offsets by partition; complete after `stop`."""
        return self._offsets

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._ended.wait(0.01):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(sent, due):
                key = f"customer-{random.randrange(KEYS)}"
                self._producer.produce(self._topic, f"order {number}", key, on_delivery=self._delivered)
            sent = max(sent, due)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is not None or topic is None or partition is None or offset is None:
            self.failure = self.failure or f"a record could not be produced to {self._topic}: {error}"
            return
        self._offsets[TopicPartition(topic, partition)].add(offset)
        self.acknowledged += 1
