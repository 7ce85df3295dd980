"""What a worker produces, kept in memory: every message is acknowledged when the worker next looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from kunicorn.handling.deadletters import ERROR_MESSAGE, ERROR_TYPE
from kunicorn.origins import OFFSET, RETRY_TOPIC
from kunicorn.testing.records import GivenRecord

Delivered = Callable[[Any, Message], object]


@dataclass(frozen=True, slots=True)
class SentRecord:
    """One record as the brokers would have it."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes | None]
    """Where names are repeated, the last one's value; `raw_headers` has all."""
    raw_headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    """Milliseconds since 1970; None: that of its sending."""
    partition: int | None
    """None: by its key."""

    @property
    def is_letter(self) -> bool:
        """It is a dead letter of a worker's."""
        return ERROR_TYPE in self.headers and OFFSET in self.headers and not self.is_retry

    @property
    def is_retry(self) -> bool:
        """A worker has put it into a retry topic."""
        return self.headers.get(RETRY_TOPIC) == self.topic.encode()

    @property
    def given(self) -> GivenRecord:
        """As a record of its topic."""
        return GivenRecord(
            self.value, self.key, self.raw_headers, self.topic, self.partition or 0, None, self.timestamp
        )

    @property
    def error(self) -> str:
        """Of a dead letter: what the handler's exception said."""
        return (self.headers.get(ERROR_MESSAGE) or b"").decode()

    @property
    def error_type(self) -> str:
        """Of a dead letter: the exception's class, with its module."""
        return (self.headers.get(ERROR_TYPE) or b"").decode()


class MemoryProducer:
    """Takes the place of confluent-kafka's producers; of a transaction, what was committed counts."""

    def __init__(self, sent: list[SentRecord]) -> None:
        self._sent = sent
        self._reports: deque[tuple[Delivered, Message]] = deque()
        self._open: list[SentRecord] | None = None

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Delivered | None = None,
        on_delivery: Delivered | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Take a record. `callback` is `on_delivery`'s other name; it comes first, as in the client."""
        pairs = tuple(headers or ())
        where = None if partition < 0 else partition
        record = SentRecord(topic, value, key, dict(pairs), pairs, timestamp or None, where)
        (self._sent if self._open is None else self._open).append(record)
        if (told := callback or on_delivery) is not None:
            self._reports.append((told, Message(topic=topic, partition=where or 0, offset=len(self._sent))))

    def poll(self, timeout: float = 0.0) -> int:
        """Report what was taken as delivered; how much that was."""
        count = len(self._reports)
        while self._reports:
            told, message = self._reports.popleft()
            told(None, message)
        return count

    def flush(self, timeout: float = -1) -> int:
        """Report everything; what is left."""
        self.poll()
        return 0

    def init_transactions(self, timeout: float = -1) -> None:
        """Nobody has left one open."""

    def begin_transaction(self) -> None:
        """What is produced from here on counts when it is committed."""
        self._open = []

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any, timeout: float = -1) -> None:
        """They count with the transaction; the ledger says which they are."""

    def commit_transaction(self, timeout: float = -1) -> None:
        """It counts."""
        self.poll()
        self._sent += self._open or ()
        self._open = None

    def abort_transaction(self, timeout: float = -1) -> None:
        """It never was."""
        self._reports.clear()
        self._open = None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""
