"""The dead-letter topic as commands read it: its letters up to the ends at the start, filters, and which of them have
been replayed. Joins no group. Times are milliseconds since 1970.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, Message, Producer

from kunicorn.clients.access import range_consumer, token_renewal
from kunicorn.clients.config import consumer_properties, dead_letter_target
from kunicorn.clients.range_reader import RangeReader, RangeUnreadable
from kunicorn.clients.session import ClusterSession, cluster_session
from kunicorn.commands.embedded import is_embedded
from kunicorn.commands.topics.cluster import Admin
from kunicorn.commands.topics.plan import CLEANUP, FOR_EVER, RETENTION
from kunicorn.errors import ConfigError
from kunicorn.handler.dead_letters import Told, Unreadable, read
from kunicorn.handler.record import Record
from kunicorn.ipc.bitmap import is_of_another_topic, topic_word
from kunicorn.kafka.admin import KEPT_FOR_GOOD, IsolationLevel
from kunicorn.kafka.errors import ConnectionLost, CoordinatorUnavailable
from kunicorn.kafka.stored_positions import Lost, resolve
from kunicorn.kafka_errors import describe, fault
from kunicorn.positions import Edges, OffsetRange, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings.handler import default_topic
from kunicorn.text import json_bytes, printable, shown_bytes, utc

_METADATA_BYTES = 4_000
"""For the ranges: the broker takes 4096 (`offset.metadata.max.bytes`), and the word that names the topic 83."""

T = TypeVar("T")


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

    @property
    def nothing_between(self) -> bool:
        """Whether no time is in the window."""
        return self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms

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
    since filters leave letters out. Nothing here takes longer the more letters there are, but for those that come out
    of their order.
    """

    def __init__(self, upto: int = 0, metadata: str = "") -> None:
        """Metadata in another format is ignored: at worst letters are sent a second time."""
        self.upto = upto
        self._firsts: list[int] = []
        self._ends: list[int] = []
        """Of the ranges behind `upto`, ascending and apart from each other; the end is not included."""
        # The word behind them names the topic (`LettersTopic.remember`).
        ranges = metadata.partition(" ")[0]
        if re.fullmatch(r"\d+-\d+(,\d+-\d+)*", ranges):
            for part in ranges.split(","):
                first, _, last = part.partition("-")
                if int(first) <= int(last):
                    self._add(int(first), int(last) + 1)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset)
        return offset < self.upto or (at > 0 and offset < self._ends[at - 1])

    def add(self, offset: int) -> None:
        """Note that the letter was delivered to its topic."""
        self._add(offset, offset + 1)

    def learn(self, other: Replayed) -> None:
        """Take over what another replay has delivered."""
        self.upto = max(self.upto, other.upto)
        for first, end in zip(other._firsts, other._ends, strict=True):
            self._add(first, end)

    def settle(self, left: Sequence[int], end: int) -> None:
        """Move `upto` to the first offset that is `left` to be replayed (of those below `end`, ascending), else to
        `end`.
        """
        at = bisect_left(left, self.upto)
        while at < len(left) and left[at] in self:
            at += 1
        self.upto = max(self.upto, left[at] if at < len(left) else end)
        over = bisect_right(self._ends, self.upto)
        del self._firsts[:over], self._ends[:over]
        if self._firsts and self._firsts[0] < self.upto:
            self._firsts[0] = self.upto

    def metadata(self) -> str:
        """Ranges behind `upto` as text, as many as a commit can carry."""
        text = ""
        for first, end in zip(self._firsts, self._ends, strict=True):
            longer = f"{text},{first}-{end - 1}" if text else f"{first}-{end - 1}"
            if len(longer) > _METADATA_BYTES:
                break
            text = longer
        return text

    def _add(self, first: int, end: int) -> None:
        """Add a range; those that it meets become one with it."""
        at, to = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if at < to:
            first, end = min(first, self._firsts[at]), max(end, self._ends[to - 1])
        self._firsts[at:to], self._ends[at:to] = [first], [end]


_PATIENCE = 30.0
"""Seconds without a record, with some still to come, until the brokers count as gone."""


