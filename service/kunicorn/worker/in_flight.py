"""This worker's partitions where several records are in hand at a time.

`Flights` is the table: what is known of grants, and their lanes. It is called by three kinds of threads: the runner
feeds it and deals with what failed, the crew starts and finishes records, the control thread opens and stops grants.
All of it happens under the fetcher's lock, and none of it blocks but for the client's own calls between turns. A grant
that ends is reported when its last record has left the handlers' hands.

`Handed` is one grant: its lanes, and what the ledger says of it. Bits before offsets, and offsets before bits that are
cleared: a record that SIGKILL hits between two stores is at worst handled again, never passed over (see `ipc.bitmap`).

`Ahead` is what the worker keeps in memory for when there is a free hand, and what it does if that is too much. Every
caller holds the table's lock.
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
from kunicorn.positions import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Position, TopicPartition
from kunicorn.worker.fetch import headers_bytes, refused
from kunicorn.worker.partitions import PARKED_TOLD, GrantTable, Parts
from kunicorn.worker.progress import Attempt, Flight, Grant, GrantState, Hands, Track, done_ahead, kept_bytes, oldest
from kunicorn.worker.scheduler import Lanes


class Handed:
    """Every caller holds the table's lock."""

    def __init__(self, grant: Grant, track: Track, ledger: Ledger, slot: int) -> None:
        self.grant = grant
        self.track = track
        self.poison: tuple[int, str, int] | None = None
        """Offset of a record that is not for the handler, why, and how many workers died with it."""
        self.failed: tuple[FailureKind, str] | None = None
        """Why the grant ends by itself, once nothing of it is in hand."""
        self._cells = ledger.cells
        self._done, self._in_hand = ledger.done(slot), ledger.in_hand(slot)

    @property
    def busy(self) -> bool:
        """Something of it is in hand, or on its way to the brokers."""
        return bool(self.track.running or self.track.sending)

    @property
    def done_text(self) -> str:
        """What is done beyond the consumed offset, as it is told."""
        return bitmap.written(self.track.consumed, frozenset(done_ahead(self.track)))

    def taken(self, flight: Flight) -> None:
        """A handler has it in hand."""
        self._in_hand.mark(flight.offset)
        cells, at, running = self._cells, self.grant.at, self.track.running
        if len(running) == 1:
            cells[at + HAND_OFFSET], cells[at + HAND_SINCE] = flight.offset, flight.since_ns
        cells[at + HAND_COUNT] = len(running)

    def left(self, flight: Flight) -> None:
        """It has left the handler's hands, and nothing of it is on its way."""
        self._in_hand.unmark(flight.offset)
        self.returned(flight)

    def returned(self, flight: Flight) -> None:
        """It has left the handler's hands, and its bit stays: a worker that dies before its outputs are delivered may
        have died of it."""
        cells, at, running = self._cells, self.grant.at, self.track.running
        if running and cells[at + HAND_OFFSET] == flight.offset:
            first = next(iter(running))
            cells[at + HAND_OFFSET], cells[at + HAND_SINCE] = first.offset, first.since_ns
        cells[at + HAND_COUNT] = len(running)

    def done(self, flight: Flight, *, moved: bool) -> None:
        """It is done; `moved`: the consumed offset with it."""
        if moved:
            self.store()
        else:
            self._done.mark(flight.offset)
        self._cells[self.grant.at + HANDLED] += 1
        self.left(flight)

    def took(self, nanoseconds: int) -> None:
        """A call of the handler did; of all that its hands do at a time it is one part."""
        self._cells[self.grant.busy_at] += nanoseconds // self.track.hands.most

    def store(self) -> None:
        """The consumed offset, where it has moved; the bits behind it are cleared. Caller: whoever has moved it."""
        cells, at, track = self._cells, self.grant.at, self.track
        moved = track.consumed != cells[at + CONSUMED]
        if (moved or cells[at + TIMESTAMP] == NO_TIMESTAMP) and track.order and track.order[0].message is not None:
            cells[at + TIMESTAMP] = track.order[0].message.timestamp()[1]
        if not moved:
            return
        if track.consumed - cells[at + CONSUMED] >= bitmap.WINDOW:
            # So far their bits would stand for offsets beyond the new one until they are cleared.
            self._done.clear()
            self._in_hand.clear()
        if track.epoch != NO_EPOCH:
            cells[at + LEADER_EPOCH] = track.epoch
        cells[at + CONSUMED] = track.consumed
        for offset in track.passed:
            self._done.unmark(offset)
        track.passed.clear()


