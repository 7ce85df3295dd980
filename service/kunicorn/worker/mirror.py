"""Writers of one partition's progress into its ledger slot, so that the supervisor knows it after a SIGKILL.

`RunMirror`, where one call at a time has a run of the partition's records: words say what is in hand, and the call
itself stores how far it is. `MarkedMirror`, where several calls have a record each: bits say what is in hand, and what
is done beyond the consumed offset. Bits before offsets, and offsets before bits that are cleared: a record that SIGKILL
hits between two stores is at worst handled again, never passed over (see `ipc.bitmap`).

Every caller holds the table's lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kunicorn.handler.rows import first_timestamp
from kunicorn.ipc import bitmap
from kunicorn.ipc.ledger import (
    CONSUMED,
    HAND_COUNT,
    HAND_END,
    HAND_OFFSET,
    HAND_SINCE,
    HANDLED,
    LEADER_EPOCH,
    TIMESTAMP,
    Ledger,
)
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position
from kunicorn.worker.progress import InFlight, OffsetTracker


class Mirror(ABC):
    """Writer of one partition's progress into the ledger."""

    def __init__(self, tracker: OffsetTracker, ledger: Ledger, slot: int) -> None:
        """Open the slot. Caller: the control thread."""
        ledger.open_slot(slot, tracker.grant, Position(tracker.consumed, tracker.epoch))
        self.tracker = tracker
        self._cells = ledger.cells
        self._at, self._busy_at = ledger.index(slot), ledger.busy_index(slot)

    @property
    def consumed(self) -> Position:
        """What the ledger says."""
        return Position(self._cells[self._at + CONSUMED], self._cells[self._at + LEADER_EPOCH])

    def handled(self, records: int) -> None:
        """Add records that are finished under this grant."""
        self._cells[self._at + HANDLED] += records

    def took(self, nanoseconds: int) -> None:
        """Add a call's duration, by its share of the handler's slots."""
        self._cells[self._busy_at] += nanoseconds // self.tracker.slots.most

    @abstractmethod
    def taken(self, flight: InFlight) -> None:
        """Mark the records as in hand."""

    @abstractmethod
    def returned(self, flight: InFlight) -> None:
        """Note the handler's return; the outputs are on their way: a worker that dies before they are delivered may
        have died of these records.
        """

    @abstractmethod
    def left(self, flight: InFlight) -> None:
        """Unmark the records: the handler has returned, and none of their outputs is on its way."""

    @abstractmethod
    def done(self, flight: InFlight, records: int, *, moved: bool) -> None:
        """Mark so many records as done; `moved`: the consumed offset has moved with them."""

    @abstractmethod
    def store(self) -> None:
        """Store the consumed offset, where it has moved."""

    def in_hand(self, flight: InFlight) -> int:
        """First unfinished offset of what the handler has."""
        return flight.offset


