"""Partitions, offsets, and ranges of offsets; how jobs cut ranges into pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

NO_OFFSET = -1
"""No offset: not started, nothing committed, nothing in hand. Never 0, which is a real offset."""

NO_EPOCH = -1
"""The leader epoch is unknown (Kafka's own marker, KIP-320)."""


EARLIEST, LATEST = -2, -1
"""A log's first offset and its end, where an offset or a time is asked for (`ListOffsetsRequest.java`); Spark's JSON
has the same."""

NO_TIMESTAMP = -1
"""The record carries no time (Kafka's `NO_TIMESTAMP`), or none is known yet."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then by number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def place_of(tp: TopicPartition, offset: int) -> dict[str, object]:
    """Place of a record, as fields of a log line."""
    return {"topic": tp.topic, "partition": tp.partition, "offset": offset}


class Position(NamedTuple):
    """The next offset to read, and the leader epoch of the record before it (KIP-320)."""

    offset: int
    leader_epoch: int = NO_EPOCH
    done: str = ""
    """Which records from there on are done already, as text (`ipc.bitmap`); it travels as the commit's metadata. In
    what is committed it may also say how many partitions the topic had when the group began (`with_partitions`)."""


Offsets = Mapping[TopicPartition, int]


class Edges(NamedTuple):
    """First offset of a partition's log, and its end; with read_committed the end is the last stable offset."""

    first: int
    end: int
    epoch: int = NO_EPOCH
    """Leader epoch in which the leader told the end; `NO_EPOCH` where nobody asked."""

    def placed(self, offset: int) -> int:
        """The offset that `EARLIEST` or `LATEST` stands for; any other one as it is.

        `NO_OFFSET` is the end as well, and `LATEST` has its number: it is what brokers answer for a time that all
        records are older than, and the first one that is not is still to come.
        """
        return self.first if offset == EARLIEST else self.end if offset == LATEST else offset


class OffsetRange(NamedTuple):
    """The records of one partition from `start` up to, not including, `stop`; some of the offsets may have none."""

    topic: str
    partition: int
    start: int
    stop: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets, not of records: compaction and transactions leave gaps."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.start}-{self.stop}"


def between(starts: Offsets, stops: Offsets) -> list[OffsetRange]:
    """Ranges from starts to stops, partition by partition, without the empty ones."""
    return [OffsetRange(*tp, start, stops[tp]) for tp, start in sorted(starts.items()) if start < stops[tp]]


def still_there(starts: Offsets, stops: Offsets, logs: Offsets) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Ranges from starts to stops as far as the logs have them, and those that are gone. `logs`: where each begins."""
    begin = {tp: min(max(start, logs[tp]), max(start, stops[tp])) for tp, start in starts.items()}
    return between(begin, stops), between(starts, begin)


def ends_of(logs: Mapping[TopicPartition, Edges]) -> dict[TopicPartition, int]:
    """End of each log."""
    return {tp: log.end for tp, log in logs.items()}


def total(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.size for each in ranges)


def first_of_each(ranges: Sequence[OffsetRange], limit: int | None) -> list[OffsetRange]:
    """The beginnings of all ranges, `limit` offsets together (None: no limit), in proportion to their sizes.

    As `maxOffsetsPerTrigger` of Spark's own Kafka source shares out, so that all partitions end at about the same time.
    Every range gets one offset at least: with more partitions than `limit` the smallest would never move.
    """
    whole = total(ranges)
    if limit is None or whole <= limit:
        return list(ranges)
    return [each._replace(stop=each.start + max(1, each.size * limit // whole)) for each in ranges]


def largest_first(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Ranges in the order to start their tasks in: a large one that starts last is waited for alone."""
    return sorted(ranges, key=lambda each: (-each.size, each))


def cut(ranges: Sequence[OffsetRange], pieces: int | None) -> list[OffsetRange]:
    """The ranges cut into at least `pieces`, if there are so many offsets; the order within a partition is lost.

    As `minPartitions` of Spark's own Kafka source: each range gets its share of the pieces, of equal size.
    """
    if pieces is None or len(ranges) >= pieces or not ranges:
        return list(ranges)
    whole = total(ranges)
    return [piece for each in ranges for piece in _cut_one(each, -(-each.size * pieces // whole))]


def _cut_one(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = max(1, min(pieces, whole.size))
    edges = [whole.start + whole.size * number // pieces for number in range(pieces + 1)]
    return [whole._replace(start=start, stop=stop) for start, stop in pairwise(edges)]


def skew(ranges: Sequence[OffsetRange]) -> float:
    """Size of the largest range relative to the median, the lower one of two; 1.0 where there is nothing to compare."""
    sizes = sorted(each.size for each in ranges)
    median = sizes[(len(sizes) - 1) // 2] if sizes else 0
    return sizes[-1] / median if median else 1.0
