"""Keyed records at a steady rate, and when the brokers had confirmed each of them."""

from __future__ import annotations

import threading
import time
import zlib
from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import overload

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kunicorn.ipc import clock
from tests.system.handlers.lethal import POISON

_TOGETHER_NS = 5_000_000
"""Confirmations that come within so long of one another are one entry: a poll gives a thousand at a time."""
_WAITING = 60.0
"""Seconds of load that may wait for brokers that take nothing."""
_IN_QUEUE = 2_000_000
"""Records, more than any load here has in that time."""


class Times(Sequence[int]):
    """When each offset of a partition was confirmed, to a few milliseconds, in nanoseconds of `kunicorn.ipc.clock`.

    One thread confirms, others read. It grows with time, not with records.
    """

    def __init__(self) -> None:
        self._firsts = array("q")
        self._at = array("q")
        self._end = 0

    def confirm(self, offset: int, at: int) -> None:
        """Everything up to this offset is in the log; an offset that is there already changes nothing."""
        if offset < self._end:
            return
        # The time first: a reader finds each entry of `_firsts` to have one.
        if not self._at or at - self._at[-1] > _TOGETHER_NS:
            self._at.append(at)
            self._firsts.append(self._end)
        self._end = offset + 1

    def __len__(self) -> int:
        return self._end

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(self._end))]
        number = at + self._end if at < 0 else at
        if not 0 <= number < self._end:
            raise IndexError(f"offset {number} is not in the log, which ends at {self._end}")
        return self._at[bisect_right(self._firsts, number) - 1]


def customers(count: int, load: int = 0) -> list[bytes]:
    """So many keys; those of one load are not those of another."""
    return [b"customer-%d" % number + (b" of load %d" % load if load else b"") for number in range(count)]


class Load:
    """A thread that produces `rate` records a second until `stop`; idempotent, so the log holds each once.

    While brokers take nothing, what is due waits in the producer's queue, at most what is due in `_WAITING` seconds.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        rate: int,
        keys: Sequence[bytes] = tuple(customers(1000)),
        linger_ms: int = 5,
        more: Mapping[str, str | int] | None = None,
    ) -> None:
        """`more`: further properties of the producer."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "partitioner": "murmur2_random",
                "linger.ms": linger_ms,
                "enable.idempotence": True,
                # With several in flight, threads of an idempotent producer poll without waiting, on clusters of several
                # brokers (librdkafka#3692): half a core for a thousand records a second.
                "max.in.flight": 1,
                "log_level": 0,
                "queue.buffering.max.messages": _IN_QUEUE,
                "queue.buffering.max.kbytes": _IN_QUEUE,
                **(more or {}),
            }
        )
        self._topic = topic
        self._rate = rate
        self._keys = keys
        self._ended = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.appended: defaultdict[int, Times] = defaultdict(Times)
        """By partition and offset: when it was confirmed."""
        self.marks = frozenset(map(zlib.crc32, keys))
        """Of its keys, as the audit has them."""
        self.first: dict[int, int] = {}
        """By partition: the lowest offset that was confirmed."""
        self.poison: set[tuple[int, int]] = set()
        """Partition and offset of every record that kills whoever handles it."""
        self._poisoned_keys: deque[bytes] = deque()
        self.failure: KafkaError | None = None

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def send_poison(self, customer: int) -> None:
        """A record of this customer (one of the keys, by its number) that kills whoever handles it, among the others
        and soon."""
        self._poisoned_keys.append(self._keys[customer])

    def stop(self) -> None:
        """Produce no more; raises `RuntimeError` where not everything was confirmed."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        left = self._producer.flush(60)
        if left or self.failure:
            raise RuntimeError(f"{left} records unconfirmed, first failure {self.failure}: the brokers are not whole")

    def abandon(self) -> None:
        """Produce no more, and forget what the brokers have not confirmed: its topic is gone."""
        self._ended.set()
        self._thread.join(60)
        self._producer.purge()
        left = self._producer.flush(60)
        if left:
            raise RuntimeError(f"{left} records are still under way to a topic that is gone")

    def hold_back_beyond(self, seconds: float, unhandled: int) -> None:
        """Produce nothing while so many records are unhandled that they are more than the load of `seconds`: a machine
        that is too slow for the rate is never caught up with. It goes on when half of them are left."""
        most = seconds * self._rate
        if unhandled > most:
            self._held.set()
        elif unhandled < most / 2:
            self._held.clear()

    @property
    def is_held(self) -> bool:
        """Whether nothing is produced for now."""
        return self._held.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether no record will come any more."""
        return self._ended.is_set()

    def has_confirmed_since(self, at: int) -> bool:
        """Whether each partition that has records has a new one; or none will come, as it was stopped."""
        return self.has_ended or all(times[-1] > at for times in list(self.appended.values()))

    def _run(self) -> None:
        then, credit, sent = time.monotonic(), 0.0, 0
        keys = self._keys
        while not self._ended.wait(0.01):
            now = time.monotonic()
            waits = self.is_held or len(self._producer) > _WAITING * self._rate
            credit += 0 if waits else (now - then) * self._rate
            then, due = now, int(credit)
            for number in range(sent, due):
                self._produce(b"x" * 200, keys[number % len(keys)], self._confirmed)
            sent = max(sent, due)
            while self._poisoned_keys:
                key = self._poisoned_keys.popleft()
                self._produce(POISON, key, self._poison_confirmed)
            self._producer.poll(0)

    def _produce(self, value: bytes, key: bytes, confirmed: Callable[[KafkaError | None, Message], None]) -> None:
        # Refused as soon as its metadata know the topic no more: between a deletion and `abandon`.
        with suppress(KafkaException):
            self._producer.produce(self._topic, value, key, on_delivery=confirmed)

    def _confirmed(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.failure = self.failure or error
            return
        # Confirmed in the order of their offsets, as idempotent producers keep it (KIP-98).
        self.first.setdefault(partition, offset)
        self.appended[partition].confirm(offset, clock.now_ns())

    def _poison_confirmed(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.poison.add((partition, offset))
        self._confirmed(error, message)
