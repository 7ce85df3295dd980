"""Which record may start next when a worker has several in hand, and how far each partition is done. Pure.

A *lane* is what is handled in order: a partition, the records of one key in it, or a single record. A lane has one
record in hand at most; one that failed and waits keeps its place, and only its lane waits with it.

1. The consumed offset is the lowest unfinished one (or what follows the last record, where all are finished).
2. No record starts `WINDOW` offsets or more beyond it: so far reach the ledger's bits, which say what is done ahead.
3. A suspect, which may have killed a worker, starts only with nothing beside it: nothing in hand, and of nothing the
   outputs on their way. Until its own are delivered nothing else starts.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from itertools import count
from typing import Any

from kunicorn.ipc.bitmap import WINDOW
from kunicorn.worker.progress import InFlight, Lane, OffsetTracker, Slots, Stage


class Scheduler:
    """Decides over all partitions of a worker. Not locked: every caller holds the table's lock."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Records in hand, of all handlers."""
        self.on_their_way = 0
        """Handled, and their outputs not delivered."""
        self.bytes = 0
        """Of all that is queued."""
        self._suspected: deque[Lane] = deque()
        self._alone: InFlight | None = None
        self._numbers = count(1)

    def startable(self, slots: Slots) -> bool:
        """Whether `start` may find another record."""
        return bool(slots.ready or self._suspected) and self._alone is None and slots.busy < slots.most

    @property
    def holds_back(self) -> bool:
        """Whether something waits, or will, for what is on its way to be delivered."""
        return self._alone is not None or bool(self._suspected)

    def starved(self, slots: Slots) -> bool:
        """Whether a slot is free and nothing that is queued may start."""
        free = self._alone is None and slots.busy < slots.most
        return free and not slots.ready and not self._suspected

    # -- arriving ----------------------------------------------------------------------------------------------------

    def arrive(
        self, tracker: OffsetTracker, offset: int, epoch: int, key: bytes | None, message: Any, size: int
    ) -> InFlight | None:
        """Queue a fetched record; its offset is above all that arrived before, unless it is fetched again. None: it is
        done already, or known.
        """
        if tracker.dropped:
            tracker.pass_deleted(offset)
        if offset < tracker.following:
            if not tracker.dropped or tracker.dropped[0].offset != offset:
                return None
            flight = tracker.dropped.popleft()
            flight.message, flight.stage = message, Stage.QUEUED
            self._enqueue(flight)
            return flight
        tracker.following = offset + 1
        lane_key = tracker.slots.lane_key(offset, key)
        lane = tracker.lanes.get(lane_key) or Lane(tracker, lane_key)
        flight = InFlight(next(self._numbers), tracker, lane, offset, epoch, size, message)
        if not tracker.order:
            # What lies between has been deleted or compacted away: nothing there is unfinished.
            tracker.consumed = max(tracker.consumed, offset)
        tracker.order.append(flight)
        if offset in tracker.done_before:
            tracker.done_before.discard(offset)
            flight.stage, flight.message = Stage.DONE, None
            tracker.advance()
            return None
        self._enqueue(flight)
        return flight

    def pass_by(self, tracker: OffsetTracker, position: int) -> None:
        """Move on: the client has given out all that there is before `position`."""
        tracker.pass_deleted(position)
        if not tracker.order:
            tracker.consumed = max(tracker.consumed, position)

    def stand_in(self, tracker: OffsetTracker, position: int, epoch: int) -> InFlight:
        """Record in flight that stands for the offsets before `position` of a partition of which nothing is unfinished:
        on its way, and with nothing to deliver.
        """
        lane = Lane(tracker, None)
        flight = InFlight(next(self._numbers), tracker, lane, position - 1, epoch, 0, None, Stage.SENDING)
        lane.sending[flight] = None
        tracker.following = max(tracker.following, position)
        tracker.order.append(flight)
        tracker.sending.add(flight)
        self.on_their_way += 1
        return flight

    def _enqueue(self, flight: InFlight) -> None:
        tracker, lane = flight.tracker, flight.lane
        lane.queue.append(flight)
        tracker.lanes[lane.key] = lane
        self._count(flight)
        if lane.queue[0] is flight:
            lane.make_ready()

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, slots: Slots, now: int) -> InFlight | None:
        """The next record for a free slot of these, if there is one."""
        if self._alone is not None or slots.busy >= slots.most:
            return None
        while slots.ready and not self._suspected:
            lane = slots.ready.take()
            lane.ready = False
            if (flight := self._first(lane)) is None:
                continue
            if flight.offset in lane.tracker.suspects:
                lane.ready = True
                self._suspected.append(lane)
            else:
                return self._run(flight, now)
        while self._may_be_alone(slots):
            lane = self._suspected.popleft()
            lane.ready = False
            if (flight := self._first(lane)) is not None:
                self._alone = flight
                return self._run(flight, now)
        return None

    def _may_be_alone(self, slots: Slots) -> bool:
        """Whether the next suspect is of these slots, and there is nothing beside it."""
        mine = bool(self._suspected) and self._suspected[0].tracker.slots is slots
        return mine and not self.in_flight and not self.on_their_way

    def _first(self, lane: Lane) -> InFlight | None:
        """The lane's next record, if it may start."""
        tracker = lane.tracker
        if tracker.closed or lane.overtaken is not None:
            return None
        if not lane.queue:
            self._remove(lane)
            return None
        flight = lane.queue[0]
        if flight.stage is not Stage.QUEUED:
            return None
        if flight.offset >= tracker.consumed + WINDOW:
            heappush(tracker.beyond, (flight.offset, flight.number, lane))
            return None
        return flight

    def _remove(self, lane: Lane) -> None:
        """Remove the lane, unless something of it is queued, or on its way and may be refused."""
        if not lane.queue and not lane.sending and lane.tracker.lanes.get(lane.key) is lane:
            del lane.tracker.lanes[lane.key]

    def _run(self, flight: InFlight, now: int) -> InFlight:
        self._unqueue(flight)
        flight.stage, flight.since_ns = Stage.RUNNING, now
        tracker = flight.tracker
        tracker.running[flight] = None
        tracker.slots.busy += 1
        self.in_flight += 1
        return flight

    def _count(self, flight: InFlight) -> None:
        flight.tracker.bytes += flight.size
        self.bytes += flight.size

    def _unqueue(self, flight: InFlight) -> None:
        flight.tracker.bytes -= flight.size
        self.bytes -= flight.size

    # -- ending ------------------------------------------------------------------------------------------------------

    def finish(self, flight: InFlight) -> bool:
        """Note that the record, which is running or whose outputs are delivered, is done; whether its partition's
        consumed offset has moved.
        """
        lane, went_on = flight.lane, flight in flight.lane.sending
        if flight.stage is Stage.SENDING:
            self.arrived(flight)
        else:
            self._put_down(flight)
        flight.stage, flight.message = Stage.DONE, None
        if went_on:
            self._remove(lane)
        else:
            self._go_on(lane)
        return flight.tracker.advance()

    def _go_on(self, lane: Lane) -> None:
        lane.queue.popleft()
        if lane.queue and not lane.tracker.closed:
            lane.make_ready()
        else:
            self._remove(lane)

    def send(self, flight: InFlight, *, lane_waits: bool) -> None:
        """Note that the handler has returned from the running record, which is done when its outputs are delivered; the
        slot is free. `lane_waits`: until then nothing else of its lane is started.
        """
        alone = self._alone
        self._put_down(flight)
        self._alone = alone
        flight.stage = Stage.SENDING
        flight.tracker.sending.add(flight)
        self.on_their_way += 1
        if not lane_waits:
            flight.lane.sending[flight] = None
            self._go_on(flight.lane)

    def arrived(self, flight: InFlight) -> None:
        """Note that nothing of the record is on its way any more: it is delivered or refused, or its partition is
        lost.
        """
        flight.tracker.sending.remove(flight)
        flight.lane.sending.pop(flight, None)
        self.on_their_way -= 1
        if self._alone is flight:
            self._alone = None

    def recall(self, refused: InFlight) -> list[InFlight]:
        """Put that record, which is on its way and refused, and behind it what its lane went on with, before what the
        lane has in hand or queued; what that was. It is to be handled again."""
        lane, tracker = refused.lane, refused.tracker
        if lane.queue and lane.queue[0].stage is Stage.RUNNING:
            lane.overtaken = lane.queue[0]
        recalled = [flight for flight in lane.sending if flight.offset > refused.offset]
        for flight in reversed(recalled):
            self.arrived(flight)
            flight.stage = Stage.QUEUED
            lane.queue.appendleft(flight)
            if not tracker.closed:
                self._count(flight)
        lane.queue.appendleft(refused)
        return recalled

    def overtaken(self, flight: InFlight) -> bool:
        """Whether a refused record was put before this one meanwhile: whatever its handler did, it is handled again."""
        return flight.lane.overtaken is flight or flight.lane.queue[0] is not flight

    def wait(self, flight: InFlight, waits_for: str, why: str) -> None:
        """Have the running record, which failed, wait, and its lane with it."""
        self._put_down(flight)
        flight.stage, flight.waits_for, flight.why = Stage.WAITING, waits_for, why
        flight.tracker.waiting.add(flight)

    def queue_again(self, flight: InFlight) -> None:
        """Make the record its lane's next: it may be tried again, or was interrupted."""
        if flight.stage is Stage.WAITING:
            flight.tracker.waiting.discard(flight)
        else:
            self._put_down(flight)
        flight.stage = Stage.QUEUED
        if flight.lane.overtaken is flight:
            flight.lane.overtaken = None
        if not flight.tracker.closed:
            self._count(flight)
            flight.lane.make_ready(first=True)

    def claim(self, flight: InFlight, now: int) -> None:
        """Take a waiting record, for its next try or its delivery, that is about to be ended by somebody other than the
        handler.
        """
        tracker = flight.tracker
        tracker.waiting.discard(flight)
        if flight.stage is Stage.SENDING:
            self.arrived(flight)
        flight.stage, flight.since_ns = Stage.RUNNING, now
        tracker.running[flight] = None
        tracker.slots.busy += 1
        self.in_flight += 1

    def _put_down(self, flight: InFlight) -> None:
        tracker = flight.tracker
        del tracker.running[flight]
        tracker.slots.busy -= 1
        self.in_flight -= 1
        if self._alone is flight:
            self._alone = None

    # -- making room -------------------------------------------------------------------------------------------------

    def shed(self, tracker: OffsetTracker, keep_bytes: int) -> InFlight | None:
        """Drop what is queued beyond so many bytes, from its end; the first that is to be fetched again, if any."""
        dropped: deque[InFlight] = deque()
        for flight in reversed(tracker.order):
            if tracker.bytes <= keep_bytes:
                break
            if flight.stage is Stage.QUEUED and not flight.failures and flight.lane.queue[-1] is flight:
                flight.lane.queue.pop()
                self._unqueue(flight)
                flight.stage, flight.message = Stage.DROPPED, None
                dropped.appendleft(flight)
        # What was dropped before, and is not back yet, lies beyond what is queued now.
        tracker.dropped = deque(sorted((*dropped, *tracker.dropped), key=lambda flight: flight.offset))
        return tracker.dropped[0] if tracker.dropped else None

    def close(self, tracker: OffsetTracker) -> None:
        """Start nothing more of the partition; what runs goes on."""
        tracker.closed = True
        self.bytes -= tracker.bytes
        tracker.bytes = 0
        tracker.waiting.clear()
        tracker.dropped.clear()
        tracker.slots.ready.drop(tracker)
        for lane in self._suspected:
            if lane.tracker is tracker:
                lane.ready = False
        self._suspected = deque(lane for lane in self._suspected if lane.tracker is not tracker)
        tracker.beyond.clear()
