"""What has really become of every record, and what may never be seen because of that. Pure.

A record is *finished* when its handler returned and everything that it left is delivered, when it has got the end that
the settings give it (skipped, or a dead letter that has arrived), or when the log has it no more. Nothing that a
worker says of a partition, in the ledger or over the pipe, may pass a record that is not.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from kunicorn.positions import NO_EPOCH, TopicPartition

NOTHING_LEFT = 1 << 62

_OFFSETS_AN_EPOCH = 5
"""So often the logs have got another leader."""


def epoch_of(offset: int) -> int:
    """Leader epoch in which the record with that offset was written."""
    return offset // _OFFSETS_AN_EPOCH


def epoch_before(offset: int) -> int:
    """Leader epoch of what was read last by whoever reads that offset next."""
    return epoch_of(offset - 1) if offset > 0 else NO_EPOCH


class Violation(AssertionError):
    """Something was seen that must never be."""


@dataclass(slots=True, eq=False)
class Record:
    """One record of the log, as long as the story lasts."""

    tp: TopicPartition
    offset: int
    key: bytes
    message: Message
    finished: bool = False
    how: str = ""
    handled: bool = False
    """Its handler has returned, and nothing that it left was refused since."""
    given_up: bool = False
    """It has failed for good, and a dead letter takes its place."""
    failures: int = 0
    filtered: bool = False
    """It is not for its handler: done without it, and no letter either."""
    spoilt: bool = False
    """It cannot be decoded: it ends as the settings say, and its handler never sees it."""
    begun_under: int = 0
    """Grant under which its handler was called last; 0: under none."""
    letter_under: int = 0
    """Grant that the dead letter is of that was produced last; 0: there was none."""
    refused_under: int = 0
    """Grant under which its dead letter was refused last; 0: under none."""
    committed_outputs: int = 0
    """Calls of the handler whose outputs for it are in a transaction that was committed."""

    def finish(self, how: str) -> None:
        """Nothing more needs to be done about it."""
        if not self.finished:
            self.finished, self.how = True, how


@dataclass(slots=True, eq=False)
class Call:
    """One call of the handler."""

    number: int
    records: Sequence[Record]
    running: bool = True
    returned: bool = False
    outputs: int = 0
    delivered: set[int] = field(default_factory=set)

    def left(self, outputs: int) -> None:
        """The handler has returned, with so much to send."""
        self.returned, self.outputs = True, outputs
        for record in self.records:
            record.handled = True
        self._look()

    def refused(self) -> None:
        """The brokers do not take one of them."""
        for record in self.records:
            record.handled = False

    def arrived(self, output: int) -> None:
        """One of them is delivered."""
        self.delivered.add(output)
        self._look()

    def _look(self) -> None:
        if self.returned and len(self.delivered) >= self.outputs:
            for record in self.records:
                record.finish("handled")


class Log:
    """One partition's."""

    def __init__(self, tp: TopicPartition, records: Sequence[Record], begin: int, end: int) -> None:
        """`end`: behind the last record, or behind what comes after it and is none."""
        self.tp, self.records, self.begin, self.end = tp, list(records), begin, end
        self.offsets = [record.offset for record in records]
        self.gone: set[int] = set()
        """Offsets of records that were deleted."""
        self.known = {record.offset: record for record in records}
        self.visible = 0
        """So many records have been written by now."""
        self._passed = 0

    def at(self, offset: int) -> Record | None:
        """The record with that offset."""
        at = bisect_left(self.offsets, offset)
        return self.records[at] if at < len(self.offsets) and self.offsets[at] == offset else None

    def from_offset(self, offset: int, most: int = sys.maxsize) -> Sequence[Record]:
        """What can be fetched from there on, so many at most."""
        at = bisect_left(self.offsets, offset)
        return self.records[at : min(self.visible, at + most)]

    def between(self, first: int, last: int) -> Sequence[Record]:
        """The records behind the one and before the other."""
        return self.records[bisect_right(self.offsets, first) : bisect_left(self.offsets, last)]

    @property
    def unfinished(self) -> int:
        """The lowest offset of a record that is not finished."""
        records = self.records
        while self._passed < len(records) and records[self._passed].finished:
            self._passed += 1
        return records[self._passed].offset if self._passed < len(records) else NOTHING_LEFT

    def compact(self, at: int) -> Record:
        """Delete that record."""
        record = self.records.pop(at)
        self.gone.add(self.offsets.pop(at))
        self._passed = 0
        self.visible -= at < self.visible
        return record

    def forget(self, offset: int) -> None:
        """From there on nothing has been done: everything is to be handled again."""
        self._passed = 0
        for record in self.records[bisect_left(self.offsets, offset) :]:
            record.finished = record.handled = record.given_up = False
            record.how, record.failures, record.committed_outputs = "", 0, 0

    def check_passed(self, offset: int, who: str) -> None:
        """Raises `Violation` where that offset lies beyond an unfinished record."""
        if offset > self.unfinished:
            raise Violation(f"{who} says {offset} of {self.tp}, and record {self.unfinished} is not finished")

    def check_epoch(self, offset: int, epoch: int, who: str) -> None:
        """Raises `Violation` where that offset lies beyond the end of that leader epoch: whoever goes on from there has
        to take it for one that was truncated.
        """
        if epoch != NO_EPOCH and offset > (epoch + 1) * _OFFSETS_AN_EPOCH:
            raise Violation(f"{who} says {offset} of {self.tp} in leader epoch {epoch}, which ended before that")

    def check_done(self, offsets: Collection[int], who: str) -> None:
        """Raises `Violation` where one of these is not finished, or never was."""
        for offset in offsets:
            record = self.at(offset)
            if offset not in self.gone and (record is None or not record.finished):
                what = "is not finished" if record is not None else "is no record"
                raise Violation(f"{who} says that {offset} of {self.tp} is done, which {what}")


class Order:
    """In which order records come to the handler under one grant."""

    def __init__(self, log: Log, start: int, done: Collection[int], ordering: str) -> None:
        self._log, self._start, self._done, self._ordering = log, start, frozenset(done), ordering
        self._last: dict[bytes, tuple[int, int]] = {}
        """Of each lane: the first and the last record of its last call."""
        self._begun: set[int] = set()
        """Offsets of records that came to the handler under this grant."""

    def begin(self, records: Sequence[Record]) -> None:
        """One call has these, and begins. Raises `Violation`."""
        lane = records[0].key if self._ordering == "key" else b""
        first, last = self._last.get(lane, (self._start - 1, self._start - 1))
        # One that failed may come again, also when the brokers have just refused something before it: the worker learns
        # of that once everything of that transaction is answered.
        previous = last if records[0].offset != first else first - 1
        for record in records:
            self._check(record, previous)
            self._begun.add(record.offset)
            previous = record.offset
        self._last[lane] = records[0].offset, previous

    def _check(self, record: Record, last: int) -> None:
        if record.offset < self._start:
            raise Violation(f"{record.offset} is handled under a grant that begins at {self._start}")
        if self._ordering == "none":
            return
        again = record.offset <= last
        for other in self._log.between(self._start - 1 if again else last, record.offset):
            mine = self._ordering == "partition" or other.key == record.key
            known = (
                other.finished
                or other.given_up
                or other.offset in self._done
                or (again and other.offset in self._begun)
            )
            if mine and not known:
                raise Violation(f"{record.offset} of {record.tp} is handled after {last}, before {other.offset}")
