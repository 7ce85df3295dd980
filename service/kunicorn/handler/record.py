"""Records as a handler gets them: one record of one partition, or in batch mode several.

Beside them the origin of a record in a retry topic, read from the headers that were added on its way there. These count
only in the very topic that the header `RETRY_TOPIC` names: a handler that copies its record's headers into what it
sends must not make that a retry of something else. Pure.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import msgspec
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.messages import Run, asked, clients_message, columns, keys, values

if TYPE_CHECKING:
    import pyarrow as pa


RETRY_TOPIC = "kunicorn-retry-topic"
TOPIC, PARTITION, OFFSET = "kunicorn-topic", "kunicorn-partition", "kunicorn-offset"
TIMESTAMP = "kunicorn-timestamp"
"""Milliseconds since 1970; absent where the record had none."""
ATTEMPTS = "kunicorn-attempts"


@dataclass(frozen=True, slots=True)
class Origin:
    """Place where a producer put the record. For a record outside of retry topics that is its own place."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    """Milliseconds since 1970."""
    attempts: int = 0
    """Tries that it has had before it came to the topic it is in now."""


def origin_in(headers: Iterable[tuple[str, bytes | None]], topic: str) -> Origin | None:
    """Origin that the headers of a record in `topic` tell; None if it was not put there for a retry, or if they name a
    place or a time that no record can have: nothing could be sent with them."""
    told = {name: value.decode(errors="replace") for name, value in headers if value is not None}
    if told.get(RETRY_TOPIC) != topic:
        return None
    try:
        timestamp = _number(told[TIMESTAMP], _INT64) if TIMESTAMP in told else None
        partition, offset = _number(told[PARTITION], _INT32), _number(told[OFFSET], _INT64)
        return Origin(told[TOPIC], partition, offset, timestamp, _number(told.get(ATTEMPTS, "0"), _INT32))
    except (KeyError, ValueError):
        return None


_INT32, _INT64 = 2**31 - 1, 2**63 - 1


def _number(text: str, most: int) -> int:
    if not 0 <= (number := int(text)) <= most:
        raise ValueError(text)
    return number


class Record(msgspec.Struct, gc=False, frozen=True):
    """One Kafka record; a handler in batch mode gets a `Batch` of them.

    Made by C for every record, so only `value` is read ahead; the rest is read from the client's message when asked
    for. It stays valid for as long as it is kept. For a test of a handler, make one from a `confluent_kafka.Message`:
    `Record.of(Message(topic="orders", partition=0, offset=7, value=b"..."))`.
    """

    value: bytes | None
    """The record's value; None for a tombstone."""
    message: Message
    """The client's own message, for what is not an attribute here. Of our own fetcher (`kafka.fetcher = "own"`, and
    jobs on Spark) it is a row, which answers as `confluent_kafka.Message` does and keeps in memory what was fetched
    with it. A record that was pickled or deep-copied has the client's."""

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
        return milliseconds_of(self.message)

    @property
    def key(self) -> bytes | None:
        """The record's key, as bytes."""
        return self.message.key()

    @property
    def data(self) -> Any:
        """Decoded value, as `handler.value` says; without that setting the value itself."""
        return self.value

    @property
    def key_data(self) -> Any:
        """Decoded key, as `handler.key` says; without that setting the key itself."""
        return self.key

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Headers in their order, names possibly repeated; empty where there are none."""
        return _headers(self.message)

    @property
    def leader_epoch(self) -> int | None:
        """Epoch of the leader that wrote the record (KIP-320); None where the broker does not tell."""
        return self.message.leader_epoch()

    @property
    def origin(self) -> Origin:
        """Place where a producer has put the record, and how often it was tried before. Its own place, unless it comes
        out of a retry topic.
        """
        own = Origin(self.topic, self.partition, self.offset, self.timestamp)
        return origin_in(self.headers, self.topic) or own

    @property
    def idempotency_key(self) -> str:
        """`topic-partition-offset` of its origin: the same for every try, whether the service or a Spark job handles
        the record, and when it comes back out of a retry topic. For a store that keeps what it has seen; another record
        never has it, unless the topic is created anew."""
        origin = self.origin
        return f"{origin.topic}-{origin.partition}-{origin.offset}"

    def __reduce__(self) -> tuple[Any, ...]:
        # A row of our own fetcher is part of what it was fetched with, which no other process has.
        value, message, *decoded = msgspec.structs.astuple(self)
        return type(self), (value, clients_message(message), *decoded)

    def __repr__(self) -> str:
        # The value stays out: records end up in logs, where payloads do not belong.
        return f"<Record {self.topic}-{self.partition}@{self.offset}>"


class DecodedRecord(Record, frozen=True, gc=True):
    """Record whose value and key are decoded."""

    data: Any
    """See `Record`."""
    key_data: Any
    """See `Record`."""


class Batch(Sequence[Record]):
    """Records of one partition in offset order, at least one; a handler in batch mode gets one of these.

    Records are made when they are looked at. The columns (`values`, `keys`, `offsets`, `timestamps`) make none: they
    are several times faster where a handler wants nothing else.
    """

    __slots__ = ("_messages",)

    def __init__(self, messages: Run) -> None:
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
        return list(values(self._messages))

    def keys(self) -> list[bytes | None]:
        """All keys."""
        return list(keys(self._messages))

    def offsets(self) -> list[int]:
        """All offsets, ascending; compaction and transactions leave gaps."""
        if (gapless := gapless_offsets(self._messages)) is not None:
            return list(gapless)
        return [-1 if offset is None else offset for offset in asked(self._messages, "offset")]

    def timestamps(self) -> list[int | None]:
        """Milliseconds since the Unix epoch; None where a record carries no time."""
        if (rows := columns(self._messages)) is not None:
            return rows.timestamps()
        return [milliseconds_of(message) for message in self._messages]

    def headers(self) -> list[list[tuple[str, bytes | None]]]:
        """Each record's headers, as `Record.headers` has them."""
        return list(map(_headers, self._messages))

    def data(self) -> list[Any]:
        """Decoded values, as `handler.value` says; without that setting the values themselves."""
        return self.values()

    def key_data(self) -> list[Any]:
        """Decoded keys, as `handler.key` says; without that setting the keys themselves."""
        return self.keys()

    def to_arrow(self) -> pa.RecordBatch:
        """Columns topic, partition, offset, timestamp, timestampType, key, value (as bytes) and headers, with the types
        of Spark's own Kafka source. Raises `ImportError` without pyarrow."""
        try:
            from kunicorn.handler.columns import records_batch
        except ModuleNotFoundError as error:
            from kunicorn.handler.extras import install_extra

            raise ImportError(f"batch.to_arrow() needs pyarrow ({error}): {install_extra('arrow')}") from error
        return records_batch(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Record]:
        return map(Record, values(self._messages), self._messages)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Record | Batch:
        if isinstance(index, slice):
            return Batch(_cut(self._messages, index))
        return Record.of(self._messages[index])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(map(clients_message, self._messages)),)

    def __repr__(self) -> str:
        if not self._messages:
            return "<Batch of nothing>"
        return f"<Batch {self.topic}-{self.partition}@{self[0].offset}-{self[-1].offset}, {len(self)} records>"