@dataclass(frozen=True, slots=True)
class Found:
    """One record of the dead-letter topic."""

    partition: int
    offset: int
    record: Record
    told: Told | None
    """None: it is no dead letter, and `why` says what is missing."""
    why: str = ""

    def lines(self) -> Iterator[str]:
        record, told = self.record, self.told
        if told is None:
            yield f"no dead letter of kunicorn's: {self.why}"
        else:
            yield printable(f"from      {told.topic}-{told.partition}@{told.offset}, group {told.group}")
            yield f"given up  {utc(told.time_ms)} after {told.cause.attempts} attempts, {told.replays} replays before"
            yield printable(f"error     {told.cause.type}: {one_line(told.cause.message)}")
            yield from (f"          {printable(line)}" for line in told.cause.stack.splitlines())
        yield f"timestamp {utc(record.timestamp) if record.timestamp is not None else 'none'}"
        yield f"key       {shown_bytes(record.key)}"
        for name, value in told.headers if told is not None else record.headers:
            yield f"header    {printable(name)}: {shown_bytes(value)}"
        yield f"value     {shown_bytes(record.value)}"

    def as_json(self) -> dict[str, Any]:
        """Bytes that are not UTF-8 are base64."""
        record, told = self.record, self.told
        letter: dict[str, Any] = {
            "place": f"{self.partition}@{self.offset}",
            "timestamp": record.timestamp,
            "key": json_bytes(record.key),
            "value": json_bytes(record.value),
            "headers": [[name, json_bytes(value)] for name, value in (told.headers if told else record.headers)],
        }
        if told is None:
            letter["why"] = self.why
        else:
            letter |= {"topic": told.topic, "partition": told.partition, "offset": told.offset, "group": told.group}
            letter |= {"error": told.cause.type, "message": told.cause.message, "stack": told.cause.stack}
            letter |= {"attempts": told.cause.attempts, "time": told.time_ms, "replays": told.replays}
        return letter


def one_line(text: str) -> str:
    """An error's message in a list."""
    return printable(text.splitlines()[0] if text else "")[:200]


