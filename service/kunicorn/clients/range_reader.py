"""Reader of a range of offsets to its end, without a group: for the tasks of a job, and for commands. Blocks.

1. A range ends by place, never by count: at its last offset there may be a transaction's marker, an aborted or a
   compacted record, which the client passes over in silence. Either a record behind the end is seen, or the client
   reports the partition's end (PARTITION_EOF) at or behind it.
2. What is missing at the beginning is an error that names it: `auto.offset.reset=error` never jumps.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.errors import PeerError
from kunicorn.handler.messages import Run
from kunicorn.handler.record import offset_of
from kunicorn.handler.rows import between_times
from kunicorn.librdkafka.begin import hold_against_log
from kunicorn.librdkafka.errors import RETRIABLE, UNREACHED, fault_of, log_refused_fetch, parted
from kunicorn.positions import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Edges, OffsetRange, TopicPartition

log_of_jobs = logging.getLogger("kunicorn.pipeline")

_RECORDS = 1000
"""Records asked for at once: larger batches fall out of the processor's cache."""
_POLL_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""Without a record, an end or a fetch that has come further for so long, with records still to come, the brokers count
as gone."""
_WARM_UP_SECONDS = 10.0

_PASSING = (RETRIABLE | UNREACHED | {KafkaError.GROUP_AUTHORIZATION_FAILED}) - {KafkaError.UNKNOWN_TOPIC_OR_PART}
"""librdkafka tries again by itself, and a range needs no group, whose coordinator it looks for all the same. It reports
an unknown topic only once the topic has been unknown for 30 s (`topic.metadata.propagation.max.ms`), which nobody waits
out."""
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
GONE_REMEDY = (
    "start the run anew from there, or set pipeline.fail_on_data_loss = false (a DataFrame's option failOnDataLoss)"
)


class RangeUnreadable(PeerError):
    """The range's records cannot be had; the message names what is missing and what to do."""


NO_EPOCHS: Mapping[TopicPartition, int] = {}
UNKNOWN_EDGES = Edges(NO_OFFSET, NO_OFFSET)


def first_left(wanted: OffsetRange, at: int, log: Edges) -> int | None:
    """Where the log begins, if that is behind the offset `at` that was asked for; None: that was not deleted. What is
    passed over is logged.
    """
    if at < 0 or log.first <= at:
        return None
    lost = f"offsets {at} to {min(wanted.stop, log.first)} were deleted before they were read"
    log_of_jobs.warning(f"{wanted.tp}: {lost}; going on behind them, the log has {log.first} to {log.end} now")
    return log.first


def gone(wanted: OffsetRange, at: int, log: Edges, remedy: str) -> RangeUnreadable:
    """Error of a range whose offset `at` is not in the log."""
    lost = f"offsets {at} to {min(wanted.stop, log.first)} are gone, the log has {log.first} to {log.end} now"
    return RangeUnreadable(f"{wanted.tp}: {lost}; {remedy}")


def silent(wanted: OffsetRange, log: Edges, patience: float) -> RangeUnreadable:
    """Error of a range of which nothing has come for so many seconds."""
    if 0 <= log.end < wanted.stop:
        return RangeUnreadable(
            f"{wanted.tp}: the log ends at {log.end} and the range at {wanted.stop}: the log was truncated, or the "
            f"topic created anew; start the run anew"
        )
    return RangeUnreadable(f"{wanted}: no record for {patience:g} s with some still to come; see its brokers")


@dataclass(frozen=True, slots=True)
class Window:
    """Filter of records by their timestamps, in milliseconds since 1970: `since` included, `before` not; None: no such
    bound.
    """

    since: int | None
    until: int | None

    def chosen(self, fetched: Iterator[Run]) -> Iterator[Run]:
        """Records within the window; an empty run where none are. One without a timestamp counts as older than every
        time.
        """
        since = NO_TIMESTAMP if self.since is None else self.since
        until = sys.maxsize if self.until is None else self.until
        for run in fetched:
            yield between_times(run, since, until)


class FetchPositions:
    """How far a client's fetches have come, as its statistics tell (`stats_cb`): over aborted and compacted records it
    gives out nothing, so that a long stretch of them looks as if the brokers were gone. Caller: the client.
    """

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}

    def __call__(self, told: str) -> None:
        """Take in what librdkafka tells, as JSON."""
        for topic, found in json.loads(told).get("topics", {}).items():
            for number, partition in found.get("partitions", {}).items():
                if (offset := partition.get("next_offset", NO_OFFSET)) >= 0:
                    self._next[TopicPartition(topic, int(number))] = offset

    def of(self, partitions: Iterable[TopicPartition]) -> list[int]:
        """The next offset that is fetched of each; `NO_OFFSET`: not known."""
        return [self._next.get(tp, NO_OFFSET) for tp in partitions]


