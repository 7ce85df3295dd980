"""Reader of a range of offsets to its end, without a group: for the tasks of a job, and for commands. Blocks.

1. A range ends by place, never by count: at its last offset there may be a transaction's marker, an aborted or a
   compacted record, which the client passes over in silence. Either a record behind the end is seen, or the client
   reports the partition's end (PARTITION_EOF) at or behind it.
2. What is missing at the beginning is an error that names it: `auto.offset.reset=error` never jumps.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.errors import ConfigError, PeerError
from kunicorn.ipc.messages import Token
from kunicorn.librdkafka.errors import DAMAGED, RETRIABLE, UNREACHED, fault_of, log_refused_fetch, parted
from kunicorn.positions import NO_TIMESTAMP, OffsetRange

_RECORDS = 1000
"""Records asked for at once: larger batches fall out of the processor's cache."""
_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0
"""Without a record or an end for so long, with some still to come, the brokers count as gone."""
_WARM_UP_SECONDS = 10.0

_PASSING = (RETRIABLE | UNREACHED) - {KafkaError.UNKNOWN_TOPIC_OR_PART}
"""librdkafka tries again by itself. It reports an unknown topic only once the topic has been unknown for 30 s
(`topic.metadata.propagation.max.ms`), which a job does not wait out."""
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class RangeUnreadable(PeerError):
    """The range's records cannot be had; the message names what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Window:
    """Filter of records by their timestamps, in milliseconds since 1970: `since` included, `before` not; None: no such
    bound.
    """

    since: int | None
    until: int | None

    def chosen(self, fetched: Iterator[list[Message]]) -> Iterator[list[Message]]:
        """Records within the window. One without a timestamp counts as older than every time."""
        since = NO_TIMESTAMP if self.since is None else self.since
        until = sys.maxsize if self.until is None else self.until
        for messages in fetched:
            if some := [message for message in messages if since <= message.timestamp()[1] < until]:
                yield some


class RangeReader:
    """Reads one range after the other with one consumer. Every method blocks."""

    def __init__(self, consumer: Consumer, patience: float = _PATIENCE_SECONDS) -> None:
        self.consumer = consumer
        self._patience = patience
        self._known: set[str] = set()
        """Topics that the client has metadata of."""

    def read(self, wanted: OffsetRange) -> Iterator[list[Message]]:
        """Records of the range in offset order, many at a time. Raises `RangeUnreadable`."""
        self._warm_up(wanted.topic)
        self.consumer.assign([ClientPartition(*wanted.tp, wanted.start)])
        try:
            yield from self._until_the_end(wanted)
        finally:
            self.consumer.unassign()

    def _warm_up(self, topic: str) -> None:
        """Ask for the topic before it is assigned: one that is new to the client stalls for up to a second."""
        if topic not in self._known:
            with contextlib.suppress(KafkaException):
                self.consumer.list_topics(topic, timeout=_WARM_UP_SECONDS)
            self._known.add(topic)

    def _until_the_end(self, wanted: OffsetRange) -> Iterator[list[Message]]:
        heard = time.monotonic()
        while True:
            batch = self._fetch()
            records, errors = parted(batch, _ends_range)
            if errors:
                # Left in, it would end this range, and what comes with it would be left out.
                records, errors = parted([each for each in batch if not _is_stale(each, wanted)], _ends_range)
            within = records if _ends_before(records, wanted.stop) else _before(records, wanted.stop)
            if within:
                heard = time.monotonic()
                yield within
                heard = max(heard, time.monotonic())  # The handler's time is not the brokers'.
            if len(within) < len(records) or (within and _place(within[-1]) == wanted.stop - 1):
                return
            if errors and self._is_over(wanted, errors):
                return
            # Kept over the next fetch, one batch would be made while another is still there: twice the memory that
            # goes through the processor's cache.
            del batch, records, within
            if time.monotonic() - heard > self._patience:
                raise self._silent(wanted)

    def _fetch(self) -> list[Message]:
        """Records that are there now: `consume(n, t)` alone would wait the whole `t` unless `n` records come."""
        if batch := self.consumer.consume(_RECORDS, 0):
            return batch
        first = self.consumer.poll(_POLL_SECONDS)
        return [] if first is None else [first, *self.consumer.consume(_RECORDS - 1, 0)]

    def _is_over(self, wanted: OffsetRange, errors: list[Message]) -> bool:
        """Whether the partition's end, as the client reports it, is at or behind the range's. Raises errors that do not
        pass.

        An end before the range's is no error yet: a replica nearby may be behind its leader (KIP-392).
        """
        for message in errors:
            if (error := message.error()) is None or error.code() in _PASSING:
                if error is not None and error.code() in RETRIABLE:
                    log_refused_fetch(message)
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                if _place(message) >= wanted.stop:
                    return True
                continue
            raise self._unreadable(wanted, error)
        return False

    def _unreadable(self, wanted: OffsetRange, error: KafkaError) -> RangeUnreadable:
        if error.code() in _GONE:
            first, end = self._watermarks(wanted)
            return RangeUnreadable(
                f"{wanted.tp}: offsets {wanted.start} to {min(wanted.stop, first)} are gone, the log has {first} to "
                f"{end} now; start the run anew from there, or set pipeline.fail_on_data_loss = false ({error.str()})"
            )
        remedy = fault_of(error.code()).remedy(rights="READ")
        return RangeUnreadable(f"{wanted.tp} cannot be read: {error.str()}; {remedy}")

    def _silent(self, wanted: OffsetRange) -> RangeUnreadable:
        _, end = self._watermarks(wanted)
        if 0 <= end < wanted.stop:
            return RangeUnreadable(
                f"{wanted.tp}: the log ends at {end} and the range at {wanted.stop}: the log was truncated, or the "
                f"topic created anew; start the run anew"
            )
        return RangeUnreadable(f"{wanted}: no record for {self._patience:g} s with some still to come; see its brokers")

    def _watermarks(self, wanted: OffsetRange) -> tuple[int, int]:
        try:
            answer: Any = self.consumer.get_watermark_offsets(ClientPartition(*wanted.tp), timeout=_WARM_UP_SECONDS)
        except KafkaException:
            return -1, -1
        return int(answer[0]), int(answer[1])


def _ends_range(error: KafkaError) -> bool:
    return error.code() != KafkaError._PARTITION_EOF and error.code() not in _PASSING


def _is_stale(message: Message, wanted: OffsetRange) -> bool:
    """Whether it says that an offset is gone which this range never asks for: it is of the range that was read before.

    librdkafka drops what it has of an assignment that is over, but not this error (rd_kafka_offset_reset reports it
    without a version). Behind a damaged batch it asks for offsets that it has read from the middle of a record.
    """
    error = message.error()
    return error is not None and error.code() in _GONE and not wanted.start <= _place(message) <= wanted.stop


def _place(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset


def _ends_before(records: list[Message], stop: int) -> bool:
    return not records or _place(records[-1]) < stop


def _before(records: list[Message], stop: int) -> list[Message]:
    return [message for message in records if _place(message) < stop]


Range = tuple[str, int, int, int]
"""Topic, partition, first offset, and the end."""


class Damaged(ConfigError):
    """Part of the ranges cannot be read. `found` is what came before that."""

    def __init__(self, text: str, found: Sequence[Message]) -> None:
        super().__init__(text)
        self.found = found


def fetch(
    client: Mapping[str, str | int | float | bool], token: Token | None, ranges: Sequence[Range], patience: float
) -> list[Message]:
    """Records in `ranges`, and those behind an end that came along.

    Gives up after `patience` seconds without a record. Raises `Damaged`. Blocks.
    """
    login = {}
    if token is not None:
        login["oauth_cb"] = lambda _: (token.value, token.expires_at, token.principal, token.extensions)
    consumer = Consumer({**client, **login})
    found: list[Message] = []
    try:
        ends = {(topic, number): end for topic, number, _, end in ranges}
        consumer.assign([TopicPartition(topic, number, first) for topic, number, first, _ in ranges])
        heard = time.monotonic()
        while ends and time.monotonic() - heard < patience:
            for message in consumer.consume(500, 0.2):
                if (error := message.error()) is None:
                    heard = time.monotonic()
                    found.append(message)
                elif error.code() in DAMAGED:
                    where = f"{message.topic()}-{message.partition()}"
                    raise Damaged(f"{where}: {error.str()}: {fault_of(error.code()).remedy()}", found)
            # By position: an end may be a transaction's marker, which is no record.
            for place in consumer.position([TopicPartition(*each) for each in ends]):
                if place.offset >= ends[place.topic, place.partition]:
                    del ends[place.topic, place.partition]
    finally:
        consumer.close()
    return found