def longest_in_hand(handed: Iterable[Handed], in_flight: int, now: int) -> InHand | None:
    """What is said of the record that is in hand for the longest; `in_flight`: how many are in all."""
    held = [flight for each in handed if (flight := oldest(each.track)) is not None]
    if not held:
        return None
    first = min(held, key=lambda flight: flight.since_ns)
    age = max(0.0, (now - first.since_ns) / NANOSECONDS)
    return InHand(first.tp.topic, first.tp.partition, first.offset, in_flight, age)


def waiting(handed: Mapping[int, Handed]) -> tuple[list[Parked], dict[str, int]]:
    """Some of the partitions of which a record waits, and how many there are in all, by what they wait for."""
    told = []
    for number, each in handed.items():
        if (flight := next(iter(each.track.waiting), None)) is not None:
            told.append(Parked(number, flight.waits_for, flight.why))
        elif each.grant.state is GrantState.PUT_OFF:
            told.append(Parked(number, each.grant.waits_for, each.grant.why))
    return told[:PARKED_TOLD], dict(Counter(each.waits_for for each in told))


class Ahead:
    """Ordinarily the client is just not asked for more. Where nothing that is kept may start for some handler's free
    hands, one slow key for example fills it all, that would hold up every other partition."""

    def __init__(self, lanes: Lanes, most_bytes: int) -> None:
        self._lanes = lanes
        self._most_bytes = most_bytes
        self._aside: list[Handed] = []

    @property
    def full(self) -> bool:
        """Nothing more is to be fetched."""
        return self._lanes.bytes >= self._most_bytes

    def set_aside(self, handed: Mapping[int, Handed]) -> Grant | None:
        """Keep the partition that has the most only in part, if that is needed: the client is to give out no more of
        it, and the rest is fetched again when that is done."""
        if not self.full or not any(self._lanes.starved(each.track.hands) for each in handed.values()):
            return None
        queued = [each for each in handed.values() if each.track.bytes and each.grant.state is GrantState.FETCHING]
        if not queued:
            return None
        largest = max(queued, key=lambda each: each.track.bytes)
        first = self._lanes.shed(largest.track, self._share(len(handed)))
        if first is None:
            return None
        largest.grant.resume_at = Position(first.offset, first.epoch)
        largest.grant.state = GrantState.ASIDE
        self._aside.append(largest)
        return largest.grant

    def fetched_again(self, partitions: int) -> list[Grant]:
        """Of so many partitions, those set aside of which what was kept is mostly done; they are to be assigned."""
        if not self._aside:
            return []
        aside = [each for each in self._aside if each.grant.state is GrantState.ASIDE]
        ready = [each for each in aside if each.track.bytes * 4 <= self._share(partitions)]
        self._aside = [each for each in aside if each not in ready]
        for each in ready:
            each.grant.state = GrantState.WAITING
        return [each.grant for each in ready]

    def _share(self, partitions: int) -> int:
        """What one may keep while it is set aside: all of them together leave something over."""
        return self._most_bytes // (partitions + 1)


_FED_AT_ONCE = 50
"""So many records are taken in before whoever has handled one gets its turn at the table."""