class DecodedBatch(Batch):
    """Batch whose values and keys are decoded."""

    __slots__ = ("_data", "_key_data")

    def __init__(self, messages: Run, data: list[Any], key_data: list[Any]) -> None:
        super().__init__(messages)
        self._data, self._key_data = data, key_data

    def data(self) -> list[Any]:
        return self._data

    def key_data(self) -> list[Any]:
        return self._key_data

    def __iter__(self) -> Iterator[Record]:
        messages = self._messages
        return map(DecodedRecord, values(messages), messages, self._data, self._key_data)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Batch: ...
    def __getitem__(self, index: int | slice) -> Record | Batch:
        if isinstance(index, slice):
            return DecodedBatch(_cut(self._messages, index), self._data[index], self._key_data[index])
        message = self._messages[index]
        return DecodedRecord(message.value(), message, self._data[index], self._key_data[index])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(map(clients_message, self._messages)), self._data, self._key_data)


def _cut(messages: Run, part: slice) -> Run:
    """These of the messages. Rows are cut into consecutive ones alone."""
    if columns(messages) is None or part.step in (None, 1):
        return messages[part]
    return [messages[at] for at in range(*part.indices(len(messages)))]


def offset_of(message: Message) -> int:
    """Offset of a fetched message, which has one; -1 of an error that names none."""
    offset = message.offset()
    return -1 if offset is None else offset


def gapless_offsets(messages: Run) -> range | None:
    """Offsets of the messages as a range; None where there are gaps.

    Only the first and the last message are asked: there are almost never gaps, and asking each costs five times as
    much.
    """
    if not messages:
        return range(0)
    first, last = messages[0].offset(), messages[-1].offset()
    if first is None or last is None or last - first != len(messages) - 1:
        return None
    return range(first, last + 1)


def milliseconds_of(message: Message) -> int | None:
    """Timestamp of the message. A producer that sets none leaves −1 in a log of CreateTime
    (`RecordBatch.NO_TIMESTAMP`), which counts as none.
    """
    kind, milliseconds = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE or milliseconds < 0 else milliseconds


_NO_TEXT = "\N{REPLACEMENT CHARACTER}"
"""In place of a header's name that is not UTF-8."""


def any_headers(messages: Iterable[Message]) -> bool:
    """Whether one of them has headers."""
    for message in messages:
        # Not by the record, which makes a list for each.
        try:
            if message.headers():
                return True
        except SystemError:
            _repair(message)
            return True
    return False


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    try:
        headers = message.headers()
    except SystemError:
        headers = _repair(message)
    if not headers:
        return []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def _repair(message: Message) -> list[tuple[str, str | bytes | None]]:
    """Replace the headers of a message that has answered with an error, before anybody looks again."""
    headers = _repaired(message.headers())
    message.set_headers(headers)
    return headers


def _repaired(headers: Any) -> list[tuple[str, str | bytes | None]]:
    """Headers from the client's second answer, after an error for a name that is not UTF-8.

    It has made the list all the same, with no object where that name belongs. Looking at that place ends the process;
    the garbage collector does not look.
    """
    held = [(pair, gc.get_referents(pair)) for pair in headers]
    return [pair if len(objects) == 2 else (_NO_TEXT, objects[0]) for pair, objects in held]
