"""What a handler gets: one record of one partition, or in batch mode several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message


class Record(msgspec.Struct, gc=False, frozen=True):
    """One Kafka record; a handler in batch mode gets a `Batch` of them.

    Made by C for every record, so only `value` is read ahead; the rest is read from the client's message when asked
    for. It stays valid for as long as it is kept. For a test of a handler, make one from a `confluent_kafka.Message`:
    `Record.of(Message(topic="orders", partition=0, offset=7, value=b"..."))`.
    """

    value: bytes | None
    """The record's value; None for a tombstone."""
    message: Message
    """The client's own message, for what is not an attribute here."""

    @classmethod
    def of(cls, message: Message) -> Record:
        """The record in `message`."""
        return cls(message.value(), message)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.message.topic() or ""

    @property
    def partition(self) -> int:
        """Number of the partition."""
        number = self.message.partition()
        return -1 if number is None else number

    @property
    def offset(self) -> int:
        """Place in the partition."""
        offset = self.message.offset()
        return -1 if offset is None else offset

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since the Unix epoch, set by the producer or by the broker; None where the record has none."""
        kind, milliseconds = self.message.timestamp()
        return None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds

    @property
    def key(self) -> bytes | None:
        """The record's key, as bytes."""
        return self.message.key()

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Headers in their order, names possibly repeated; empty where there are none."""
        headers = self.message.headers()
        if not headers:
            return []
        pairs = headers.items() if isinstance(headers, dict) else headers
        return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]

    @property
    def leader_epoch(self) -> int | None:
        """Epoch of the leader that wrote the record (KIP-320); None where the broker does not tell."""
        return self.message.leader_epoch()

    @property
    def idempotency_key(self) -> str:
        """`topic-partition-offset`: the same for every try, and whether the service or a Spark job handles the record.
        For a store that keeps what it has seen; another record never has it, unless the topic is created anew."""
        return f"{self.topic}-{self.partition}-{self.offset}"

    def __repr__(self) -> str:
        # The value stays out: records end up in logs, where payloads do not belong.
        return f"<Record {self.topic}-{self.partition}@{self.offset}>"


class Batch(Sequence[Record]):
    """Records of one partition in offset order, at least one; a handler in batch mode gets one of these.

    Records are made when they are looked at. The columns (`values`, `keys`, `offsets`, `timestamps`) make none: they
    are several times faster where a handler wants nothing else.
    """

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self[0].topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self[0].partition

    def values(self) -> list[bytes | None]:
        """All values; None for a tombstone."""
        return list(map(Message.value, self._messages))

    def keys(self) -> list[bytes | None]:
        """All keys."""
        return list(map(Message.key, self._messages))

    def offsets(self) -> list[int]:
        """All offsets, ascending; compaction and transactions leave gaps."""
        return [-1 if offset is None else offset for offset in map(Message.offset, self._messages)]

    def timestamps(self) -> list[int | None]:
        """Milliseconds since the Unix epoch; None where a record carries no time."""
        return [record.timestamp for record in self]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, map(Message.value, self._messages), self._messages)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Record | Batch:
        if isinstance(index, slice):
            return Batch(self._messages[index])
        return Record.of(self._messages[index])

    def __repr__(self) -> str:
        if not self._messages:
            return "<Batch of nothing>"
        return f"<Batch {self.topic}-{self.partition}@{self[0].offset}-{self[-1].offset}, {len(self)} records>"