class Flights(GrantTable):
    """The table; see the module's head."""

    def __init__(self, parts: Parts, hands_of: Callable[[str], Hands]) -> None:
        """`hands_of`: by topic, its handler's."""
        super().__init__(parts)
        parts.ledger.use_marks()
        self._hands_of = hands_of
        self._lanes = Lanes()
        self._ahead = Ahead(self._lanes, parts.ahead_bytes)
        self._handed: dict[int, Handed] = {}
        self._faulty: list[tuple[Handed, FailureKind, str]] = []
        """Behind the records that are still queued the client has an error, and which."""

    # -- control thread ----------------------------------------------------------------------------------------------

    def in_hand(self, now: int) -> InHand | None:
        """See `GrantTable`: the record that is in hand for the longest, and how many there are in all."""
        with self._lock:
            return longest_in_hand(self._handed.values(), self._lanes.in_flight, now)

    def in_flight(self) -> int:
        """See `GrantTable`."""
        return self._lanes.in_flight

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `GrantTable`: partitions of which at least one record waits."""
        with self._lock:
            return waiting(self._handed)

    def overdue(self, number: int, offset: int, overdue_ns: int) -> list[Flight]:
        """The record of that grant, if a handler has it in hand, and all that handlers have had since `overdue_ns` or
        earlier. Those besides the one that was named are counted here."""
        with self._lock:
            if (handed := self._handed.get(number)) is None:
                return []
            found = [f for f in handed.track.running if f.offset == offset or f.since_ns <= overdue_ns]
            self._meter.timed_out(handed.track.tp.topic, sum(flight.offset != offset for flight in found))
            return found

    # -- runner ------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """So much is kept already that nothing more is to be fetched."""
        return self._ahead.full

    @property
    def bytes(self) -> int:
        """Of all that waits for a free hand."""
        return self._lanes.bytes

    def partitions(self) -> Iterable[TopicPartition]:
        """Of which something waits for a free hand."""
        with self._lock:
            return [handed.track.tp for handed in self._handed.values() if handed.track.bytes]

    def feed(self, tp: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        """These were fetched. What is not ours any more is dropped."""
        for first in range(0, len(messages), _FED_AT_ONCE):
            self._feed(tp, epoch, messages[first : first + _FED_AT_ONCE])

    def _feed(self, tp: TopicPartition, epoch: int, messages: Sequence[Message]) -> None:
        with self._lock:
            if (grant := self.fetching(tp)) is None:
                return
            handed = self._handed[grant.number]
            lanes, track = self._lanes, handed.track
            headers = headers_bytes(messages[0])
            for message in messages:
                offset, key = message.offset(), message.key()
                size = kept_bytes(key, message.value(), headers)
                flight = lanes.arrive(track, NO_OFFSET if offset is None else offset, epoch, key, message, size)
                if flight is not None and handed.poison is not None and handed.poison[0] == flight.offset:
                    _, flight.poison, flight.poison_deaths = handed.poison
            handed.store()

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """See `GrantTable`: once what was fetched before the error has been in the handler's hands. Else a partition of
        which each fetch ends with one would never get on."""
        with self._lock:
            if (grant := self.fetching(tp)) is not None:
                self._leave(grant)
                grant.state = GrantState.ASIDE
                self._faulty.append((self._handed[grant.number], kind, error))

    def balance(self) -> None:
        """Set aside a partition that fills all there is and cannot go on; take up again those that were. End those of
        which nothing is left before their error."""
        with self._lock:
            self._end_faulty()
            if (grant := self._ahead.set_aside(self._handed)) is not None:
                self._leave(grant)
            self._waiting += self._ahead.fetched_again(len(self._handed))

    def to_be_given_up(self) -> list[Flight]:
        """What is in hand of grants that are to end."""
        with self._lock:
            ending = (h for h in self._handed.values() if h.grant.state is GrantState.STOPPING)
            return [flight for handed in ending for flight in handed.track.running]

    # -- crew --------------------------------------------------------------------------------------------------------

    def start_next(self, hands: Hands) -> Flight | None:
        """Put the next record in hand; None if there is none, or membership is not certain."""
        with self._lock:
            return self._start(hands, now_ns())

    def startable(self, hands: Hands) -> bool:
        """Whether there is something for another free hand. Not locked: whoever is wrong looks once too often."""
        return self._lanes.startable(hands)

    def finish(self, flight: Flight) -> Flight | None:
        """The handler is done with it; the next record for the hand that is free by that."""
        with self._lock:
            now = now_ns()
            took = now - flight.since_ns
            self._meter.finished(flight.tp.topic, 1, took, 1)
            self._handed[flight.track.grant].took(took)
            self._finish(flight)
            return self._start(flight.track.hands, now)

    # -- what failed -------------------------------------------------------------------------------------------------

    def park(self, attempt: Attempt[Flight], waits_for: str, why: str) -> bool:
        """See `GrantTable`: its lane waits with it, and nothing else."""
        flight = attempt.grant
        with self._lock:
            self._count_failure(attempt, retried=waits_for == "retry")
            self._lanes.wait(flight, waits_for, why)
            return self._left_hands(flight)

    def waits(self, grant: Flight, why: str) -> None:
        """See `GrantTable`."""
        with self._lock:
            grant.why = why

    def retake(self, grant: Flight, now: int) -> bool:
        """A waiting record is about to be ended; False if its grant has ended since."""
        with self._lock:
            if not grant.held:
                return False
            self._lanes.take_up(grant, now)
            self._handed[grant.track.grant].taken(grant)
            return True

    def try_again(self, flight: Flight) -> None:
        """Its wait is over: it is its lane's next."""
        with self._lock:
            if flight.held:
                self._lanes.queue_again(flight)

    def overtaken(self, flight: Flight) -> bool:
        """Whether one of its lane that was refused comes before it now: it is put back, whatever its handler did."""
        return self._lanes.overtaken(flight)

    def put_back(self, flight: Flight) -> None:
        """The handler was interrupted, or worked too early: it is not done."""
        with self._lock:
            self._lanes.queue_again(flight)
            self._left_hands(flight)

    def pass_over(self, attempt: Attempt[Flight], end: End, label: str | None) -> bool:
        """See `GrantTable`."""
        with self._lock:
            self._count_failure(attempt, retried=False, failed=end is not End.DONE)
            self._meter.passed_over(attempt.grant.tp.topic, 1, end, label)
            return self._finish(attempt.grant)

    def give_up(self, attempt: Attempt[Flight], error: str) -> None:
        """See `GrantTable`; what else is in hand of its partition is waited for."""
        flight = attempt.grant
        with self._lock:
            self._count_failure(attempt, retried=False)
            self._lanes.queue_again(flight)
            handed = self._handed[flight.track.grant]
            self._end(handed, FailureKind.HANDLER, f"offset {flight.offset}: {error}")
            self._left_hands(flight)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _open(self, start: FetcherStart) -> Grant:
        self._ledger.done(start.slot).clear()
        self._ledger.in_hand(start.slot).clear()
        grant = super()._open(start)
        track = Track(grant.tp, grant.number, self._hands_of(start.topic), start.offset, start.leader_epoch)
        track.done_before, track.suspects = set(bitmap.read(start.offset, start.done)), frozenset(start.suspects)
        handed = self._handed[grant.number] = Handed(grant, track, self._ledger, start.slot)
        if start.poison:
            offset = start.offset if start.poison_offset == NO_OFFSET else start.poison_offset
            handed.poison = offset, start.poison, start.poison_deaths
        return grant

    def _busy(self, grant: Grant) -> bool:
        """See `GrantTable`. What is stopped starts nothing from here on."""
        handed = self._handed[grant.number]
        self._lanes.close(handed.track)
        return handed.busy

    def _forget(self, grant: Grant) -> None:
        self._lanes.close(self._handed.pop(grant.number).track)
        super()._forget(grant)

    def _final(self, grant: Grant) -> Stopped:
        return msgspec.structs.replace(super()._final(grant), done=self._handed[grant.number].done_text)

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        """What is in hand of it is waited for."""
        handed = self._handed[grant.number]
        self._end(handed, kind, error)
        self._conclude(handed)

    def _refuse(self, grant: Grant, error: KafkaException) -> None:
        report = refused(grant.tp, self._final(grant), error)
        self._fail(grant, report.kind, report.offset, report.error)

    def _end(self, handed: Handed, kind: FailureKind, error: str) -> None:
        self._leave(handed.grant)
        self._lanes.close(handed.track)
        if handed.grant.state is not GrantState.STOPPING:
            handed.grant.state, handed.failed = GrantState.STOPPING, (kind, error)

    def _left_hands(self, flight: Flight) -> bool:
        """A record that is not done has left the handler's hands; False if that was its grant's end."""
        handed = self._handed[flight.track.grant]
        handed.left(flight)
        return not self._conclude(handed)

    def _start(self, hands: Hands, now: int) -> Flight | None:
        if now > self._ledger.lease_ns or (flight := self._lanes.start(hands, now)) is None:
            return None
        self._handed[flight.track.grant].taken(flight)
        return flight

    def _finish(self, flight: Flight) -> bool:
        """It has been handled; False if that was its grant's end."""
        return self._done(flight)

    def _done(self, flight: Flight) -> bool:
        handed = self._handed[flight.track.grant]
        handed.done(flight, moved=self._lanes.finish(flight))
        return not self._conclude(handed)

    def _end_faulty(self) -> None:
        left = []
        for handed, kind, error in self._faulty:
            if handed.grant.number not in self._grants or handed.grant.state is not GrantState.ASIDE:
                continue  # It has ended, or is to end, otherwise.
            if handed.track.bytes:
                left.append((handed, kind, error))
            else:
                self._fail(handed.grant, kind, NO_OFFSET, error)
        self._faulty = left

    def _conclude(self, handed: Handed) -> bool:
        """Report a grant that is to end once nothing of it is in hand."""
        grant = handed.grant
        if grant.state is not GrantState.STOPPING or handed.busy:
            return False
        final = self._final(grant)
        self._forget(grant)
        if handed.failed is None:
            self._report(FetcherStopped([final]))
        else:
            kind, error = handed.failed
            self._report(Failed(grant.number, kind, final.offset, final.leader_epoch, error, final.done))
        return True

    def _count_failure(self, attempt: Attempt[Flight], *, retried: bool, failed: bool = True) -> None:
        self._handed[attempt.grant.track.grant].took(attempt.nanoseconds)
        self._meter.finished(attempt.grant.tp.topic, 0, attempt.nanoseconds, attempt.calls)
        if attempt.calls and failed:
            self._meter.failed(attempt.grant.tp.topic, retried=retried)

    def _advance(self) -> None:
        """See `GrantTable`; only where nothing that was fetched is unfinished and in memory."""
        idle = [h for h in self._handed.values() if h.grant.state is GrantState.FETCHING and not h.track.bytes]
        if not idle:
            return
        positions = self._consumer.position([ClientPartition(*handed.track.tp) for handed in idle])
        for handed, now in zip(idle, positions, strict=True):
            if now.offset < 0:
                continue
            # What lies behind a stop was fetched and dropped: it is not consumed, and must not be committed.
            position = min(now.offset, self.stops.get(handed.track.tp, now.offset))
            self._pass_by(handed, position, NO_EPOCH if now.leader_epoch is None else now.leader_epoch)

    def _pass_by(self, handed: Handed, position: int, epoch: int) -> None:
        """Nothing before the position is left to come."""
        self._lanes.pass_by(handed.track, position)
        if not handed.track.order and epoch != NO_EPOCH:
            handed.track.epoch = epoch
        handed.store()
