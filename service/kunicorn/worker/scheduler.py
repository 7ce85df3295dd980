"""Which record may start next when a worker has several in hand, and how far each partition is done. Pure.

A *lane* is what is handled in order: a partition, the records of one key in it, or a single record. A lane has one
record in a handler's hands at most; one that failed and waits keeps its place, and only its lane waits with it.

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
from kunicorn.worker.progress import Flight, Hands, Lane, Stage, Track, make_ready, note_gone, settle


class Lanes:
    """All partitions of a worker. Not locked: every caller holds the table's lock."""

    def __init__(self) -> None:
        self.in_flight = 0
        """In all hands together."""
        self.on_their_way = 0
        """Handled, and their outputs not delivered."""
        self.bytes = 0
        """Of all that is queued."""
        self._suspected: deque[Lane] = deque()
        self._alone: Flight | None = None
        self._numbers = count(1)

    def startable(self, hands: Hands) -> bool:
        """Whether `start` may find another one."""
        return bool(hands.ready or self._suspected) and self._alone is None and hands.busy < hands.most

    @property
    def holds_back(self) -> bool:
        """Whether something waits, or will, for what is on its way to be delivered."""
        return self._alone is not None or bool(self._suspected)

    def starved(self, hands: Hands) -> bool:
        """A hand is free and nothing that is queued may start."""
        free = self._alone is None and hands.busy < hands.most
        return free and not hands.ready and not self._suspected

    # -- arriving ----------------------------------------------------------------------------------------------------

    def arrive(
        self, track: Track, offset: int, epoch: int, key: bytes | None, message: Any, size: int
    ) -> Flight | None:
        """A record was fetched; its offset is above all that arrived before, unless it is fetched again. None: it is
        done already, or known."""
        if track.dropped:
            note_gone(track, offset)
        if offset < track.following:
            if not track.dropped or track.dropped[0].offset != offset:
                return None
            flight = track.dropped.popleft()
            flight.message, flight.stage = message, Stage.QUEUED
            self._enqueue(flight)
            return flight
        track.following = offset + 1
        lane_key = track.hands.lane_key(offset, key)
        lane = track.lanes.get(lane_key) or Lane(track, lane_key)
        flight = Flight(next(self._numbers), track, lane, offset, epoch, size, message)
        if not track.order:
            # What lies between has been deleted or compacted away: nothing there is unfinished.
            track.consumed = max(track.consumed, offset)
        track.order.append(flight)
        if offset in track.done_before:
            track.done_before.discard(offset)
            flight.stage, flight.message = Stage.DONE, None
            settle(track)
            return None
        self._enqueue(flight)
        return flight

    def pass_by(self, track: Track, position: int) -> None:
        """The client has given out all that there is before `position`."""
        note_gone(track, position)
        if not track.order:
            track.consumed = max(track.consumed, position)

    def stand_in(self, track: Track, position: int, epoch: int) -> Flight:
        """One that stands for the offsets before `position` of a partition of which nothing is unfinished: on its way,
        and with nothing to deliver."""
        flight = Flight(next(self._numbers), track, Lane(track, None), position - 1, epoch, 0, None, Stage.SENDING)
        flight.lane.sending[flight] = None
        track.following = max(track.following, position)
        track.order.append(flight)
        track.sending.add(flight)
        self.on_their_way += 1
        return flight

    def _enqueue(self, flight: Flight) -> None:
        track, lane = flight.track, flight.lane
        lane.queue.append(flight)
        track.lanes[lane.key] = lane
        self._count(flight)
        if lane.queue[0] is flight:
            make_ready(lane)

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, hands: Hands, now: int) -> Flight | None:
        """The next record for a free hand of these, if there is one."""
        if self._alone is not None or hands.busy >= hands.most:
            return None
        while hands.ready and not self._suspected:
            lane = hands.ready.take()
            lane.ready = False
            if (flight := self._first(lane)) is None:
                continue
            if flight.offset in lane.track.suspects:
                lane.ready = True
                self._suspected.append(lane)
            else:
                return self._run(flight, now)
        while self._may_be_alone(hands):
            lane = self._suspected.popleft()
            lane.ready = False
            if (flight := self._first(lane)) is not None:
                self._alone = flight
                return self._run(flight, now)
        return None

    def _may_be_alone(self, hands: Hands) -> bool:
        """Whether the next suspect is of these hands, and there is nothing beside it."""
        mine = bool(self._suspected) and self._suspected[0].track.hands is hands
        return mine and not self.in_flight and not self.on_their_way

    def _first(self, lane: Lane) -> Flight | None:
        """The lane's next record, if it may start."""
        track = lane.track
        if track.closed or lane.overtaken is not None:
            return None
        if not lane.queue:
            self._remove(lane)
            return None
        flight = lane.queue[0]
        if flight.stage is not Stage.QUEUED:
            return None
        if flight.offset >= track.consumed + WINDOW:
            heappush(track.beyond, (flight.offset, flight.number, lane))
            return None
        return flight

    def _remove(self, lane: Lane) -> None:
        """Unless something of it is queued, or on its way and may be refused."""
        if not lane.queue and not lane.sending and lane.track.lanes.get(lane.key) is lane:
            del lane.track.lanes[lane.key]

    def _run(self, flight: Flight, now: int) -> Flight:
        self._unqueue(flight)
        flight.stage, flight.since_ns = Stage.RUNNING, now
        track = flight.track
        track.running[flight] = None
        track.hands.busy += 1
        self.in_flight += 1
        return flight

    def _count(self, flight: Flight) -> None:
        flight.track.bytes += flight.size
        self.bytes += flight.size

    def _unqueue(self, flight: Flight) -> None:
        flight.track.bytes -= flight.size
        self.bytes -= flight.size

    # -- ending ------------------------------------------------------------------------------------------------------

    def finish(self, flight: Flight) -> bool:
        """The record, which is running or whose outputs are delivered, is done with; whether its partition's consumed
        offset has moved."""
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
        return settle(flight.track)

    def _go_on(self, lane: Lane) -> None:
        lane.queue.popleft()
        if lane.queue and not lane.track.closed:
            make_ready(lane)
        else:
            self._remove(lane)

    def send(self, flight: Flight, *, lane_waits: bool) -> None:
        """The handler has returned from the running record, which is done when its outputs are delivered; the hand is
        free. `lane_waits`: until then nothing else of its lane is started."""
        alone = self._alone
        self._put_down(flight)
        self._alone = alone
        flight.stage = Stage.SENDING
        flight.track.sending.add(flight)
        self.on_their_way += 1
        if not lane_waits:
            flight.lane.sending[flight] = None
            self._go_on(flight.lane)

    def arrived(self, flight: Flight) -> None:
        """Nothing of it is on its way any more: it is delivered or refused, or its partition is lost."""
        flight.track.sending.remove(flight)
        flight.lane.sending.pop(flight, None)
        self.on_their_way -= 1
        if self._alone is flight:
            self._alone = None

    def recall(self, refused: Flight) -> list[Flight]:
        """Put that record, which is on its way and refused, and behind it what its lane went on with, before what the
        lane has in hand or queued; what that was. It is to be handled again."""
        lane, track = refused.lane, refused.track
        if lane.queue and lane.queue[0].stage is Stage.RUNNING:
            lane.overtaken = lane.queue[0]
        recalled = [flight for flight in lane.sending if flight.offset > refused.offset]
        for flight in reversed(recalled):
            self.arrived(flight)
            flight.stage = Stage.QUEUED
            lane.queue.appendleft(flight)
            if not track.closed:
                self._count(flight)
        lane.queue.appendleft(refused)
        return recalled

    def overtaken(self, flight: Flight) -> bool:
        """Whether a refused record was put before this one meanwhile: whatever its handler did, it is handled again."""
        return flight.lane.overtaken is flight or flight.lane.queue[0] is not flight

    def wait(self, flight: Flight, waits_for: str, why: str) -> None:
        """The running record failed, and its lane waits with it."""
        self._put_down(flight)
        flight.stage, flight.waits_for, flight.why = Stage.WAITING, waits_for, why
        flight.track.waiting.add(flight)

    def queue_again(self, flight: Flight) -> None:
        """A waiting record may be tried again, or a running one was interrupted: it is its lane's next."""
        if flight.stage is Stage.WAITING:
            flight.track.waiting.discard(flight)
        else:
            self._put_down(flight)
        flight.stage = Stage.QUEUED
        if flight.lane.overtaken is flight:
            flight.lane.overtaken = None
        if not flight.track.closed:
            self._count(flight)
            make_ready(flight.lane, first=True)

    def take_up(self, flight: Flight, now: int) -> None:
        """A record that waits, for its next try or its delivery, is about to be ended by somebody other than the
        handler."""
        track = flight.track
        track.waiting.discard(flight)
        if flight.stage is Stage.SENDING:
            self.arrived(flight)
        flight.stage, flight.since_ns = Stage.RUNNING, now
        track.running[flight] = None
        track.hands.busy += 1
        self.in_flight += 1

    def _put_down(self, flight: Flight) -> None:
        track = flight.track
        del track.running[flight]
        track.hands.busy -= 1
        self.in_flight -= 1
        if self._alone is flight:
            self._alone = None

    # -- making room -------------------------------------------------------------------------------------------------

    def shed(self, track: Track, keep_bytes: int) -> Flight | None:
        """Drop what is queued beyond so many bytes, from its end; the first that is to be fetched again, if any."""
        dropped: deque[Flight] = deque()
        for flight in reversed(track.order):
            if track.bytes <= keep_bytes:
                break
            if flight.stage is Stage.QUEUED and not flight.failures and flight.lane.queue[-1] is flight:
                flight.lane.queue.pop()
                self._unqueue(flight)
                flight.stage, flight.message = Stage.DROPPED, None
                dropped.appendleft(flight)
        # What was dropped before, and is not back yet, lies beyond what is queued now.
        track.dropped = deque(sorted((*dropped, *track.dropped), key=lambda flight: flight.offset))
        return track.dropped[0] if track.dropped else None

    def close(self, track: Track) -> None:
        """Nothing of it is started any more; what runs goes on."""
        track.closed = True
        self.bytes -= track.bytes
        track.bytes = 0
        track.waiting.clear()
        track.dropped.clear()
        track.hands.ready.drop(track)
        for lane in self._suspected:
            if lane.track is track:
                lane.ready = False
        self._suspected = deque(lane for lane in self._suspected if lane.track is not track)
        track.beyond.clear()
