"""This worker's partitions where several records are in hand at a time.

`Flights` is the table: what is known of grants, and their lanes. It is called by three kinds of threads: the runner
feeds it and deals with what failed, executors start and finish records, the control thread opens and stops grants. All
of it happens under the table's lock, and none of it blocks but for the client's own calls between turns. A grant
that ends is reported when nothing of it is in hand any more.

`LedgerMirror` writes one partition's offsets in hand, and done, into the ledger. Bits before offsets, and offsets
before bits that are cleared: a record that SIGKILL hits between two stores is at worst handled again, never passed over
(see `ipc.bitmap`).

`Backpressure` is what the worker keeps in memory for when there is a free slot, and what it does if that is too much.
Every caller holds the table's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.retry import End
from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.ledger import CONSUMED, HAND_COUNT, HAND_OFFSET, HAND_SINCE, HANDLED, LEADER_EPOCH, TIMESTAMP, Ledger
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, InHand, Parked, Stopped
from kunicorn.observe import catalogue as c
from kunicorn.positions import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Position, TopicPartition
from kunicorn.worker.fetch import headers_bytes, refused
from kunicorn.worker.partitions import PARKED_TOLD, GrantTable, Parts
from kunicorn.worker.progress import (
    Attempt,
    Grant,
    GrantState,
    InFlight,
    OffsetTracker,
    Slots,
    kept_bytes,
)
from kunicorn.worker.scheduler import Scheduler


class LedgerMirror:
    """Writer of one partition's offsets in hand, and done ahead, into the ledger. Every caller holds the table's
    lock.
    """

    def __init__(self, grant: Grant, tracker: OffsetTracker, ledger: Ledger, slot: int) -> None:
        self.grant = grant
        self.tracker = tracker
        self.poison: tuple[int, str, int] | None = None
        """Offset of a record that is not for the handler, why, and how many workers died with it."""
        self.failed: tuple[FailureKind, str] | None = None
        """Why the grant ends by itself, once nothing of it is in hand."""
        self._cells = ledger.cells
        self._done, self._in_hand = ledger.done(slot), ledger.in_hand(slot)

    @property
    def busy(self) -> bool:
        """Whether a record of it is in hand, or on its way to the brokers."""
        return bool(self.tracker.running or self.tracker.sending)

    @property
    def done_text(self) -> str:
        """Offsets done beyond the consumed one, as text for reports and commits."""
        return bitmap.written(self.tracker.consumed, frozenset(self.tracker.done_ahead()))

    def taken(self, flight: InFlight) -> None:
        """Mark the record as in hand."""
        self._in_hand.mark(flight.offset)
        cells, at, running = self._cells, self.grant.at, self.tracker.running
        if len(running) == 1:
            cells[at + HAND_OFFSET], cells[at + HAND_SINCE] = flight.offset, flight.since_ns
        cells[at + HAND_COUNT] = len(running)

    def left(self, flight: InFlight) -> None:
        """Unmark the record: the handler has returned, and none of its outputs is on its way."""
        self._in_hand.unmark(flight.offset)
        self.returned(flight)

    def returned(self, flight: InFlight) -> None:
        """Note the handler's return; the record's bit stays: a worker that dies before its outputs are delivered may
        have died of it.
        """
        cells, at, running = self._cells, self.grant.at, self.tracker.running
        if running and cells[at + HAND_OFFSET] == flight.offset:
            first = next(iter(running))
            cells[at + HAND_OFFSET], cells[at + HAND_SINCE] = first.offset, first.since_ns
        cells[at + HAND_COUNT] = len(running)

    def done(self, flight: InFlight, *, moved: bool) -> None:
        """Mark the record as done; `moved`: the consumed offset has moved with it."""
        if moved:
            self.store()
        else:
            self._done.mark(flight.offset)
        self._cells[self.grant.at + HANDLED] += 1
        self.left(flight)

    def took(self, nanoseconds: int) -> None:
        """Add a call's duration, by its share of the handler's slots."""
        self._cells[self.grant.busy_at] += nanoseconds // self.tracker.slots.most

    def store(self) -> None:
        """Store the consumed offset, where it has moved, and clear the bits behind it."""
        cells, at, tracker = self._cells, self.grant.at, self.tracker
        moved = tracker.consumed != cells[at + CONSUMED]
        if (moved or cells[at + TIMESTAMP] == NO_TIMESTAMP) and tracker.order and tracker.order[0].message is not None:
            cells[at + TIMESTAMP] = tracker.order[0].message.timestamp()[1]
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


def longest_in_hand(mirrors: Iterable[LedgerMirror], in_flight: int, now: int) -> InHand | None:
    """Record that is in hand for the longest, as reported; `in_flight`: how many are in all."""
    held = [flight for each in mirrors if (flight := each.tracker.oldest) is not None]
    if not held:
        return None
    first = min(held, key=lambda flight: flight.since_ns)
    age = max(0.0, (now - first.since_ns) / NANOSECONDS)
    return InHand(first.tp.topic, first.tp.partition, first.offset, in_flight, age)


def waiting(mirrors: Mapping[int, LedgerMirror]) -> tuple[list[Parked], dict[str, int]]:
    """Some of the partitions of which a record waits, and the count of all by what they wait for."""
    told = []
    for number, each in mirrors.items():
        if (flight := next(iter(each.tracker.waiting), None)) is not None:
            told.append(Parked(number, flight.waits_for, flight.why))
        elif each.grant.state is GrantState.DELAYED:
            told.append(Parked(number, each.grant.waits_for, each.grant.why))
    return told[:PARKED_TOLD], dict(Counter(each.waits_for for each in told))


class Backpressure:
    """Back-pressure. Ordinarily the loop just stops polling when the buffer is full. If nothing that is buffered may
    start in some handler's free slots (say, one slow key fills it all), the tail of the largest partition is dropped
    and fetched again later, so that the others go on.
    """

    def __init__(self, scheduler: Scheduler, most_bytes: int) -> None:
        self._scheduler = scheduler
        self._most_bytes = most_bytes
        self._aside: list[LedgerMirror] = []

    @property
    def full(self) -> bool:
        """Whether the loop is to stop fetching."""
        return self._scheduler.bytes >= self._most_bytes

    def set_aside(self, mirrors: Mapping[int, LedgerMirror]) -> Grant | None:
        """Drop the tail of the partition that has the most, if that is needed: the client gives out no more of it, and
        the rest is fetched again when what is kept is done.
        """
        if not self.full or not any(self._scheduler.starved(each.tracker.slots) for each in mirrors.values()):
            return None
        queued = [each for each in mirrors.values() if each.tracker.bytes and each.grant.state is GrantState.FETCHING]
        if not queued:
            return None
        largest = max(queued, key=lambda each: each.tracker.bytes)
        first = self._scheduler.shed(largest.tracker, self._share(len(mirrors)))
        if first is None:
            return None
        largest.grant.resume_at = Position(first.offset, first.epoch)
        largest.grant.state = GrantState.ASIDE
        self._aside.append(largest)
        return largest.grant

    def fetched_again(self, partitions: int) -> list[Grant]:
        """Partitions set aside (of `partitions` in all) of which what was kept is mostly done; they are to be assigned
        again.
        """
        if not self._aside:
            return []
        aside = [each for each in self._aside if each.grant.state is GrantState.ASIDE]
        ready = [each for each in aside if each.tracker.bytes * 4 <= self._share(partitions)]
        self._aside = [each for each in aside if each not in ready]
        for each in ready:
            each.grant.state = GrantState.WAITING
        return [each.grant for each in ready]

    def _share(self, partitions: int) -> int:
        """Bytes that one partition may keep while it is set aside: all of them together leave something over."""
        return self._most_bytes // (partitions + 1)


_FED_AT_ONCE = 50
"""So many records are taken in before whoever has handled one gets its turn at the table."""


class Flights(GrantTable):
    """Table of partitions with several records in hand; see the module's head."""

    def __init__(self, parts: Parts, slots_of: Callable[[str], Slots]) -> None:
        """`slots_of`: the slots of a topic's handler."""
        super().__init__(parts)
        parts.ledger.use_marks()
        self._slots_of = slots_of
        self._scheduler = Scheduler()
        self._backpressure = Backpressure(self._scheduler, parts.settings.ahead_bytes)
        self._mirrors: dict[int, LedgerMirror] = {}
        self._faulty: list[tuple[LedgerMirror, FailureKind, str]] = []
        """Behind the records that are still queued the client has an error, and which."""

    # -- control thread ----------------------------------------------------------------------------------------------

    def in_hand(self, now: int) -> InHand | None:
        """See `GrantTable`: the record that is in hand for the longest, and how many there are in all."""
        with self._lock:
            return longest_in_hand(self._mirrors.values(), self._scheduler.in_flight, now)

    def in_flight(self) -> int:
        return self._scheduler.in_flight

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `GrantTable`: partitions of which at least one record waits."""
        with self._lock:
            return waiting(self._mirrors)

    def overdue(self, number: int, offset: int, overdue_ns: int) -> list[InFlight]:
        """The record of that grant, if a handler has it in hand, and all that handlers have had since `overdue_ns` or
        earlier. Those besides the one that was named are counted here."""
        with self._lock:
            if (mirror := self._mirrors.get(number)) is None:
                return []
            found = [f for f in mirror.tracker.running if f.offset == offset or f.since_ns <= overdue_ns]
            if others := sum(flight.offset != offset for flight in found):
                self._counters.count(c.HANDLER_TIMEOUTS, others, mirror.tracker.tp.topic)
            return found

    # -- runner ------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether so much is kept that nothing more is to be fetched."""
        return self._backpressure.full

    @property
    def bytes(self) -> int:
        """Bytes of all records that wait for a free slot."""
        return self._scheduler.bytes

    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions of which a record waits for a free slot."""
        with self._lock:
            return [mirror.tracker.tp for mirror in self._mirrors.values() if mirror.tracker.bytes]

    def feed(self, tp: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        """Take in fetched messages, without those of partitions that have been stopped."""
        for first in range(0, len(messages), _FED_AT_ONCE):
            self._feed(tp, epoch, messages[first : first + _FED_AT_ONCE])

    def _feed(self, tp: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        with self._lock:
            if (grant := self.fetching(tp)) is None:
                return
            mirror = self._mirrors[grant.number]
            scheduler, tracker = self._scheduler, mirror.tracker
            headers = headers_bytes(messages[0])
            for message in messages:
                offset, key = message.offset(), message.key()
                size = kept_bytes(key, message.value(), headers)
                flight = scheduler.arrive(tracker, NO_OFFSET if offset is None else offset, epoch, key, message, size)
                if flight is not None and mirror.poison is not None and mirror.poison[0] == flight.offset:
                    _, flight.poison, flight.poison_deaths = mirror.poison
            mirror.store()

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """See `GrantTable`: once what was fetched before the error is handled. Else a partition of
        which each fetch ends with one would never get on."""
        with self._lock:
            if (grant := self.fetching(tp)) is not None:
                self._leave(grant)
                grant.state = GrantState.ASIDE
                self._faulty.append((self._mirrors[grant.number], kind, error))

    def balance(self) -> None:
        """Set aside a partition that fills all there is and cannot go on; take up again those that were. End those of
        which nothing is left before their error."""
        with self._lock:
            self._end_faulty()
            if (grant := self._backpressure.set_aside(self._mirrors)) is not None:
                self._leave(grant)
            self._waiting += self._backpressure.fetched_again(len(self._mirrors))

    def to_be_given_up(self) -> list[InFlight]:
        """Records in hand of grants that are to end."""
        with self._lock:
            ending = (h for h in self._mirrors.values() if h.grant.state is GrantState.STOPPING)
            return [flight for mirror in ending for flight in mirror.tracker.running]

    # -- executors ---------------------------------------------------------------------------------------------------

    def start_next(self, slots: Slots) -> InFlight | None:
        """Put the next record in hand; None if there is none, or membership is not certain."""
        with self._lock:
            return self._start(slots, now_ns())

    def startable(self, slots: Slots) -> bool:
        """Whether there is a record for another free slot. Not locked: a wrong answer costs one look too many."""
        return self._scheduler.startable(slots)

    def finish(self, flight: InFlight) -> InFlight | None:
        """Note that the handler is done with the record; the next record for the slot that this frees."""
        with self._lock:
            now = now_ns()
            took = now - flight.since_ns
            self._counters.finished(flight.tp.topic, 1, took, 1)
            self._mirrors[flight.tracker.grant].took(took)
            self._finish(flight)
            return self._start(flight.tracker.slots, now)

    # -- what failed -------------------------------------------------------------------------------------------------

    def park(self, attempt: Attempt[InFlight], waits_for: str, why: str) -> bool:
        """See `GrantTable`: its lane waits with it, and nothing else."""
        flight = attempt.grant
        with self._lock:
            self._count_failure(attempt, retried=waits_for == "retry")
            self._scheduler.wait(flight, waits_for, why)
            return self._left_hands(flight)

    def explain_wait(self, grant: InFlight, why: str) -> None:
        with self._lock:
            grant.why = why

    def begin_again(self, grant: InFlight, now: int) -> bool:
        """A waiting record is about to be ended; False if its grant has ended since."""
        with self._lock:
            if not grant.held:
                return False
            self._scheduler.claim(grant, now)
            self._mirrors[grant.tracker.grant].taken(grant)
            return True

    def try_again(self, flight: InFlight) -> None:
        """Make the record its lane's next: its wait is over."""
        with self._lock:
            if flight.held:
                self._scheduler.queue_again(flight)

    def overtaken(self, flight: InFlight) -> bool:
        """Whether one of its lane that was refused comes before it now: it is put back, whatever its handler did."""
        return self._scheduler.overtaken(flight)

    def put_back(self, flight: InFlight) -> None:
        """Have the record handled again: the handler was interrupted, or worked too early."""
        with self._lock:
            self._scheduler.queue_again(flight)
            self._left_hands(flight)

    def pass_over(self, attempt: Attempt[InFlight], end: End, label: str | None) -> bool:
        with self._lock:
            self._count_failure(attempt, retried=False, failed=end is not End.DONE)
            self._counters.passed_over(attempt.grant.tp.topic, 1, end, label)
            return self._finish(attempt.grant)

    def give_up(self, attempt: Attempt[InFlight], error: str) -> None:
        """See `GrantTable`; what else is in hand of its partition is waited for."""
        flight = attempt.grant
        with self._lock:
            self._count_failure(attempt, retried=False)
            self._scheduler.queue_again(flight)
            mirror = self._mirrors[flight.tracker.grant]
            self._end(mirror, FailureKind.HANDLER, f"offset {flight.offset}: {error}")
            self._left_hands(flight)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _open(self, start: FetcherStart) -> Grant:
        self.ledger.done(start.slot).clear()
        self.ledger.in_hand(start.slot).clear()
        grant = super()._open(start)
        tracker = OffsetTracker(grant.tp, grant.number, self._slots_of(start.topic), start.offset, start.leader_epoch)
        tracker.done_before, tracker.suspects = set(bitmap.read(start.offset, start.done)), frozenset(start.suspects)
        mirror = self._mirrors[grant.number] = LedgerMirror(grant, tracker, self.ledger, start.slot)
        if start.poison:
            offset = start.offset if start.poison_offset == NO_OFFSET else start.poison_offset
            mirror.poison = offset, start.poison, start.poison_deaths
        return grant

    def _busy(self, grant: Grant) -> bool:
        """See `GrantTable`. What is stopped starts nothing from here on."""
        mirror = self._mirrors[grant.number]
        self._scheduler.close(mirror.tracker)
        return mirror.busy

    def _forget(self, grant: Grant) -> None:
        self._scheduler.close(self._mirrors.pop(grant.number).tracker)
        super()._forget(grant)

    def _final(self, grant: Grant) -> Stopped:
        return msgspec.structs.replace(super()._final(grant), done=self._mirrors[grant.number].done_text)

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        """End the grant with this failure, once nothing of it is in hand."""
        mirror = self._mirrors[grant.number]
        self._end(mirror, kind, error)
        self._conclude(mirror)

    def _refuse(self, grant: Grant, error: KafkaException) -> None:
        report = refused(grant.tp, self._final(grant), error)
        self._fail(grant, report.kind, report.offset, report.error)

    def _end(self, mirror: LedgerMirror, kind: FailureKind, error: str) -> None:
        self._leave(mirror.grant)
        self._scheduler.close(mirror.tracker)
        if mirror.grant.state is not GrantState.STOPPING:
            mirror.grant.state, mirror.failed = GrantState.STOPPING, (kind, error)

    def _left_hands(self, flight: InFlight) -> bool:
        """Note that the handler has returned from a record that is not done; False if that was its grant's end."""
        mirror = self._mirrors[flight.tracker.grant]
        mirror.left(flight)
        return not self._conclude(mirror)

    def _start(self, slots: Slots, now: int) -> InFlight | None:
        if now > self.ledger.lease_ns or (flight := self._scheduler.start(slots, now)) is None:
            return None
        self._mirrors[flight.tracker.grant].taken(flight)
        return flight

    def _finish(self, flight: InFlight) -> bool:
        """Note that the record has been handled; False if that was its grant's end."""
        return self._done(flight)

    def _done(self, flight: InFlight) -> bool:
        mirror = self._mirrors[flight.tracker.grant]
        mirror.done(flight, moved=self._scheduler.finish(flight))
        return not self._conclude(mirror)

    def _end_faulty(self) -> None:
        left = []
        for mirror, kind, error in self._faulty:
            if mirror.grant.number not in self._grants or mirror.grant.state is not GrantState.ASIDE:
                continue  # It has ended, or is to end, otherwise.
            if mirror.tracker.bytes:
                left.append((mirror, kind, error))
            else:
                self._fail(mirror.grant, kind, NO_OFFSET, error)
        self._faulty = left

    def _conclude(self, mirror: LedgerMirror) -> bool:
        """Report a grant that is to end once nothing of it is in hand."""
        grant = mirror.grant
        if grant.state is not GrantState.STOPPING or mirror.busy:
            return False
        final = self._final(grant)
        self._forget(grant)
        if mirror.failed is None:
            self._report(FetcherStopped([final]))
        else:
            kind, error = mirror.failed
            self._report(Failed(grant.number, kind, final.offset, final.leader_epoch, error, final.done))
        return True

    def _count_failure(self, attempt: Attempt[InFlight], *, retried: bool, failed: bool = True) -> None:
        self._mirrors[attempt.grant.tracker.grant].took(attempt.nanoseconds)
        self._counters.finished(attempt.grant.tp.topic, 0, attempt.nanoseconds, attempt.calls)
        if attempt.calls and failed:
            self._counters.failed(attempt.grant.tp.topic, retried=retried)

    def _advance(self) -> None:
        """See `GrantTable`; only where nothing that was fetched is unfinished and in memory."""
        idle = [h for h in self._mirrors.values() if h.grant.state is GrantState.FETCHING and not h.tracker.bytes]
        if not idle:
            return
        positions = self._consumer.position([ClientPartition(*mirror.tracker.tp) for mirror in idle])
        for mirror, now in zip(idle, positions, strict=True):
            if now.offset < 0:
                continue
            # What lies behind a stop was fetched and dropped: it is not consumed, and must not be committed.
            position = min(now.offset, self.stops.get(mirror.tracker.tp, now.offset))
            self._pass_by(mirror, position, NO_EPOCH if now.leader_epoch is None else now.leader_epoch)

    def _pass_by(self, mirror: LedgerMirror, position: int, epoch: int) -> None:
        """Move on to `position`: nothing before it is left to come."""
        self._scheduler.pass_by(mirror.tracker, position)
        if not mirror.tracker.order and epoch != NO_EPOCH:
            mirror.tracker.epoch = epoch
        mirror.store()
