"""Which records may start next, and how far each partition is done. Pure.

A *lane* is what is handled in order: a partition, the records of one key in it, or a single record. Of a lane one call
at most is in hand; what failed and waits keeps its place, and only its lane waits with it.

1. The consumed offset is the lowest unfinished one (or what follows the last record, where all are finished).
2. Where several calls have records of one partition, none starts `WINDOW` offsets or more beyond the consumed one: so
   far reach the ledger's bits, which say what is done ahead.
3. A suspect, which may have killed a worker, starts only with nothing beside it: nothing in hand, and of nothing the
   outputs on their way. Until its own are delivered nothing else starts. Letters are waited for no longer than a
   moment: their topic may be away.
4. Where a call gets a run, records stay together as they were fetched, and are cut when a call takes them. A batch
   waits no longer than its handler's bounds say, and only for more of its own partition and leader epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappush
from itertools import chain, count, islice, takewhile
from typing import Any

from kunicorn.handler.call import Decided
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import apart, beginning_at, ends, fitting, joined, value_bytes
from kunicorn.ipc.bitmap import WINDOW
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import NO_OFFSET
from kunicorn.worker.progress import Bounds, Filled, InFlight, Lane, OffsetTracker, Slots, Stage

_LETTER_NS = NANOSECONDS
"""So long a letter is waited for, also before a suspect: by then it has killed no worker."""
UNLIMITED = 2**62
"""Room for records where none of them leaves outputs to be delivered."""
_FAILURES_AHEAD = 1000
"""So many may the loop have yet to come to: each keeps its record and its exception's frames in memory."""


