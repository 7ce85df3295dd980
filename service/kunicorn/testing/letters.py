"""What a worker produces, kept in memory: every message is acknowledged when the worker next looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

Delivered = Callable[[Any, Message], object]


@dataclass(frozen=True, slots=True)
class SentLetter:
    """One dead letter as the brokers would have it."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes | None]
    """Where names are repeated, the last one's value; `raw_headers` has all."""
    raw_headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    """Milliseconds since 1970."""

    @property
    def error(self) -> str:
        """What the handler's exception said."""
        return (self.headers.get("kunicorn-error-message") or b"").decode()

    @property
    def error_type(self) -> str:
        """The exception's class, with its module."""
        return (self.headers.get("kunicorn-error-type") or b"").decode()


class MemoryProducer:
    """Takes the place of confluent-kafka's producer of dead letters."""

    def __init__(self, sent: list[SentLetter]) -> None:
        self._sent = sent
        self._reports: deque[tuple[Delivered, Message]] = deque()

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        on_delivery: Delivered | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Take a letter."""
        self._sent.append(SentLetter(topic, value, key, dict(headers), tuple(headers), timestamp))
        if on_delivery is not None:
            self._reports.append((on_delivery, Message(topic=topic, partition=0, offset=len(self._sent) - 1)))

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

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""