class RunMirror(Mirror):
    """Writer for a partition of which one call at a time has a run."""

    def __init__(self, tracker: OffsetTracker, ledger: Ledger, slot: int, *, delivers: bool) -> None:
        """`delivers`: what is handled counts as consumed only once it is delivered."""
        ledger.use_runs(slot, delivered=delivers)
        super().__init__(tracker, ledger, slot)
        self._delivers = delivers
        self.progress = self._at + (HAND_OFFSET if delivers else CONSUMED)
        """The ledger's word in which a call stores how far it is."""
        self._forgets_at = NO_OFFSET
        """Once this offset is consumed, what is done ahead is looked through again."""

    def taken(self, flight: InFlight) -> None:
        cells, at = self._cells, self._at
        if cells[at + LEADER_EPOCH] != flight.epoch:
            # Before the first offset of that epoch: an older offset with a newer epoch is harmless.
            cells[at + LEADER_EPOCH] = flight.epoch
        if self._delivers and self.tracker.consumed > cells[at + CONSUMED]:
            # Markers and compacted records lie between: what is not delivered begins with this one.
            cells[at + CONSUMED] = self.tracker.consumed
        cells[at + HAND_OFFSET] = flight.offset
        cells[self._busy_at + HAND_END] = flight.end
        cells[at + HAND_SINCE] = flight.since_ns
        cells[at + TIMESTAMP] = first_timestamp(flight.messages)
        cells[at + HAND_COUNT] = len(flight.messages)

    def returned(self, flight: InFlight) -> None:
        self._put_down()

    def left(self, flight: InFlight) -> None:
        self._put_down()

    def done(self, flight: InFlight, records: int, *, moved: bool) -> None:
        if moved:
            self.store()
        self.handled(records)
        self._put_down()

    def store(self) -> None:
        cells, at, tracker = self._cells, self._at, self.tracker
        if tracker.consumed > cells[at + CONSUMED]:
            # A call that moves the consumed offset by itself goes by the epoch that was stored when it began.
            if tracker.epoch != NO_EPOCH and (self._delivers or not tracker.running):
                cells[at + LEADER_EPOCH] = tracker.epoch
            cells[at + CONSUMED] = tracker.consumed
        if tracker.done_before:
            self._forget_done(cells[at + CONSUMED])

    def _forget_done(self, consumed: int) -> None:
        """Drop what was done ahead of offsets that are consumed by now, as the ledger has it."""
        if consumed >= self._forgets_at:
            done = self.tracker.done_before = {each for each in self.tracker.done_before if each >= consumed}
            # Not with each record: where many of a batch are done ahead, that would cost its square.
            self._forgets_at = consumed + len(done)

    def in_hand(self, flight: InFlight) -> int:
        return int(max(self._cells[self._at + HAND_OFFSET], self._cells[self._at + CONSUMED]))

    def _put_down(self) -> None:
        if self.tracker.running:
            return
        self._cells[self._at + HAND_COUNT] = 0
        if self._delivers:
            self._cells[self._at + HAND_OFFSET] = self.tracker.handled_to


class MarkedMirror(Mirror):
    """Writer for a partition of which several calls have a record each."""

    def __init__(self, tracker: OffsetTracker, ledger: Ledger, slot: int) -> None:
        ledger.use_marks(slot)
        self._done, self._in_hand = ledger.done(slot), ledger.in_hand(slot)
        self._done.clear()
        self._in_hand.clear()
        super().__init__(tracker, ledger, slot)
        self._timed = NO_OFFSET
        """The record whose timestamp is stored."""

    def taken(self, flight: InFlight) -> None:
        self._in_hand.mark(flight.offset)
        cells, at, running = self._cells, self._at, self.tracker.running
        if len(running) == 1:
            cells[at + HAND_OFFSET], cells[at + HAND_SINCE] = flight.offset, flight.since_ns
        cells[at + HAND_COUNT] = len(running)

    def returned(self, flight: InFlight) -> None:
        cells, at, running = self._cells, self._at, self.tracker.running
        if running and cells[at + HAND_OFFSET] == flight.offset:
            first = next(iter(running))
            cells[at + HAND_OFFSET], cells[at + HAND_SINCE] = first.offset, first.since_ns
        cells[at + HAND_COUNT] = len(running)

    def left(self, flight: InFlight) -> None:
        self._in_hand.unmark(flight.offset)
        self.returned(flight)

    def done(self, flight: InFlight, records: int, *, moved: bool) -> None:
        if moved:
            self.store()
        else:
            self._done.mark(flight.offset)
        self.handled(records)
        self.left(flight)

    def store(self) -> None:
        cells, at, tracker = self._cells, self._at, self.tracker
        first = tracker.order[0] if tracker.order else None
        # Also the first one that comes when all are done: the lag in seconds would be counted from the one before.
        if first is not None and first.messages and first.offset != self._timed:
            cells[at + TIMESTAMP] = first.messages[0].timestamp()[1]
            self._timed = first.offset
        if first is not None and cells[at + LEADER_EPOCH] == NO_EPOCH:
            # Begun without one: nobody would find that the log was cut while this record waits. That an older offset
            # has a newer epoch is harmless.
            cells[at + LEADER_EPOCH] = first.epoch
        moved = tracker.consumed != cells[at + CONSUMED]
        if not moved:
            return
        if tracker.consumed - cells[at + CONSUMED] >= bitmap.WINDOW:
            # So far their bits would stand for offsets beyond the new one until they are cleared.
            self._done.clear()
            self._in_hand.clear()
        if tracker.epoch != NO_EPOCH:
            cells[at + LEADER_EPOCH] = tracker.epoch
        cells[at + CONSUMED] = tracker.consumed
        for offset in tracker.passed:
            self._done.unmark(offset)
        tracker.passed.clear()
