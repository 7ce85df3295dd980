"""Reader of a range of offsets as columns, by our own fetcher: `RangeReader` without an object a record. Blocks.

1. It keeps what `range_reader` says: a range ends by place, which is the next offset to fetch and counts markers,
   aborted records and what compaction has taken; what is missing at the beginning is an error that names it.
2. Records are asked for by the topic's id: if a topic is created anew while it is read, that is an error, and never the
   other topic's records.
3. The fetcher's thread fetches and decodes ahead, as much as its queue holds, while the caller works on what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any

from kunicorn.clients.range_reader import (
    GONE_REMEDY,
    NO_EPOCHS,
    PATIENCE_SECONDS,
    UNKNOWN_EDGES,
    RangeUnreadable,
    first_left,
    gone,
    silent,
)
from kunicorn.errors import PeerError, ServiceError
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.queue import Fetched, FetchQueue
from kunicorn.fetch.table import Fetching, Place
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import before
from kunicorn.ipc.messages import FailureKind
from kunicorn.positions import NO_EPOCH, Edges, OffsetRange, TopicPartition

_POLL_SECONDS = 0.2
BEHIND_DAMAGE = "none behind it is read"


class ColumnReader:
    """Reads ranges with one fetcher: one after the other, or several at once. Every method blocks."""

    def __init__(
        self,
        fetcher: Fetcher,
        queue: FetchQueue,
        edges: Callable[[TopicPartition], Edges],
        patience: float = PATIENCE_SECONDS,
        *,
        passes_over_deleted: bool = False,
    ) -> None:
        """`fetcher` is begun, and this reader's alone; `queue` is what it fills.

        `edges` asks the brokers for a log's edges, and raises a `ServiceError` where it cannot be had. The others are
        as `RangeReader` has them.
        """
        self._fetcher, self._queue, self._ask = fetcher, queue, edges
        self._patience = patience
        self._passes_over_deleted = passes_over_deleted
        self._numbers = count(1)

    def read(
        self,
        *wanted: OffsetRange,
        epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
        aside: Collection[TopicPartition] = (),
    ) -> Iterator[Run]:
        """Rows of the ranges, of one partition at a time; of each, in offset order. While none come, an empty run as
        `RangeReader.read` has it. Raises `RangeUnreadable`, after what came before it.

        A partition is in one of the ranges at most. `epochs` and `aside` as `RangeReader.read` has them.
        """
        reading = _Reading({each.tp: each for each in wanted if each.start < each.stop})
        for tp, each in reading.left.items():
            self._place(reading, tp, each.start, epochs.get(tp, NO_EPOCH))
        try:
            yield from self._until_the_end(reading, aside)
        finally:
            for tp, number in reading.numbers.items():
                self._remove(reading, tp, number)
            while self._queue.get(0) is not None:
                pass

    def close(self) -> None:
        """End the fetcher."""
        self._fetcher.close()

    def _until_the_end(self, reading: _Reading, aside: Collection[TopicPartition]) -> Iterator[Run]:
        heard = time.monotonic()
        while reading.left:
            if self._set_aside(reading, aside):
                heard = time.monotonic()
            fetched = reading.counted(self._queue.get(_POLL_SECONDS))
            if fetched is not None and fetched.news.fault is None:
                # Aborted records and markers are heard of, too: brokers that are slow with them are not gone.
                heard = time.monotonic()
            given = time.monotonic()
            yield reading.within(fetched)
            heard += time.monotonic() - given  # The handler's time is not the brokers'.
            if fetched is not None:
                self._pass(reading, fetched)
            waited_for = next((each for tp, each in reading.left.items() if tp in reading.numbers), None)
            if waited_for is not None and time.monotonic() - heard > self._patience:
                raise self._silent(waited_for)

    def _set_aside(self, reading: _Reading, aside: Collection[TopicPartition]) -> bool:
        """Fetch what is not set aside, each from where it was; whether that is another set now."""
        changed = [tp for tp in reading.left if (tp in aside) == (tp in reading.numbers)]
        for tp in changed:
            if tp in aside:
                # What the queue has of it does not count any more, and comes again.
                self._remove(reading, tp, reading.numbers.pop(tp))
            else:
                self._place(reading, tp, *reading.at[tp])
        return bool(changed)

    def _pass(self, reading: _Reading, fetched: Fetched) -> None:
        """Take note of how far the range has come. Raises `RangeUnreadable`."""
        wanted = reading.left[fetched.news.tp]
        reading.at[wanted.tp] = fetched.news.next_offset, fetched.news.epoch
        if fetched.news.next_offset >= wanted.stop:
            del reading.left[wanted.tp]
        elif fetched.news.fault is not None:
            self._meet(reading, wanted, fetched)

    def _meet(self, reading: _Reading, wanted: OffsetRange, fetched: Fetched) -> None:
        """Go on behind what was deleted, where that is accepted. Raises `RangeUnreadable` for every other fault."""
        at, fault = fetched.news.next_offset, fetched.news.fault
        assert fault is not None
        if fault.kind is not FailureKind.OUT_OF_RANGE:
            raise RangeUnreadable(f"{wanted.tp} cannot be read: {fault.error}")
        log = self._edges(wanted.tp)
        if self._passes_over_deleted and (first := first_left(wanted, at, log)) is not None:
            if first >= wanted.stop:
                del reading.left[wanted.tp]
            else:
                self._place(reading, wanted.tp, first)
            return
        if 0 <= log.end < at:
            raise silent(wanted, log, self._patience)
        if log.first > at:
            raise gone(wanted, at, log, GONE_REMEDY)
        # Nothing is known to be lost: that would have a person accept a loss that there is none of.
        told = f"its leader has {log.first} to {log.end}" if log.end >= 0 else "its leader does not say what it has"
        raise RangeUnreadable(f"{fault.error}, and {told} now: who leads the log may just have changed; start again")

    def _silent(self, wanted: OffsetRange) -> RangeUnreadable:
        try:
            return silent(wanted, self._ask(wanted.tp), self._patience)
        except (ServiceError, PeerError) as error:
            return RangeUnreadable(f"{wanted}: no record for {self._patience:g} s: {error}")

    def _edges(self, tp: TopicPartition) -> Edges:
        try:
            return self._ask(tp)
        except (ServiceError, PeerError):
            return UNKNOWN_EDGES

    def _place(self, reading: _Reading, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        reading.at[tp] = offset, epoch
        number = reading.numbers[tp] = next(self._numbers)
        stop = reading.left[tp].stop

        def put(table: Fetching) -> None:
            reading.keep_topic(table.get(tp))
            table.place(tp, number, offset, epoch, stop, topic_id=reading.topics.get(tp, b""))

        self._fetcher.call(put)

    def _remove(self, reading: _Reading, tp: TopicPartition, number: int) -> None:
        def take_away(table: Fetching) -> None:
            reading.keep_topic(table.get(tp))
            table.remove(tp, number)

        self._fetcher.call(take_away)


class _Reading:
    """What one call of `read` still has to give out."""

    def __init__(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        self.left = dict(ranges)
        self.numbers: dict[TopicPartition, int] = {}
        """Of each partition's placing, unless it is set aside: what was fetched for an earlier one does not count."""
        self.at: dict[TopicPartition, tuple[int, int]] = {}
        """The next offset of each partition, and the leader epoch of what is before it."""
        self.topics: dict[TopicPartition, bytes] = {}
        """Ids of the topics that something was fetched of. The fetcher's thread alone looks at it."""

    def keep_topic(self, place: Place | None) -> None:
        """Take note of which topic the offsets of this placing are of, for the next one. Caller: the fetcher's
        thread."""
        if place is not None and place.of_topic and place.topic_id:
            self.topics[place.tp] = place.topic_id

    def counted(self, fetched: Fetched | None) -> Fetched | None:
        """What was fetched, if it is of a range; None where it does not count."""
        if fetched is None or self.numbers.get(fetched.news.tp) != fetched.news.number:
            return None
        return fetched if fetched.news.tp in self.left else None

    def within(self, fetched: Fetched | None) -> Run:
        """Rows of it that are within its range; an empty run where none are."""
        rows: Any = None if fetched is None else fetched.rows
        return [] if fetched is None or rows is None else before(rows, self.left[fetched.news.tp].stop)