class Scheduler:
    """Decides over all partitions of a worker. Not locked: every caller holds the table's lock."""

    def __init__(self) -> None:
        self.in_flight = 0
        """Calls under way, of all handlers."""
        self.on_their_way = 0
        """Handled, and their outputs not delivered."""
        self._failed = 0
        """Calls that have failed, and of which nobody knows yet what becomes of their records."""
        self.bytes = 0
        """Of all that is queued."""
        self._filling_bytes = 0
        """Of that, what waits for fuller batches."""
        self.parked_bytes = 0
        """Of all that waits for its next try, for its letter (on its way, too), or for its limit."""
        self._letters: dict[InFlight, None] = {}
        """On their way, the oldest first, until they are late."""
        self._late_letters = 0
        """Of what is on its way."""
        self._suspected: deque[Lane] = deque()
        self._alone: InFlight | None = None
        self._numbers = count(1)

    @property
    def waiting_bytes(self) -> int:
        """Of all that waits for a free slot, and not for a fuller batch."""
        return self.bytes - self._filling_bytes

    def startable(self, slots: Slots) -> bool:
        """Whether `start` may find another record. Callers need no lock.

        A suspect that has to wait is none: the loop would ask for it again and again instead of waiting.
        """
        if self._alone is not None or slots.busy >= slots.most:
            return False
        return self._may_be_alone(slots) if self._suspected else bool(slots.ready)

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
            flight.messages, flight.stage = (message,), Stage.QUEUED
            self._enqueue(flight)
            return flight
        tracker.following, tracker.following_epoch = offset + 1, epoch
        lane_key = tracker.slots.lane_key(offset, key)
        lane = tracker.lanes.get(lane_key) or Lane(tracker, lane_key)
        flight = InFlight(next(self._numbers), tracker, lane, offset, epoch, size, (message,))
        if not tracker.order:
            tracker.pass_gap(flight)
        tracker.order.append(flight)
        if offset in tracker.done_before:
            tracker.done_before.discard(offset)
            flight.stage, flight.messages = Stage.DONE, ()
            tracker.advance()
            return None
        self._enqueue(flight)
        return flight

    def arrive_run(self, tracker: OffsetTracker, epoch: int, messages: Run, size: int, now: int) -> None:
        """Queue fetched records, in order, as one; without those that are known or done already."""
        if ends(messages)[0] < tracker.following:
            messages = beginning_at(messages, tracker.following)
        if not messages:
            return
        end = tracker.following = ends(messages)[1] + 1
        tracker.following_epoch = epoch
        if not (messages := tracker.without_done(messages)):
            return
        lane = tracker.lanes.get(None) or Lane(tracker, None)
        first = ends(messages)[0]
        self._enqueue(InFlight(next(self._numbers), tracker, lane, first, epoch, size, messages, end=end, since_ns=now))

    def note_done(self, tracker: OffsetTracker, offsets: Iterable[int]) -> int:
        """Note records of a run that are done, though not one before them; how many these are."""
        new = set(offsets) - tracker.done_before
        tracker.done_before |= new
        self.drop_done(tracker)
        return len(new)

    def drop_done(self, tracker: OffsetTracker) -> None:
        """Leave out queued records of runs that are done."""
        lane = tracker.lanes[None]
        lane.filled = None
        for flight in list(lane.queue):
            if flight.stage is not Stage.QUEUED:
                continue
            flight.messages = tracker.without_done(flight.messages)
            if flight.messages:
                flight.offset = ends(flight.messages)[0]
            else:
                lane.queue.remove(flight)
                self._unqueue(flight)

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
        flight = InFlight(next(self._numbers), tracker, lane, position - 1, epoch, 0, (), stage=Stage.SENDING)
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
        if lane.queue[0] is flight or lane in tracker.slots.filling:
            lane.make_ready()

    # -- filling -----------------------------------------------------------------------------------------------------

    def ripen(self, slots: Slots, now: int) -> None:
        """Have lanes start whose first record has waited long enough for a fuller batch, and the oldest of those that
        take too much memory together."""
        bounds = slots.bounds
        if bounds is None or (first := self.filling_since(slots)) is None:
            return
        kept = sum(slots.filling.values())
        if slots.across and (kept > bounds.memory or now - first >= bounds.wait_ns or self._fill(slots, bounds)):
            for lane in list(slots.filling):
                self._fill_no_more(lane)
        if kept <= bounds.memory and now - first < bounds.wait_ns:
            return
        for lane in sorted(slots.filling, key=lambda lane: lane.queue[0].since_ns):
            if kept <= bounds.memory and now - lane.queue[0].since_ns < bounds.wait_ns:
                return
            kept -= slots.filling[lane]
            self._fill_no_more(lane)

    def _fill(self, slots: Slots, bounds: Bounds) -> bool:
        """Whether what waits for a fuller batch comes to one in all."""
        return sum(self._filled(lane, bounds).records for lane in slots.filling) >= bounds.records

    def filling_since(self, slots: Slots) -> int | None:
        """Since when the first record waits for a fuller batch (nanoseconds); None: none does."""
        return min((lane.queue[0].since_ns for lane in slots.filling), default=None)

    def fill_no_more(self, tracker: OffsetTracker) -> None:
        """Have the partition's records start as they are: nothing more comes of it."""
        tracker.waits = False
        for lane in [lane for lane in tracker.slots.filling if lane.tracker is tracker]:
            self._fill_no_more(lane)

    def _fill_no_more(self, lane: Lane) -> None:
        self._fills(lane, None)
        lane.ripe = True
        lane.make_ready()

    def _fills(self, lane: Lane, nbytes: int | None) -> None:
        """Note that the lane waits for a fuller batch, with so many bytes; None: not any more."""
        filling = lane.tracker.slots.filling
        self._filling_bytes -= filling.pop(lane, 0)
        if nbytes is not None:
            filling[lane] = nbytes
            self._filling_bytes += nbytes
        else:
            lane.filled = None

    def _is_full(self, lane: Lane, slots: Slots) -> bool:
        """Whether nothing more would fit into the lane's next batch, or it is not to wait."""
        bounds, tracker, first = slots.bounds, lane.tracker, lane.queue[0]
        if bounds is None or not bounds.wait_ns or lane.ripe or first.stays_as_it_is or not tracker.waits:
            return True
        if first.offset < max(tracker.singly_until, tracker.alone_until):
            return True
        filled = self._filled(lane, bounds)
        if filled.records >= bounds.records or not filled.of_one_epoch:
            return True
        return bounds.bytes is not None and filled.records > 1 and filled.nbytes > bounds.bytes

    def _filled(self, lane: Lane, bounds: Bounds) -> Filled:
        """What the lane has queued. Only what came since it was asked last is counted: all of it, with each piece,
        would cost the square of a batch."""
        if lane.filled is None:
            lane.filled = Filled()
        filled, first = lane.filled, lane.queue[0]
        for flight in islice(reversed(lane.queue), len(lane.queue) - filled.runs):
            filled.records += len(flight.messages)
            filled.of_one_epoch &= flight.epoch == first.epoch
            if bounds.bytes is not None:
                filled.nbytes += value_bytes([flight.messages])
        filled.runs = len(lane.queue)
        return filled

    # -- starting ----------------------------------------------------------------------------------------------------

    def start(self, slots: Slots, now: int, room: int = UNLIMITED) -> InFlight | None:
        """The next records for a free slot of these, if there are any; at most `room`."""
        if self._alone is not None or slots.busy >= slots.most:
            return None
        while slots.ready and not self._suspected:
            lane = slots.ready.take()
            lane.ready = False
            if (flight := self._first(lane)) is None:
                continue
            if flight.offset in lane.tracker.suspects or flight.offset < lane.tracker.alone_until:
                lane.ready = True
                self._suspected.append(lane)
            else:
                return self._run(self._cut(flight, room), now)
        while self._may_be_alone(slots):
            lane = self._suspected.popleft()
            lane.ready = False
            if (flight := self._first(lane)) is not None:
                self._alone = self._cut(flight, room)
                return self._run(self._alone, now)
        return None

    def start_beside(self, slots: Slots, now: int, records: int, nbytes: int) -> InFlight | None:
        """The next records for a call that has other partitions' already: so many at most, with so many bytes of
        values. None where there are none, or where the next are not to be beside others."""
        if self._alone is not None or self._suspected:
            return None
        while slots.ready:
            lane = slots.ready.take()
            lane.ready = False
            if (flight := self._first(lane)) is None:
                continue
            if self._stays_alone(flight) or value_bytes([flight.messages[:1]]) > nbytes:
                lane.make_ready(first=True)
                return None
            return self._run(self._cut(flight, records, nbytes), now)
        return None

    def _stays_alone(self, flight: InFlight) -> bool:
        tracker = flight.tracker
        singly = flight.offset < max(tracker.singly_until, tracker.alone_until)
        return flight.stays_as_it_is or singly

    def _may_be_alone(self, slots: Slots) -> bool:
        """Whether the next suspect is of these slots, and there is nothing beside it."""
        suspected = tuple(self._suspected)  # Without the lock another thread may take one out in between.
        mine = bool(suspected) and suspected[0].tracker.slots is slots
        return mine and not (self.in_flight or self._failed) and self.on_their_way <= self._late_letters

    def late_letters(self, now: int) -> Sequence[InFlight]:
        """Letters that nothing waits for from now on but their own lanes, as they take long; each is given once."""
        found = list(takewhile(lambda flight: now - flight.since_ns > _LETTER_NS, self._letters))
        for flight in found:
            del self._letters[flight]
            if self._alone is flight:
                self._alone = None
        self._late_letters += len(found)
        return found

    def put_off_suspects(self, now: int) -> None:
        """Have suspects whose handler's gate is shut wait among what is ready there, first of all: every other handler
        would wait with them until it opens."""
        shut = [lane for lane in self._suspected if lane.tracker.slots.is_shut(now)]
        for lane in reversed(shut):
            self._suspected.remove(lane)
            lane.ready = False
            lane.make_ready(first=True)

    def _first(self, lane: Lane) -> InFlight | None:
        """The lane's next record, if it may start."""
        tracker, hurries, lane.hurries = lane.tracker, lane.hurries, False
        if tracker.closed or lane.overtaken is not None or lane.refused_at != NO_OFFSET:
            return None
        if not lane.queue:
            self._remove(lane)
            return None
        flight = lane.queue[0]
        if flight.stage is not Stage.QUEUED:
            return None
        if tracker.slots.runs:
            if not self._is_full(lane, tracker.slots):
                lane.hurries = hurries
                self._fills(lane, tracker.bytes)
                return None
            self._fills(lane, None)
        elif flight.offset >= tracker.consumed + WINDOW:
            heappush(tracker.beyond, (flight.offset, flight.number, lane))
            return None
        return flight

    def _remove(self, lane: Lane) -> None:
        """Remove the lane, unless something of it is queued, or on its way and may be refused."""
        if not lane.queue and not lane.sending and lane.tracker.lanes.get(lane.key) is lane:
            del lane.tracker.lanes[lane.key]

    def _cut(self, flight: InFlight, room: int, nbytes: int | None = None) -> InFlight:
        """The queued records as one call gets them; the others stay queued behind. What failed stays as it was."""
        lane, tracker = flight.lane, flight.tracker
        slots, lane.ripe = tracker.slots, False
        if not slots.runs or flight.stays_as_it_is:
            return flight
        if slots.bounds is not None:
            self._gather(lane, slots.bounds.records)
        most = min(slots.taken_at_once(flight), room)
        if nbytes is not None and value_bytes([flight.messages[:most]]) > nbytes:
            most = fitting(flight.messages[:most], nbytes)
        if len(flight.messages) > most:
            self.split(flight, most)
        tracker.look_for_poison(flight)
        return flight

    def _gather(self, lane: Lane, records: int) -> None:
        """Add to the lane's first run what is queued behind it, up to so many records."""
        first = lane.queue[0]
        gathered, wanted = [first.messages], records - len(first.messages)
        while wanted > 0 and len(lane.queue) > 1:
            behind = lane.queue[1]
            if behind.epoch != first.epoch or behind.stays_as_it_is:
                break
            if len(behind.messages) > wanted:
                # Else what does not fit would be copied with every batch that is gathered from it.
                self.split(behind, wanted)
            del lane.queue[1]
            gathered.append(behind.messages)
            wanted -= len(behind.messages)
            first.size, first.end = first.size + behind.size, behind.end
        if len(gathered) > 1:
            first.messages = joined(gathered)

    def split(self, flight: InFlight, count: int) -> InFlight:
        """Make the records behind the first `count` a queued run of their own, right behind; that run."""
        behind = flight.messages[count:]
        size = flight.size * len(behind) // len(flight.messages)
        rest = InFlight(
            next(self._numbers),
            flight.tracker,
            flight.lane,
            ends(behind)[0],
            flight.epoch,
            size,
            behind,
            end=flight.end,
            since_ns=flight.since_ns,
        )
        if flight.stage is not Stage.QUEUED:
            self._count(rest)
        flight.messages, flight.size = flight.messages[:count], flight.size - size
        flight.end = ends(flight.messages)[1] + 1
        # What the handler has returned beyond that is of records that are handled again.
        flight.entries = [entry for entry in flight.entries if entry.offset < flight.end]
        queue, flight.lane.filled = flight.lane.queue, None
        queue.insert(0 if flight in flight.lane.sending else queue.index(flight) + 1, rest)
        return rest

    def decide(self, flight: InFlight, decided: Sequence[Decided]) -> None:
        """Note how these queued records end: each time so many, in order. What is left is for the handler."""
        if len(decided) > 1:
            # By halves, the latter first: to cut each from all behind it would cost the square of a batch, and pings
            # wait for the table's lock meanwhile.
            first, rest = decided[: len(decided) // 2], decided[len(decided) // 2 :]
            self.decide(self.split(flight, sum(each.records for each in first)), rest)
            self.decide(flight, first)
            return
        for error, records in decided:
            if records < len(flight.messages):
                self.split(flight, records)
            flight.decided = error

    def undecide(self, tracker: OffsetTracker, fails: Callable[[BaseException], bool]) -> None:
        """Leave queued records to the handler again that it has said to end by an error that `fails`."""
        for flight in chain.from_iterable(lane.queue for lane in tracker.lanes.values()):
            if flight.stage is Stage.QUEUED and flight.decided is not None and fails(flight.decided):
                flight.decided = None

    def _run(self, flight: InFlight, now: int) -> InFlight:
        self._unqueue(flight)
        return self._take(flight, now)

    def _take(self, flight: InFlight, now: int) -> InFlight:
        tracker = flight.tracker
        if tracker.slots.runs and flight.stage is Stage.QUEUED:
            if not tracker.order:
                tracker.pass_gap(flight)
            tracker.order.append(flight)
        flight.stage, flight.since_ns = Stage.RUNNING, now
        tracker.running[flight] = None
        tracker.slots.busy += 1
        self.in_flight += 1
        return flight

    def _count(self, flight: InFlight) -> None:
        if not flight.tracker.closed:
            flight.tracker.bytes += flight.size
            self.bytes += flight.size

    def _unqueue(self, flight: InFlight) -> None:
        if not flight.tracker.closed:
            flight.tracker.bytes -= flight.size
            self.bytes -= flight.size

    # -- ending ------------------------------------------------------------------------------------------------------

    def finish(self, flight: InFlight) -> bool:
        """Note that the records, which are running or whose outputs are delivered, are done; whether their partition's
        consumed offset has moved.
        """
        lane, went_on = flight.lane, flight in flight.lane.sending
        if flight.stage is Stage.SENDING:
            self.arrived(flight)
        else:
            self._put_down(flight)
        flight.stage, flight.messages = Stage.DONE, ()
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
        """Note that the handler has returned from the running records, which are done when their outputs are delivered;
        the slot is free. `lane_waits`: until then nothing else of their lane is started.
        """
        alone = self._alone
        self._put_down(flight)
        self._alone = alone
        flight.stage = Stage.SENDING
        flight.tracker.sending.add(flight)
        self.on_their_way += 1
        if flight.given_up is not None:
            self._letters[flight] = None
            self._count_parked(flight.tracker, flight.size)
        if not lane_waits:
            flight.lane.sending[flight] = None
            self._go_on(flight.lane)

    def arrived(self, flight: InFlight) -> None:
        """Note that nothing of the records is on its way any more: it is delivered or refused, or their partition is
        lost.
        """
        flight.tracker.sending.remove(flight)
        flight.lane.sending.pop(flight, None)
        # Each entry names its origin, and none is the garbage collector's: nothing would ever free the two.
        flight.entries = []
        self.on_their_way -= 1
        if flight.given_up is not None:
            if flight in self._letters:
                del self._letters[flight]
            else:
                self._late_letters -= 1
            self._count_parked(flight.tracker, -flight.size)
        if self._alone is flight:
            self._alone = None

    def recall(self, refused: InFlight) -> list[InFlight]:
        """Put what its lane went on with behind those records, which are on their way and refused, before what the lane
        has in hand or queued; what that was. It is to be handled again."""
        lane = refused.lane
        if lane.queue and lane.queue[0].stage in (Stage.RUNNING, Stage.FAILED):
            lane.overtaken = lane.queue[0]
            self._unbegin(lane.queue[0])
        if lane.queue and lane.queue[0].stage is Stage.WAITING and lane.tracker.slots.runs:
            self.queue_again(lane.queue[0])
        behind = []
        if lane.queue and lane.queue[0].stage is Stage.SENDING and lane.queue[0] is not refused:
            # A letter, for which the lane waits.
            behind.append(lane.queue.popleft())
        recalled = [*(flight for flight in lane.sending if flight.offset > refused.offset), *behind]
        for flight in reversed(recalled):
            self.arrived(flight)
            self._queue_first(flight)
        return recalled

    def take_back(self, refused: InFlight) -> None:
        """Queue records first in their lane again that are on their way and refused."""
        self.arrived(refused)
        if refused.lane.queue and refused.lane.queue[0] is refused:
            refused.lane.queue.popleft()
        self._queue_first(refused)

    def fail_whole(self, flight: InFlight, now: int) -> InFlight:
        """Take these queued records, whose letters are refused: the handler is not asked about any of them again."""
        flight.lane.refused_at = NO_OFFSET
        self.claim(flight, now)
        return flight

    def fail_first(self, flight: InFlight, now: int) -> InFlight | None:
        """Take the first of these queued records, whose output is refused: it has failed by that. None: nobody knows
        which of several it was, and they are handled singly."""
        lane, tracker = flight.lane, flight.tracker
        refused_to, lane.refused_at = lane.refused_to, NO_OFFSET
        # Behind a single one may lie offsets that are done already, whose records it has not.
        if len(flight.messages) > 1 and refused_to > flight.offset + 1:
            tracker.singly_until = max(tracker.singly_until, refused_to)
            # With the tries of all of them it would stay whole, and be refused for ever. Each one has tries of its own.
            flight.failures = 0
            if not tracker.closed:
                lane.make_ready(first=True)
            return None
        if len(flight.messages) > 1:
            self.split(flight, 1)
        self.claim(flight, now)
        return flight

    def _queue_first(self, flight: InFlight) -> None:
        """Put the records before all that their lane has queued."""
        self._unbegin(flight)
        flight.lane.filled = None
        flight.lane.queue.appendleft(flight)
        self._make_next(flight)

    def _unbegin(self, flight: InFlight) -> None:
        """Where a call gets a run, only what was begun is in the partition's order, and comes into it once begun."""
        tracker = flight.tracker
        if tracker.slots.runs and flight in tracker.order:
            tracker.order.remove(flight)

    def overtaken(self, flight: InFlight) -> bool:
        """Whether refused records were put before these meanwhile: whatever their handler did, they are handled
        again."""
        return flight.lane.overtaken is flight or flight.lane.queue[0] is not flight

    def fail(self, flight: InFlight) -> None:
        """Note that the call with the running records has failed: the slot is free, their lane waits until somebody
        claims them. Of a suspect nothing starts before that."""
        tracker, alone = flight.tracker, self._alone
        self._put_down(flight)
        self._alone = alone
        flight.stage = Stage.FAILED
        # A gate counts a failure when the loop comes to it: freed before, slots would run on into what it is to spare.
        keeps_slot = tracker.slots.gate is not None or self._failed >= _FAILURES_AHEAD
        tracker.failed[flight] = keeps_slot
        tracker.slots.busy += keeps_slot
        self._failed += 1

    def wait(self, flight: InFlight, waits_for: str, why: str) -> None:
        """Have the running records, which have failed or are not let start yet, wait, and their lane with them."""
        self._put_down(flight)
        # A row would keep the whole answer that it came with, however long it waits, and each answer may have one.
        flight.messages = apart(flight.messages)
        flight.stage, flight.waits_for, flight.why = Stage.WAITING, waits_for, why
        flight.tracker.waiting.add(flight)
        self._count_parked(flight.tracker, flight.size)

    def queue_again(self, flight: InFlight) -> None:
        """Make the records their lane's next: they may be tried again, or were interrupted."""
        if flight.stage is Stage.WAITING:
            self._wait_no_more(flight)
        elif flight.stage is Stage.FAILED:
            self._dealt_with(flight)
        else:
            self._put_down(flight)
        self._unbegin(flight)
        if flight.lane.overtaken is flight:
            flight.lane.overtaken = None
        self._make_next(flight)

    def _make_next(self, flight: InFlight) -> None:
        """Have records that are first in their lane start before all others."""
        flight.stage = Stage.QUEUED
        flight.lane.ripe = True  # It has waited for a fuller batch before.
        if not flight.tracker.closed:
            self._count(flight)
            flight.lane.make_ready(first=True)

    def claim(self, flight: InFlight, now: int) -> None:
        """Take records that are to be ended by somebody other than the handler: they wait, or have failed."""
        if flight.stage is Stage.WAITING:
            self._wait_no_more(flight)
        elif flight.stage is Stage.QUEUED:
            self._unqueue(flight)
        elif flight.stage is Stage.FAILED:
            alone = self._alone
            self._dealt_with(flight)
            self._alone = alone
        self._take(flight, now)

    def _dealt_with(self, flight: InFlight) -> None:
        flight.tracker.slots.busy -= flight.tracker.failed.pop(flight)
        self._failed -= 1
        if self._alone is flight:
            self._alone = None

    def _wait_no_more(self, flight: InFlight) -> None:
        flight.tracker.waiting.discard(flight)
        self._count_parked(flight.tracker, -flight.size)

    def _count_parked(self, tracker: OffsetTracker, nbytes: int) -> None:
        if not tracker.closed:
            tracker.parked_bytes += nbytes
            self.parked_bytes += nbytes

    def _put_down(self, flight: InFlight) -> None:
        tracker = flight.tracker
        del tracker.running[flight]
        tracker.slots.busy -= 1
        self.in_flight -= 1
        if self._alone is flight:
            self._alone = None

    # -- making room -------------------------------------------------------------------------------------------------

    def copy_out(self, tracker: OffsetTracker) -> None:
        """Copy what is queued of the partition, or on its way, out of what came with it: it would keep that in memory,
        uncounted, as long as something before it is in hand, waits, or is not let start, or brokers do not answer."""
        queued = chain.from_iterable(lane.queue for lane in tracker.lanes.values())
        for flight in (*(each for each in queued if each.stage is Stage.QUEUED), *tracker.sending):
            flight.messages = apart(flight.messages)

    def shed(self, tracker: OffsetTracker, keep_bytes: int) -> bool:
        """Drop what is queued beyond so many bytes, from its end; whether something is to be fetched again."""
        if tracker.slots.runs:
            return self._shed_runs(tracker, keep_bytes)
        dropped: deque[InFlight] = deque()
        lowest = _lowest_queued(tracker.order)
        for flight in reversed(tracker.order):
            if tracker.bytes <= keep_bytes or flight is lowest:
                break
            begins = flight.failures or flight.paid
            if flight.stage is Stage.QUEUED and not begins and flight.lane.queue[-1] is flight:
                flight.lane.queue.pop()
                self._unqueue(flight)
                flight.stage, flight.messages = Stage.DROPPED, ()
                dropped.appendleft(flight)
        # What was dropped before, and is not back yet, lies beyond what is queued now.
        tracker.dropped = deque(sorted((*dropped, *tracker.dropped), key=lambda flight: flight.offset))
        return bool(tracker.dropped)

    def _shed_runs(self, tracker: OffsetTracker, keep_bytes: int) -> bool:
        if not tracker.lanes:
            return False
        following, queue = tracker.following, tracker.lanes[None].queue
        tracker.lanes[None].filled = None
        lowest = _lowest_queued(queue)
        while lowest is not None and queue[-1] is not lowest and tracker.bytes > keep_bytes:
            if queue[-1].stays_as_it_is:
                break
            self._drop(queue.pop())
        if lowest is not None and queue[-1] is lowest and tracker.bytes > keep_bytes:
            self._shorten(lowest, keep_bytes)
        return tracker.following < following

    def _shorten(self, flight: InFlight, keep_bytes: int) -> None:
        """Drop the end of the queued run, the last one of its lane, as far as it is too large."""
        records = len(flight.messages)
        kept = max(1, records * keep_bytes // flight.size)
        if flight.stays_as_it_is or kept >= records:
            return
        rest = self.split(flight, kept)
        # Else it would keep in memory what came with it.
        flight.messages = apart(flight.messages)
        flight.lane.queue.pop()
        self._drop(rest)

    def _drop(self, flight: InFlight) -> None:
        """Have the queued run, which has left its lane, fetched again."""
        self._unqueue(flight)
        tracker = flight.tracker
        tracker.following, tracker.following_epoch = flight.offset, flight.epoch

    def close(self, tracker: OffsetTracker, *, keeps_records: bool = False) -> None:
        """Start nothing more of the partition. Unless it `keeps_records`, none stays in memory but those that run, or
        are on their way.
        """
        tracker.closed = True
        for flight in chain.from_iterable(lane.queue for lane in tracker.lanes.values()):
            # Whoever looks after what waits has it until its time, and with it all that is here.
            if flight.stage in (Stage.QUEUED, Stage.WAITING) and not keeps_records:
                flight.messages = ()
        self.bytes -= tracker.bytes
        self.parked_bytes -= tracker.parked_bytes
        tracker.bytes = tracker.parked_bytes = 0
        tracker.waiting.clear()
        tracker.dropped.clear()
        tracker.slots.ready.drop(tracker)
        for lane in [lane for lane in tracker.slots.filling if lane.tracker is tracker]:
            self._fills(lane, None)
        for lane in self._suspected:
            if lane.tracker is tracker:
                lane.ready = False
        self._suspected = deque(lane for lane in self._suspected if lane.tracker is not tracker)
        tracker.beyond.clear()

    def forget(self, tracker: OffsetTracker) -> None:
        """Let go of a closed partition's records, of which none is in hand or on its way. They, their lanes and their
        partition name each other: the garbage collector, which comes seldom, would find a backlog's keys much later.
        """
        for lane in tracker.lanes.values():
            for flight in lane.queue:
                flight.decided = flight.refusal = None
            lane.queue.clear()
            lane.overtaken = None
        tracker.lanes.clear()
        tracker.order.clear()


def _lowest_queued(flights: Iterable[InFlight]) -> InFlight | None:
    """Of what is queued what stays where the rest is dropped, or its first record: else it would be fetched and dropped
    for ever."""
    return next((flight for flight in flights if flight.stage is Stage.QUEUED), None)
