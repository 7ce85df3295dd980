"""Keyed records at a steady rate, and when the brokers had confirmed each of them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping

from confluent_kafka import KafkaError, Message, Producer

from kunicorn.ipc import clock
from tests.system.handlers.lethal import POISON


class Load:
    """A thread that produces `rate` records a second until `stop`; idempotent, so the log holds each once."""

    def __init__(
        self, bootstrap: str, topic: str, rate: int, keys: int = 1000, more: Mapping[str, str | int] | None = None
    ) -> None:
        """`more`: further properties of the producer."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "enable.idempotence": True,
                "log_level": 0,
                **(more or {}),
            }
        )
        self._topic = topic
        self._rate = rate
        self._keys = keys
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.appended: defaultdict[int, list[int]] = defaultdict(list)
        """By partition and offset: when it was confirmed, in nanoseconds of `kunicorn.ipc.clock`."""
        self.poison: set[tuple[int, int]] = set()
        """Partition and offset of every record that kills whoever handles it."""
        self._poisoned_keys: deque[bytes] = deque()
        self.failure: KafkaError | None = None

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def send_poison(self, customer: int) -> None:
        """A record of this customer (below `keys`) that kills whoever handles it, among the others and soon."""
        self._poisoned_keys.append(_key(customer))

    def stop(self) -> None:
        """Produce no more; raises `RuntimeError` where not everything was confirmed."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(10)
        left = self._producer.flush(60)
        if left or self.failure:
            raise RuntimeError(f"{left} records unconfirmed, first failure {self.failure}: the brokers are not whole")

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._ended.wait(0.01):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(sent, due):
                self._producer.produce(self._topic, b"x" * 200, _key(number % self._keys), on_delivery=self._confirmed)
            sent = max(sent, due)
            while self._poisoned_keys:
                key = self._poisoned_keys.popleft()
                self._producer.produce(self._topic, POISON, key, on_delivery=self._poison_confirmed)
            self._producer.poll(0)

    def _confirmed(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.failure = self.failure or error
            return
        times = self.appended[partition]
        # Confirmed in the order of their offsets, as idempotent producers keep it (KIP-98).
        times.extend([clock.now_ns()] * (offset + 1 - len(times)))

    def _poison_confirmed(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.poison.add((partition, offset))
        self._confirmed(error, message)


def _key(customer: int) -> bytes:
    return b"customer-%d" % customer