class RangeReader:
    """Reads ranges with one consumer: one after the other, or several at once. Every method blocks.

    The consumer reports where partitions end (`enable.partition.eof`), and has no start offset of its own.
    """

    def __init__(
        self,
        consumer: Consumer,
        patience: float = PATIENCE_SECONDS,
        gone: str = GONE_REMEDY,
        *,
        passes_over_deleted: bool = False,
        fetched: FetchPositions | None = None,
    ) -> None:
        """`gone`: what a person can do where the log has not all of a range any more. `passes_over_deleted`: where its
        beginning was deleted (retention, DeleteRecords), a range is read from what is left on, and that is logged.
        `fetched`: the `stats_cb` of the consumer; a fetch that has come further is a sign of life."""
        self.consumer = consumer
        self._patience = patience
        self._gone = gone
        self._passes_over_deleted = passes_over_deleted
        self._fetched = fetched or FetchPositions()
        self._known: set[str] = set()
        """Topics that the client has metadata of."""
        self._away: frozenset[TopicPartition] = frozenset()
        """Partitions that are not assigned, as they are set aside."""
        self._positions: dict[TopicPartition, ClientPartition] = {}
        """Where the client goes on, of partitions that were assigned anew."""
        self._epochs = NO_EPOCHS

    def read(
        self,
        *wanted: OffsetRange,
        epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
        aside: Collection[TopicPartition] = (),
    ) -> Iterator[list[Message]]:
        """Records of the ranges, many at a time; of each, in offset order. While none come, an empty list every fifth
        of a second, so that the caller can see to what it has in hand. Raises `RangeUnreadable`, after what came before
        it.

        A partition is in one of the ranges at most. `epochs`: leader epochs that had the ranges' starts; where the log
        was truncated before one since, that is an error (KIP-320). `aside`: partitions that the caller takes no records
        of for now, looked at before each fetch; it may change between two.
        """
        ranges = {each.tp: each for each in wanted if each.start < each.stop}
        self._warm_up({each.topic for each in ranges.values()})
        self._away, self._positions, self._epochs = frozenset(), {}, epochs
        try:
            self._assign(ranges.values())
            yield from self._until_the_end(ranges, aside)
        finally:
            self.consumer.unassign()

    def _warm_up(self, topics: set[str]) -> None:
        """Ask for topics before they are assigned: one that is new to the client stalls for up to a second."""
        for topic in topics - self._known:
            with contextlib.suppress(KafkaException):
                self.consumer.list_topics(topic, timeout=_WARM_UP_SECONDS)
            self._known.add(topic)

    def _until_the_end(
        self, ranges: Mapping[TopicPartition, OffsetRange], aside: Collection[TopicPartition]
    ) -> Iterator[list[Message]]:
        left = dict(ranges)
        heard, reached = time.monotonic(), self._fetched.of(left)
        while left:
            if self._set_aside(left, aside):
                heard = time.monotonic()
            batch = self._fetch()
            records, errors = parted(batch, _ends_range)
            if errors:
                # Left in, it would end this range, and what comes with it would be left out.
                records, errors = parted([each for each in batch if not _is_stale(each, left)], _ends_range)
            within, ended = _of_one(records, *left.values()) if len(ranges) == 1 else _of_several(records, left)
            given = time.monotonic()
            heard = given if within else heard
            yield within
            heard += time.monotonic() - given  # The handler's time is not the brokers'.
            for tp in ended:
                del left[tp]
            if errors:
                self._meet(errors, left)
            # Kept over the next fetch, one batch would be made while another is still there: twice the memory that
            # goes through the processor's cache.
            del batch, records, within
            waited_for = next((each for tp, each in left.items() if tp not in self._away), None)
            if waited_for is not None and time.monotonic() - heard > self._patience:
                if (now := self._fetched.of(left)) != reached:
                    heard, reached = time.monotonic(), now
                    continue
                raise self._silent(waited_for)

    def _set_aside(self, left: Mapping[TopicPartition, OffsetRange], aside: Collection[TopicPartition]) -> bool:
        """Have the client fetch what is not set aside, each from where it was; whether that is another set now."""
        away = frozenset(tp for tp in left if tp in aside)
        if away == self._away & left.keys():
            return False
        self._keep_positions(each for each in left.values() if each.tp not in self._away)
        self._away = away
        there = [each for each in left.values() if each.tp not in away]
        self._assign(there)
        return True

    def _assign(self, ranges: Iterable[OffsetRange]) -> None:
        """Have the client fetch these and no others."""
        begun = [self._begin(each) for each in ranges]
        self.consumer.assign(begun)
        hold_against_log(self.consumer, begun)

    def _keep_positions(self, ranges: Iterable[OffsetRange]) -> None:
        if asked := [ClientPartition(*each.tp) for each in ranges]:
            read: Any = self.consumer.position(asked)
            self._positions |= {TopicPartition(each.topic, each.partition): each for each in read if each.offset >= 0}

    def _fetch(self) -> list[Message]:
        """Records that are there now: `consume(n, t)` alone would wait the whole `t` unless `n` records come."""
        if batch := self.consumer.consume(_RECORDS, 0):
            return batch
        first = self.consumer.poll(_POLL_SECONDS)
        return [] if first is None else [first, *self.consumer.consume(_RECORDS - 1, 0)]

    def _meet(self, errors: list[Message], left: dict[TopicPartition, OffsetRange]) -> None:
        """Take out of `left` what has ended: the partition's end, as the client reports it, is at or behind the
        range's. Raises errors that do not pass.

        An end before the range's is no error yet: a replica nearby may be behind its leader (KIP-392).
        """
        for message in errors:
            tp, error = _partition_of(message), message.error()
            assert error is not None
            # What the client says of no partition concerns them all; what it says behind a range's end, none.
            wanted = next(iter(left.values()), None) if tp is None else left.get(tp)
            if error.code() in _PASSING:
                if error.code() in RETRIABLE:
                    log_refused_fetch(message)
            elif wanted is None:
                continue
            elif error.code() in _GONE and self._passes_over_deleted and (first := self._first_left(wanted, message)):
                if first >= wanted.stop:
                    del left[wanted.tp]
                else:
                    self._begin_again(left.values(), wanted.tp, first)
            elif error.code() != KafkaError._PARTITION_EOF:
                raise self._unreadable(wanted, message, error)
            elif offset_of(message) >= wanted.stop:
                del left[wanted.tp]

    def _begin_again(self, ranges: Iterable[OffsetRange], tp: TopicPartition, first: int) -> None:
        """Have the client go on in that partition at `first`, in the others where it is: it seeks in none that has
        failed."""
        ranges = [each for each in ranges if each.tp not in self._away]
        self._keep_positions(ranges)
        self._positions[tp] = ClientPartition(*tp, first)
        self._assign(ranges)

    def _begin(self, wanted: OffsetRange) -> ClientPartition:
        read = self._positions.get(wanted.tp)
        if read is not None and read.offset >= wanted.start:
            return read
        return ClientPartition(*wanted.tp, wanted.start, leader_epoch=self._epochs.get(wanted.tp, NO_EPOCH))

    def _first_left(self, wanted: OffsetRange, message: Message) -> int | None:
        """Where the log begins, if that is behind the offset that was asked for; None: that was not deleted."""
        return first_left(wanted, offset_of(message), self._edges(wanted))

    def _unreadable(self, wanted: OffsetRange, message: Message, error: KafkaError) -> RangeUnreadable:
        if error.code() in _GONE:
            return gone(wanted, offset_of(message), self._edges(wanted), f"{self._gone} ({error.str()})")
        remedy = fault_of(error.code()).remedy(rights="READ", topic=f"the topic {wanted.topic!r}")
        return RangeUnreadable(f"{wanted.tp} cannot be read: {error.str()}; {remedy}")

    def _silent(self, wanted: OffsetRange) -> RangeUnreadable:
        return silent(wanted, self._edges(wanted), self._patience)

    def _edges(self, wanted: OffsetRange) -> Edges:
        try:
            answer: Any = self.consumer.get_watermark_offsets(ClientPartition(*wanted.tp), timeout=_WARM_UP_SECONDS)
        except KafkaException:
            return UNKNOWN_EDGES
        return Edges(int(answer[0]), int(answer[1]))


