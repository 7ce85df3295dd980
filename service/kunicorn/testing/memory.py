"""Kafka in memory: records, and the consumer and producer of a worker under test.

The consumer has of confluent-kafka's what a worker uses, and behaves as that does where a worker can tell: nothing is
fetched of what is not assigned, an assignment fetches from its offset on, a position is unknown until a record was
handed out under this assignment, an assigned partition is not assigned again. `tests/contract` has both meet the same
expectations. Of the producer every message is acknowledged when the worker next polls.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from kunicorn.handler.dead_letters import ERROR_MESSAGE, ERROR_TYPE
from kunicorn.handler.decode.decoders import Part
from kunicorn.handler.encode.readers import OutputReaders
from kunicorn.handler.record import OFFSET, RETRY_TOPIC, Record
from kunicorn.positions import TopicPartition
from kunicorn.settings.checks import has_legal_name, is_kafka_name

Text = str | bytes | None
Headers = Mapping[str, Text] | Sequence[tuple[str, Text]]


class _Left:
    """Default of arguments where None means something."""


_LEFT = _Left()


@dataclass(frozen=True, slots=True)
class GivenRecord:
    """One record of the log in memory. Made by `record`; `topic` and `offset` are None until it is run."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    topic: str | None
    partition: int
    offset: int | None
    timestamp: int | None
    """Milliseconds since 1970."""
    fetched: Message | None = field(default=None, repr=False, compare=False)
    """The client's own, of a record that comes from a broker."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def tp(self) -> TopicPartition:
        """Its partition, once it has a topic."""
        assert self.topic is not None
        return TopicPartition(self.topic, self.partition)

    @property
    def at(self) -> int:
        """Its offset, once it has one."""
        assert self.offset is not None
        return self.offset


_LAST_PARTITION = 2**31 - 1
_LAST_OFFSET = 2**63 - 2
"""Behind it there must be an offset to go on from."""


def given_of(record: Record) -> GivenRecord:
    """A record that was fetched, to be handled where it was and as it came."""
    return GivenRecord(
        record.value,
        record.key,
        tuple(record.headers),
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.message,
    )


def record(
    value: Text = None,
    *,
    key: Text = None,
    json: Any = _LEFT,
    headers: Headers = (),
    topic: str | None = None,
    partition: int = 0,
    offset: int | None = None,
    timestamp: int | None = None,
) -> GivenRecord:
    """A record to be handled; text is encoded as UTF-8, `json` is a value to be written as JSON.

    Without `topic` it is of the first topic that the handler consumes; without `offset` it follows the record given
    before it in its partition. `timestamp` is milliseconds since 1970. Raises `ValueError` and `TypeError` for
    what no log holds.
    """
    if json is not _LEFT:
        if value is not None:
            raise ValueError("a record has a value or a json value, not both")
        value = orjson.dumps(json)
    refuse_fractions(partition=partition, offset=offset, timestamp=timestamp)
    if partition < 0 or (offset is not None and offset < 0):
        raise ValueError(f"partition {partition}, offset {offset}: both are counted from 0")
    if partition > _LAST_PARTITION or (offset is not None and offset > _LAST_OFFSET):
        raise ValueError(f"partition {partition}, offset {offset}: {_LAST_PARTITION} and {_LAST_OFFSET} are the last")
    if timestamp is not None and not -(2**63) <= timestamp < 2**63:
        raise ValueError(f"timestamp {timestamp}: milliseconds since 1970, in 64 bits")
    if topic is not None:
        _refuse_illegal(topic)
    return GivenRecord(_bytes(value), _bytes(key), _pairs(headers), topic, partition, offset, timestamp)


def _pairs(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        every = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise TypeError(f"headers {headers!r}: they are a dict, or a list of pairs of name and value") from None
    for name, _ in every:
        if not isinstance(name, str):
            raise TypeError(f"header {name!r}: its name is a text, as handlers get it")
    return tuple((name, _bytes(value)) for name, value in every)


def refuse_fractions(**numbers: object) -> None:
    """Raise `TypeError` for a number that is none, such as `time.time() * 1000`: what gets it would fail in riddles."""
    for name, number in numbers.items():
        if number is not None and type(number) is not int:
            raise TypeError(f"{name} {number!r}: it is a whole number")


def _refuse_illegal(topic: str) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"topic {topic!r}: it is a text")
    try:
        is_kafka_name(topic)
    except ValueError as error:
        raise ValueError(f"topic {topic!r}: {error}") from None


def placed(records: Iterable[GivenRecord], topic: str | None) -> list[GivenRecord]:
    """The records with a topic and an offset each. Raises `ValueError` where an offset does not follow, or no topic can
    have that name."""
    following: dict[tuple[str, int], int] = {}
    found: list[GivenRecord] = []
    for each in records:
        if not isinstance(each, GivenRecord):
            raise TypeError(f"{each!r} is no record: make one with kunicorn.testing.record(value=…)")
        name = each.topic or topic
        if name is None:
            raise ValueError("the handler consumes patterns of topics only: say record(…, topic=…)")
        _refuse_illegal(name)
        least = following.get((name, each.partition), 0)
        offset = least if each.offset is None else each.offset
        if offset < least:
            raise ValueError(f"{name}-{each.partition}: offset {offset} comes behind {least - 1}: offsets only grow")
        following[name, each.partition] = offset + 1
        found.append(replace(each, topic=name, offset=offset))
    return found


def message_of(each: GivenRecord) -> Message:
    """The record as the client hands it out."""
    if each.fetched is not None:
        return each.fetched
    kind = TIMESTAMP_NOT_AVAILABLE if each.timestamp is None else TIMESTAMP_CREATE_TIME
    return Message(
        topic=each.topic,
        partition=each.partition,
        offset=each.offset,
        key=each.key,
        value=each.value,
        headers=list(each.headers) or None,
        timestamp=(kind, each.timestamp or 0),
        leader_epoch=0,
    )


def _bytes(text: Text) -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is neither text nor bytes; say json=… to have it written as JSON")
    return text.encode()


class MemoryLog:
    """Records by partition, in the order in which they were given."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._held: dict[tuple[str, int], list[tuple[int, Message]]] = defaultdict(list)
        for order, message in enumerate(messages):
            place = message.topic() or "", message.partition() or 0
            self.offsets[place].append(message.offset() or 0)
            self._held[place].append((order, message))

    def end(self, place: tuple[str, int]) -> int:
        """Offset behind the last record."""
        offsets = self.offsets[place]
        return offsets[-1] + 1 if offsets else 0

    def read(self, positions: dict[tuple[str, int], int], most: int) -> list[Message]:
        """Up to `most` records from `positions` on; moves these on."""
        ahead = [self._held[place][bisect_left(self.offsets[place], at) :] for place, at in positions.items()]
        found = [message for _, message in heapq.merge(*ahead, key=lambda each: each[0])][:most]
        for message in found:
            positions[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
        return found


class MemoryConsumer:
    """Consumer of a `MemoryLog`. Caller: one thread at a time, as with the real one. Never blocks by itself; `idle`
    may.
    """

    def __init__(self, log: MemoryLog, idle: Callable[[float], None]) -> None:
        """`idle` is called with the seconds that a real client would have waited for a record."""
        self._log = log
        self._idle = idle
        self._fetching: dict[tuple[str, int], int] = {}
        self._given: dict[tuple[str, int], int] = {}
        self._paused: set[tuple[str, int]] = set()

    def poll(self, timeout: float = -1) -> Message | None:
        """The next record; None if there is none."""
        found = self.consume(1, 0)
        if not found:
            self._idle(timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to `num_messages` records."""
        positions = {place: at for place, at in self._fetching.items() if place not in self._paused}
        found = self._log.read(positions, num_messages)
        for place in {(message.topic() or "", message.partition() or 0) for message in found}:
            self._given[place] = self._fetching[place] = positions[place]
        return found

    def incremental_assign(self, partitions: Sequence[ClientTopicPartition]) -> None:
        """Fetch these partitions, too. Raises `KafkaException` if one of them is assigned."""
        for each in partitions:
            if (each.topic, each.partition) in self._fetching:
                raise KafkaException(KafkaError(KafkaError._CONFLICT))
        for each in partitions:
            self._fetching[each.topic, each.partition] = each.offset

    def incremental_unassign(self, partitions: Sequence[ClientTopicPartition]) -> None:
        """Stop fetching these partitions. Raises `KafkaException` if one of them is not assigned."""
        for each in partitions:
            if self._fetching.pop((each.topic, each.partition), None) is None:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
            self._given.pop((each.topic, each.partition), None)

    def seek(self, partition: ClientTopicPartition) -> None:
        """Fetch it from there on. Raises `KafkaException` if it is not assigned."""
        place = partition.topic, partition.partition
        if place not in self._fetching:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._fetching[place] = partition.offset
        self._given.pop(place, None)

    def pause(self, partitions: Sequence[ClientTopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        self._paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: Sequence[ClientTopicPartition]) -> None:
        """Go on with these behind the last record handed out."""
        self._paused -= {(each.topic, each.partition) for each in partitions}

    def position(self, partitions: Sequence[ClientTopicPartition]) -> list[ClientTopicPartition]:
        """Offset behind the last record handed out of each."""
        return [
            ClientTopicPartition(p.topic, p.partition, self._given.get((p.topic, p.partition), OFFSET_INVALID))
            for p in partitions
        ]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Every topic is known."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""

    def close(self) -> None:
        """Nothing is to be closed."""


Delivered = Callable[[Any, Message], object]


@dataclass(frozen=True, slots=True)
class SentRecord:
    """Record as the brokers would have it."""

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
    to_letters: bool = field(default=True, repr=False, compare=False)
    """Whether its topic is one of dead letters."""
    readers: OutputReaders = field(default_factory=lambda: OutputReaders(None), repr=False, compare=False)
    """Decoders of what `[producing]` has encoded."""

    @property
    def data(self) -> Any:
        """The decoded value, where `[producing] value` has encoded it; of dead letters and retries, and else, the
        value."""
        return self._decoded(Part.VALUE, self.value)

    @property
    def key_data(self) -> Any:
        """Likewise the decoded key."""
        return self._decoded(Part.KEY, self.key)

    def _decoded(self, part: Part, written: bytes | None) -> Any:
        if self.is_letter or self.is_retry:
            return written
        return self.readers.read(self.topic, part, written, list(self.raw_headers))

    @property
    def is_letter(self) -> bool:
        """Whether it is a dead letter, sent by a worker. One that a handler passes on has its headers, too."""
        return self.to_letters and ERROR_TYPE in self.headers and OFFSET in self.headers and not self.is_retry

    @property
    def is_retry(self) -> bool:
        """Whether a worker has put it into a retry topic."""
        return self.headers.get(RETRY_TOPIC) == self.topic.encode()

    @property
    def given(self) -> GivenRecord:
        """The record as one to be handled, from its topic."""
        return GivenRecord(
            self.value, self.key, self.raw_headers, self.topic, self.partition or 0, None, self.timestamp
        )

    @property
    def error(self) -> str:
        """Message of the handler's exception, in a dead letter."""
        return (self.headers.get(ERROR_MESSAGE) or b"").decode()

    @property
    def error_type(self) -> str:
        """Class of the handler's exception with its module, in a dead letter."""
        return (self.headers.get(ERROR_TYPE) or b"").decode()


class MemoryProducer:
    """Producer that keeps what it is given; of a transaction, what was committed counts. Brokers would refuse a topic
    whose name is illegal, and so does this; what the client itself refuses, `client` does."""

    def __init__(
        self,
        sent: list[SentRecord],
        readers: OutputReaders | None = None,
        letter_topics: Collection[str] | None = None,
        client: Producer | None = None,
    ) -> None:
        """`letter_topics`: topics of dead letters; None: any may be. `client`: a real one, without brokers; None:
        nothing is too large."""
        self._sent = sent
        self._letter_topics = letter_topics
        self._readers = readers or OutputReaders(None)
        self._client = client
        self._reports: deque[tuple[Delivered, KafkaError | None, Message]] = deque()
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
        """Take a record. `callback` is `on_delivery`'s other name; it comes first, as in the client. Raises as that
        does."""
        if self._client is not None:
            self._refuse(topic, value, key, partition, timestamp or 0, headers)
        error = None if has_legal_name(topic) else KafkaError(KafkaError.TOPIC_EXCEPTION)
        pairs = tuple(headers or ())
        where = None if partition < 0 else partition
        to_letters = self._letter_topics is None or topic in self._letter_topics
        record = SentRecord(topic, value, key, dict(pairs), pairs, timestamp or None, where, to_letters, self._readers)
        if error is None:
            (self._sent if self._open is None else self._open).append(record)
        if (told := callback or on_delivery) is not None:
            self._reports.append((told, error, Message(topic=topic, partition=where or 0, offset=len(self._sent))))

    def _refuse(self, topic: str, value: Any, key: Any, partition: int, timestamp: int, headers: Any) -> None:
        assert self._client is not None
        try:
            self._client.produce(topic, value, key, partition, None, None, timestamp, headers)
        finally:
            self._client.purge()
            self._client.poll(0)

    def __len__(self) -> int:
        """Records whose delivery is not reported yet."""
        return len(self._reports)

    def poll(self, timeout: float = 0.0) -> int:
        """Report what was taken as delivered, and what was not; the number of records."""
        count = len(self._reports)
        while self._reports:
            told, error, message = self._reports.popleft()
            told(error, message)
        return count

    def flush(self, timeout: float = -1) -> int:
        """Report everything as delivered; the number left."""
        self.poll()
        return 0

    def init_transactions(self, timeout: float = -1) -> None:
        """Nothing to abort: no earlier producer has left a transaction open."""

    def begin_transaction(self) -> None:
        """What is produced from here on counts when it is committed."""
        self._open = []

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any, timeout: float = -1) -> None:
        """Nothing to store: the ledger has the offsets, and they count with the transaction."""

    def commit_transaction(self, timeout: float = -1) -> None:
        self.poll()
        self._sent += self._open or ()
        self._open = None

    def abort_transaction(self, timeout: float = -1) -> None:
        """Drop what was produced since it began."""
        self._reports.clear()
        self._open = None

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""
