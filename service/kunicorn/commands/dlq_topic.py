"""The dead-letter topic as commands read it: its letters up to the ends at the start, filters, and which of them have
been replayed. Joins no group. Times are milliseconds since 1970.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kunicorn.clients.access import range_consumer, token_login
from kunicorn.clients.config import consumer_properties, dead_letter_target
from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.clients.session import fetch_token
from kunicorn.errors import ConfigError, PeerError
from kunicorn.handler.dead_letters import Told, Unreadable, read
from kunicorn.handler.record import Record
from kunicorn.ipc.messages import Token
from kunicorn.librdkafka.errors import fault_of
from kunicorn.positions import OffsetRange
from kunicorn.settings import Settings
from kunicorn.settings.handler import default_topic

_METADATA_BYTES = 4_000
"""The broker takes 4096 (`offset.metadata.max.bytes`)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters for dead letters; all that are set must match."""

    since_ms: int | None = None
    until_ms: int | None = None
    error: str | None = None
    """Error type, with or without its module."""
    key: bytes | None = None
    topic: str | None = None
    """The topic the record came from."""

    def takes(self, told: Told, key: bytes | None) -> bool:
        """Whether this letter matches."""
        return (
            (self.since_ms is None or told.time_ms >= self.since_ms)
            and (self.until_ms is None or told.time_ms < self.until_ms)
            and (self.error is None or self.error in (told.cause.type, told.cause.type.rpartition(".")[2]))
            and (self.key is None or self.key == key)
            and (self.topic is None or self.topic == told.topic)
        )


class Replayed:
    """Replayed letters of one partition of the dead-letter topic.

    Kept in the side group's committed offset and its metadata: everything before `upto`, and single ranges behind it,
    since filters leave letters out.
    """

    def __init__(self, upto: int = 0, metadata: str = "") -> None:
        """Metadata in another format is ignored: at worst letters are sent a second time."""
        self.upto = upto
        self._beyond: set[int] = set()
        if re.fullmatch(r"\d+-\d+(,\d+-\d+)*", metadata):
            for part in metadata.split(","):
                first, _, last = part.partition("-")
                self._beyond.update(range(int(first), int(last) + 1))

    def __contains__(self, offset: int) -> bool:
        return offset < self.upto or offset in self._beyond

    def add(self, offset: int) -> None:
        """Note that the letter was delivered to its topic."""
        self._beyond.add(offset)

    def settle(self, left: Iterable[int], end: int) -> None:
        """Move `upto` to the first offset that is `left` to be replayed (of those below `end`), else to `end`."""
        upto = min((offset for offset in left if offset not in self), default=end)
        self.upto = max(self.upto, upto)
        self._beyond = {offset for offset in self._beyond if offset >= self.upto}

    def metadata(self) -> str:
        """Ranges behind `upto` as text, as many as a commit can carry."""
        text = ""
        for first, last in _ranges(sorted(self._beyond)):
            longer = f"{text},{first}-{last}" if text else f"{first}-{last}"
            if len(longer) > _METADATA_BYTES:
                break
            text = longer
        return text


def _ranges(offsets: list[int]) -> Iterable[tuple[int, int]]:
    first = last = None
    for offset in offsets:
        if first is None or last is None or offset != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = offset
        last = offset
    if first is not None and last is not None:
        yield first, last


_PATIENCE = 30.0
"""Seconds without a record, with some still to come, until the brokers count as gone."""
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Found:
    """One record of the dead-letter topic."""

    partition: int
    offset: int
    record: Record
    told: Told | None
    """None: it is no dead letter of ours, and `why` says what is missing."""
    why: str = ""


class LettersTopic:
    """The dead-letter topic, with a client of its own. Every method blocks.

    Raises `ConfigError` where the topic is missing or the brokers do not answer.
    """

    def __init__(self, settings: Settings, consumer: Consumer, token: Token | None) -> None:
        self.name = settings.dead_letter_topic or default_topic(settings.group.id)
        self.side_group = f"{settings.group.id}.dlq-replay"
        self._settings = settings
        self._consumer = consumer
        self._token = token
        partitions = self.partitions_of(self.name)
        if not partitions:
            raise ConfigError(
                f"the dead-letter topic {self.name!r} does not exist on this cluster: create it, or correct "
                f"dead_letters.topic"
            )
        self.bounds = {number: self._bounds(number) for number in range(partitions)}
        """First offset and end of each partition, at the start."""

    def partitions_of(self, topic: str) -> int:
        """Number of the topic's partitions; 0 where it does not exist."""
        found = self._asked(lambda: self._consumer.list_topics(topic, timeout=10)).topics.get(topic)
        return len(found.partitions) if found is not None and found.error is None else 0

    def _bounds(self, number: int) -> tuple[int, int]:
        place = TopicPartition(self.name, number)
        first, end = self._asked(lambda: self._consumer.get_watermark_offsets(place, timeout=10))
        return int(first), int(end)

    def letters(self, starts: Mapping[int, int] | None = None) -> Iterator[Found]:
        """Records from the beginning (or from `starts`, by partition) up to the ends."""
        ranges = [
            OffsetRange(self.name, number, max(first, (starts or {}).get(number, 0)), end)
            for number, (first, end) in self.bounds.items()
        ]
        try:
            for messages in RangeReader(self._consumer, _PATIENCE, "try again").read(*ranges):
                yield from map(_found, messages)
        except RangeUnreadable as error:
            raise ConfigError(f"the dead-letter topic: {error}") from error

    def replayed(self) -> dict[int, Replayed]:
        """Replayed letters by partition, as the side group has them."""
        asked = [TopicPartition(self.name, number) for number in self.bounds]
        known = self._asked(lambda: self._consumer.committed(asked, timeout=15))
        # Behind the end: the topic was deleted and created again, what was remembered is about other letters.
        return {
            each.partition: Replayed(each.offset, each.metadata or "")
            if 0 <= each.offset <= self.bounds[each.partition][1]
            else Replayed()
            for each in known
        }

    def remember(self, replayed: Mapping[int, Replayed]) -> None:
        """Commit for the side group."""
        offsets = [
            TopicPartition(self.name, number, each.upto, metadata=each.metadata()) for number, each in replayed.items()
        ]
        self._asked(lambda: self._consumer.commit(offsets=offsets, asynchronous=False))

    def producer(self) -> Producer:
        """Producer for sending back, with the properties with which letters are sent."""
        target = dead_letter_target(self._settings, f"{self._settings.kafka.client_id}-dlq", self.name)
        assert target is not None
        return Producer({**target.client, "linger.ms": 5, "log_level": 0, **token_login(self._token)})

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except KafkaException as error:
            raise ConfigError(self._explained(self._group_refusal() or error.args[0])) from error

    def _group_refusal(self) -> KafkaError | None:
        """Error of the side group's coordinator, which librdkafka reports as an event only: the question just times
        out.
        """
        told = (message.error() for message in self._consumer.consume(_BATCH, 0.1))
        return next((each for each in told if each and each.code() == KafkaError.GROUP_AUTHORIZATION_FAILED), None)

    def _explained(self, error: KafkaError) -> str:
        """Message for a refusal by the brokers, with what to do."""
        if error.code() not in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            return f"the brokers do not answer: {error.str()}; see kafka.bootstrap_servers"
        remedy = fault_of(error.code()).remedy(
            topic=f"the topic {self.name!r}",
            group=f"the group {self.side_group!r}, which remembers what was replayed",
            rights="READ",
        )
        return f"{error.str()}: {remedy}"


@contextmanager
def opened(settings: Settings) -> Iterator[LettersTopic]:
    """The dead-letter topic of these settings. Raises `ConfigError`."""
    try:
        token = asyncio.run(fetch_token(settings.kafka))
    except PeerError as error:
        raise ConfigError(f"no OAUTHBEARER token: {error}") from error
    properties = dict(consumer_properties(settings, f"{settings.kafka.client_id}-dlq"))
    consumer = range_consumer({**properties, "group.id": f"{settings.group.id}.dlq-replay"}, token)
    try:
        yield LettersTopic(settings, consumer, token)
    finally:
        consumer.close()


def _found(message: Message) -> Found:
    record = Record.of(message)
    try:
        return Found(record.partition, record.offset, record, read(record.headers))
    except Unreadable as error:
        return Found(record.partition, record.offset, record, None, str(error))