def _of_one(records: list[Message], wanted: OffsetRange) -> tuple[list[Message], list[TopicPartition]]:
    """Records within the only range that is assigned, and its partition if its end was seen."""
    if not records or offset_of(records[-1]) < wanted.stop - 1:
        return records, []
    return [message for message in records if offset_of(message) < wanted.stop], [wanted.tp]


def _of_several(
    records: list[Message], left: Mapping[TopicPartition, OffsetRange]
) -> tuple[list[Message], set[TopicPartition]]:
    """Records within their ranges, and the partitions whose end was seen."""
    within: list[Message] = []
    ended: set[TopicPartition] = set()
    for message in records:
        tp = _partition_of(message)
        if tp is None or (wanted := left.get(tp)) is None:
            continue
        if offset_of(message) < wanted.stop:
            within.append(message)
        if offset_of(message) >= wanted.stop - 1:
            ended.add(tp)
    return within, ended


def _partition_of(message: Message) -> TopicPartition | None:
    topic, partition = message.topic(), message.partition()
    return None if topic is None or partition is None or partition < 0 else TopicPartition(topic, partition)


def _ends_range(error: KafkaError) -> bool:
    return error.code() != KafkaError._PARTITION_EOF and error.code() not in _PASSING


def _is_stale(message: Message, left: Mapping[TopicPartition, OffsetRange]) -> bool:
    """Whether it says that an offset is gone which its range never asks for: it is of a range that was read before.

    librdkafka drops what it has of an assignment that is over, but not this error (rd_kafka_offset_reset reports it
    without a version). Behind a damaged batch it asks for offsets that it has read from the middle of a record.
    """
    error, tp = message.error(), _partition_of(message)
    if error is None or error.code() not in _GONE or tp is None:
        return False
    wanted = left.get(tp)
    return wanted is None or not wanted.start <= offset_of(message) <= wanted.stop