class LettersTopic:
    """The dead-letter topic. Every method blocks.

    Raises `ConfigError` where the topic is missing or the brokers do not answer.
    """

    def __init__(
        self, session: ClusterSession, consumer: Consumer, name: str | None = None, group: str | None = None
    ) -> None:
        """`session`: of the side group, which remembers what was replayed. `name` and `group`: None for those of the
        settings.
        """
        settings = session.settings
        self.name = name or settings.dead_letter_topic or default_topic(settings.group.id)
        self.group = group or settings.group.id
        """Whose letters are sent back: several groups may share the topic."""
        self._session = session
        self._consumer = consumer
        partitions = self.partitions_of(self.name)
        if not partitions:
            raise ConfigError(
                f"the dead-letter topic {self.name!r} does not exist on this cluster: create it, or correct "
                f"{'dead_letters.topic' if name is None else '--letters'}"
            )
        # Before the offsets: a topic that is created anew in between is noticed the next time.
        self._id = session.topic_ids([self.name]).get(self.name, "")
        edges = session.edges(self._each(partitions), IsolationLevel.READ_COMMITTED)
        self.bounds = {tp.partition: (log.first, log.end) for tp, log in edges.items()}
        """First offset of each partition and the end of what is committed in it, at the start."""

    def partitions_of(self, topic: str) -> int:
        """Number of the topic's partitions; 0 where it does not exist."""
        return self._session.count(topic)

    def _each(self, partitions: int) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(partitions)]

    def letters(self, starts: Mapping[int, int] | None = None) -> Iterator[Found]:
        """Records from the beginning (or from `starts`, by partition) up to the ends, without those that retention has
        taken meanwhile.
        """
        ranges = [
            OffsetRange(self.name, number, max(first, (starts or {}).get(number, 0)), end)
            for number, (first, end) in self.bounds.items()
        ]
        try:
            reader = RangeReader(self._consumer, _PATIENCE, "try again", passes_over_deleted=True)
            for messages in reader.read(*ranges):
                yield from map(_found, messages)
        except RangeUnreadable as error:
            raise ConfigError(f"the dead-letter topic: {error}") from error

    def replayed(self) -> dict[int, Replayed]:
        """Replayed letters by partition, as the side group has them."""
        try:
            committed = self._asked(lambda: self._session.committed(self._each(len(self.bounds))))
        except CoordinatorUnavailable as error:
            group = f"the group {self._session.group_id!r}, which remembers what was replayed"
            remedy = fault(error.error).remedy(group=group)
            raise ConfigError(f"{describe(error.error)}: {remedy}") from error
        # Another replay may have begun since, and have sent letters back that have come meanwhile.
        behind = [tp for tp, known in committed.items() if known.offset > self.bounds[tp.partition][1]]
        now = self._session.edges(behind, IsolationLevel.READ_COMMITTED) if behind else {}
        found: dict[int, Replayed] = {}
        for tp, known in committed.items():
            at = max(0, known.offset)
            loss = resolve(tp, Position(at), now.get(tp, Edges(*self.bounds[tp.partition]))).loss
            # Or behind the end: the topic was deleted and created again, what was remembered is about other letters.
            anew = is_of_another_topic(known.offset, known.metadata, self._cluster_id, self._id)
            anew = anew or (loss is not None and loss.why is Lost.TRUNCATED)
            found[tp.partition] = Replayed() if anew else Replayed(at, known.metadata)
        return found

    def forgets(self) -> bool:
        """Whether the brokers forget what was replayed after `offsets.retention.minutes`, as they cannot be told for
        how long to keep it.
        """
        return not self._session.ask(self._session.group.takes_retention)

    def remember(self, replayed: Mapping[int, Replayed]) -> None:
        """Commit for the side group."""
        # Letters live longer than a week, and what is forgotten is sent, and handled, again.
        kept = None if self.forgets() else KEPT_FOR_GOOD
        offsets = {
            TopicPartition(self.name, number): Position(each.upto, done=self._metadata(each))
            for number, each in replayed.items()
        }
        commit = partial(self._session.group.commit, offsets, "", kept)
        answers = self._asked(lambda: self._session.ask(commit))
        for tp, error in answers.items():
            if error:
                raise self._session.refused(error, f"what was replayed of {tp} cannot be remembered")

    def _metadata(self, replayed: Replayed) -> str:
        word = topic_word(replayed.upto, self._cluster_id, self._id)
        return f"{replayed.metadata()} {word}" if word else replayed.metadata()

    @property
    def _cluster_id(self) -> str:
        return self._session.cluster.metadata.cluster_id or ""

    def _asked(self, question: Callable[[], T]) -> T:
        """Answer of the side group's coordinator, which is asked once more where the connection is lost: brokers close
        one that is idle for as long as a person thinks or a thousand letters take, and only who asks on it notices.
        """
        try:
            return question()
        except ConnectionLost:
            return question()

    def retention_ms(self, topics: Iterable[str]) -> dict[str, int]:
        """For how long these topics keep records; without those that keep them for ever, or whose settings the user may
        not read.
        """
        found: dict[str, int] = {}
        if is_embedded(self._session.cluster.metadata):
            return found  # It would not be answered, and is waited for.
        for name in topics:
            try:
                (told,) = Admin(self._session.settings, self._session.token).configs([name]).values()
            except ConfigError:
                continue  # It is only warned by it: the right DESCRIBE_CONFIGS is not needed for a replay.
            if "delete" in told.get(CLEANUP, "") and int(told.get(RETENTION, FOR_EVER)) != FOR_EVER:
                found[name] = int(told[RETENTION])
        return found

    @property
    def delivery_seconds(self) -> float:
        """So long the producer tries to deliver a letter, before it counts as refused."""
        return self._session.settings.dead_letters.delivery_timeout_ms / 1000

    def producer(self) -> Producer:
        """Producer for sending back, with the properties with which letters are sent."""
        settings = self._session.settings
        target = dead_letter_target(settings, f"{settings.kafka.client_id}-dlq", self.name)
        assert target is not None
        return Producer({**target.client, "linger.ms": 5, "log_level": 0, **token_renewal(settings.kafka)})


@contextmanager
def opened(settings: Settings, name: str | None = None, group: str | None = None) -> Iterator[LettersTopic]:
    """The dead-letter topic of these settings, or another one; `group`: whose letters are sent back, if not those of
    the settings' group. Raises `ConfigError`; `FatalGroupError` where the side group refuses.
    """
    # Each group's own: what is sent back for a group is remembered for its own replays, whoever does it.
    with cluster_session(settings, f"{group or settings.group.id}.dlq-replay") as session:
        properties = consumer_properties(settings, f"{settings.kafka.client_id}-dlq")
        # Whatever the input is read by: the record of a letter whose transaction is aborted is handled again.
        committed = {"isolation.level": "read_committed"}
        consumer = range_consumer({**properties, **committed, **token_renewal(settings.kafka)}, None)
        try:
            yield LettersTopic(session, consumer, name, group)
        finally:
            consumer.close()


def _found(message: Message) -> Found:
    record = Record.of(message)
    try:
        return Found(record.partition, record.offset, record, read(record.headers, record.timestamp))
    except Unreadable as error:
        return Found(record.partition, record.offset, record, None, str(error))
