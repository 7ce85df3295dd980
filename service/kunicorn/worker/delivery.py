"""When a record counts as done, where outputs are sent: with their delivery, or with their commit.

`SettlingFetcher`, one record or batch of a partition in hand: the ledger follows the delivery, not the handler.
1. A record counts as consumed when its outputs, and those of everything before it in its partition, are delivered.
2. A grant that is given up *settles* first: it is reported when all that it handled is delivered. Only one that is lost
   is reported at once, and what it has left is delivered no more.
3. Of a partition with a refused output nothing more is handled until it is rewound to that record.
4. What is handled and not delivered, the ledger says exactly: with nothing in hand, from the consumed offset to the
   hand's. Whoever has to blame a record for a worker's death goes by it.

`DeliveringFlights`, several records in hand, outputs sent at least once.
1. A record is done when its outputs are delivered. Its slot is free meanwhile; its lane waits, so that outputs of one
   lane are in its order, and a record whose outputs are refused can still be tried again before the next of its lane.
2. A grant that is given up settles first; only one that is lost is reported at once, and what it has left is delivered
   no more.

`CommittingFlights`, several records in hand, outputs committed in transactions.
1. Every record goes out with a transaction, also one that leaves nothing: the transaction has its offset.
2. A transaction commits for each partition its lowest unfinished offset and, as the commit's metadata, what is done
   beyond that; whoever gets the partition next leaves those out.
3. What was passed by without a record (markers, compacted records) at the end of a partition goes out likewise: else
   others would see a lag there.
4. A lane goes on while its records are on their way, else a key would have one record per transaction. When one of them
   is refused, what came behind it in its lane is taken back, and handled again behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.outputs import size_of
from kunicorn.ipc.bitmap import with_partitions
from kunicorn.ipc.clock import now_ns
from kunicorn.ipc.ledger import CONSUMED, HAND_OFFSET, LEADER_EPOCH
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, Parked
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position, TopicPartition
from kunicorn.worker.in_flight import Flights, LedgerMirror
from kunicorn.worker.partitions import PARKED_TOLD, Parts, SequentialTable
from kunicorn.worker.produce.outbox import Entry, Outbox, OutputBatch
from kunicorn.worker.progress import Grant, GrantState, InFlight, OffsetTracker, Slots

_AT_REST = (GrantState.WAITING, GrantState.FETCHING, GrantState.PARKED, GrantState.DELAYED)
"""Nothing of it is in hand."""


class SettlingFetcher(SequentialTable):
    """Table with one partition's records in hand, whose outputs are sent; see the module's head. A grant that waits for
    its deliveries is *stopping*, with nothing in hand.
    """

    progress_cell = HAND_OFFSET

    def __init__(self, parts: Parts, outbox: Outbox) -> None:
        super().__init__(parts)
        parts.ledger.use_delivery()
        self._outbox = outbox
        self._began_alone = False
        """What was begun last is to be delivered before anything else is begun."""
        self._rewinding: list[Grant] = []

    # -- sender's thread -----------------------------------------------------------------------------------------------

    def delivered(self, reached: Mapping[int, int]) -> None:
        """Move the ledger on, by grant's number: everything before that offset is delivered."""
        with self._lock:
            for number, following in reached.items():
                if (grant := self._grants.get(number)) is not None and not grant.discarded:
                    at = grant.at + CONSUMED
                    self._cells[at] = max(self._cells[at], following)
                    self._close_if_delivered(grant)

    def rewind(self, refusals: Mapping[int, int]) -> None:
        """Have these grants' refused record, which is the next to be delivered, fetched again with what is behind
        it.
        """
        with self._lock:
            for number, refusal in refusals.items():
                # One that another sender's lower refusal has overtaken is rewound with that. Were it rewound a second
                # time, what is handled again by now would count as delivered.
                if (grant := self._grants.get(number)) is not None and grant.refusal_number == refusal:
                    grant.handled_to, grant.rewinds = self._cells[grant.at + CONSUMED], True
                    if grant.last_word is not None:
                        # It was to end at a record behind that one, which comes first.
                        grant.last_word = None
                        grant.state = GrantState.STOPPING if grant.stopped else GrantState.WAITING
                    self._rewinding.append(grant)
                    self._close_if_delivered(grant)
        self.interrupts.request()

    def places(self, batch: OutputBatch, live: Sequence[Entry]) -> list[ClientPartition]:
        last = {entry.origin: entry.following for entry in live}
        return [grant.place(self._cells, offset) for grant, offset in last.items() if isinstance(grant, Grant)]

    # -- control thread ------------------------------------------------------------------------------------------------

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `GrantTable`: and those whose outputs do not arrive."""
        told, count = super().parked()
        if (why := self._outbox.late()) is None:
            return told, count
        with self._lock:
            late = [
                grant.number
                for grant in self._grants.values()
                if grant.state not in (GrantState.PARKED, GrantState.DELAYED) and not grant.all_delivered(self._cells)
            ]
        told += [Parked(number, "delivery", why) for number in late[: PARKED_TOLD - len(told)]]
        return told, {**count, "delivery": len(late)} if late else count

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        if self._rewinding:
            with self._lock:
                rewinding, self._rewinding = self._rewinding, []
                for grant in rewinding:
                    if grant.number in self._grants and grant.state in _AT_REST:
                        self._rewind(grant)
        super().begin_turn(now)

    def room(self, tp: TopicPartition, following: int, seconds: float) -> int:
        """See `SequentialTable`. A record that is to be alone begins only once nothing is on its way, and nothing
        behind it before it is delivered itself."""
        alone = following <= self.alone.get(tp, NO_OFFSET)
        began_alone, self._began_alone = self._began_alone, alone
        outbox = self._outbox
        if (alone or began_alone) and not outbox.wait_until_empty(seconds):
            self._began_alone = True
            return 0
        return outbox.room() or (outbox.room() if outbox.wait_for_room(seconds) else 0)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _may_begin(self, grant: Grant) -> bool:
        # Looked at before the lock, it may be refused and rewound by the time of `_begin`: the refused record, and
        # those behind it, would count as delivered.
        return grant.refused_at == NO_OFFSET

    def _begin(self, grant: Grant, following: Sequence[int], epoch: int, now: int) -> None:
        cells, at, offset = self._cells, grant.at, following[0] - 1
        if grant.all_delivered(cells) and offset > cells[at + CONSUMED]:
            # Markers and compacted records lie between: what is not delivered begins with this one.
            cells[at + CONSUMED] = offset
        super()._begin(grant, following, epoch, now)

    def _put_down(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> None:
        if finished:
            self._done_up_to(grant, self._cells[grant.at + HAND_OFFSET], finished)
        super()._put_down(grant, finished, nanoseconds, calls)
        self._cells[grant.at + HAND_OFFSET] = grant.handled_to

    def _done_up_to(self, grant: Grant, following: int, records: int) -> None:
        self._outbox.put(Entry(grant, following - 1, following, ()), records, 0)
        if records:
            self._cells[grant.at + HAND_OFFSET] = grant.handled_to

    def _stop(self, grants: list[Grant]) -> None:
        for grant in grants:
            grant.stopped = True
        super()._stop(grants)

    def _busy(self, grant: Grant) -> bool:
        # One that is stopping already waits for its delivery alone; that of a lost one is waited for no more.
        return self._hand is grant or self._waits_for_delivery(grant)

    def _waits_for_delivery(self, grant: Grant) -> bool:
        """Whether the grant has to wait for its deliveries before it can be reported; they are hurried then."""
        if grant.all_delivered(self._cells):
            return False
        self._outbox.hurry()
        return True

    def _ended(self, grant: Grant) -> bool:
        if grant.state is GrantState.STOPPING and self._waits_for_delivery(grant):
            return True
        if grant.state is GrantState.IN_HAND and grant.rewinds:
            self._rewind(grant)
            return True
        return super()._ended(grant)

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        if not self._waits_for_delivery(grant):
            super()._fail(grant, kind, offset, error)
            return
        self._leave(grant)
        grant.state = GrantState.STOPPING
        grant.last_word = Failed(grant.number, kind, offset, self._cells[grant.at + LEADER_EPOCH], error)

    def _close_if_delivered(self, grant: Grant) -> None:
        if grant.state is GrantState.STOPPING and self._hand is not grant and grant.all_delivered(self._cells):
            last_word = grant.last_word or FetcherStopped([self._final(grant)])
            self._forget(grant)
            self._report(last_word)

    def _forget(self, grant: Grant) -> None:
        # What a record that was interrupted has left in the outbox must not count under the next grant.
        grant.discarded = True
        super()._forget(grant)

    def _rewind(self, grant: Grant) -> None:
        grant.rewinds, grant.refused_at, grant.held = False, NO_OFFSET, ()
        self._cells[grant.at + HAND_OFFSET] = grant.handled_to
        self.singly[grant.tp] = max(grant.singly_until, self.singly.get(grant.tp, NO_OFFSET))
        grant.state = GrantState.WAITING
        self._leave(grant)
        if grant not in self._waiting:
            self._waiting.append(grant)


class Told(Protocol):
    """Listener to the fate of outputs. Caller: a sender's thread."""

    def wake(self) -> None:
        """Note that more records may start than before."""

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """Note that the brokers will never take the record's outputs: it has failed."""


class DeliveringFlights(Flights):
    """Table with several records in hand, whose outputs are sent at least once; see the module's head. A
    `DeliveryListener`, by the numbers of records in flight.
    """

    def __init__(self, parts: Parts, slots_of: Callable[[str], Slots], outbox: Outbox, executors: Told) -> None:
        super().__init__(parts, slots_of)
        self._executors = executors
        self._outbox = outbox
        self._under_way: dict[int, InFlight] = {}

    # -- sender's thread -----------------------------------------------------------------------------------------------

    def delivered(self, reached: Mapping[int, int]) -> None:
        """Count these records as done: their outputs have arrived."""
        with self._lock:
            for number in reached:
                if (flight := self._under_way.pop(number, None)) is not None:
                    flight.outputs = ()
                    self._done(flight)
        self._executors.wake()

    def rewind(self, refusals: Mapping[int, int]) -> None:
        """Have these records fail: their outputs are refused."""
        with self._lock:
            # One that was taken back with another one may be on its way again by now, or be refused again.
            met = [
                flight
                for number, refusal in refusals.items()
                if (flight := self._under_way.get(number)) is not None
                and flight.refusal is not None
                and flight.refusal_number == refusal
            ]
            refused = self._take_back(met)
            for flight in refused:
                del self._under_way[flight.number]
                flight.withdraw()
                flight.lane.refused_at = NO_OFFSET
                self._scheduler.claim(flight, now_ns())
                self._mirrors[flight.tracker.grant].taken(flight)
        for flight in refused:
            assert flight.refusal is not None
            self._executors.fail(flight, flight.refusal)

    # -- control thread ------------------------------------------------------------------------------------------------

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `GrantTable`: and those whose outputs do not arrive."""
        told, count = super().parked()
        if (why := self._outbox.late()) is None:
            return told, count
        with self._lock:
            late = [number for number, mirror in self._mirrors.items() if mirror.tracker.sending]
        told += [Parked(number, "delivery", why) for number in islice(late, PARKED_TOLD - len(told))]
        return told, {**count, "delivery": len(late)} if late else count

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _start(self, slots: Slots, now: int) -> InFlight | None:
        return super()._start(slots, now) if self._outbox.room() else None

    def _take_back(self, refused: Sequence[InFlight]) -> Sequence[InFlight]:
        """Those of the refused records that are dealt with now."""
        return refused

    def _finish(self, flight: InFlight) -> bool:
        return self._deliver(flight, lane_waits=True) if flight.outputs else self._done(flight)

    def _deliver(self, flight: InFlight, *, lane_waits: bool) -> bool:
        """See `_finish`: it is done when all that it left has arrived."""
        mirror = self._mirrors[flight.tracker.grant]
        if flight.tracker.discarded:
            self._scheduler.queue_again(flight)
            return self._left_hands(flight)
        self._scheduler.send(flight, lane_waits=lane_waits)
        mirror.returned(flight)
        flight.refusal = None
        self._under_way[flight.number] = flight
        entry = Entry(flight, flight.offset, flight.offset + 1, flight.outputs, flight.given_up)
        # The record is kept in memory as well: it may have to be handled again.
        self._outbox.put(entry, 1, flight.size + size_of(flight.outputs))
        if mirror.grant.state is GrantState.STOPPING or self._scheduler.holds_back:
            self._outbox.hurry()
        return True

    def _busy(self, grant: Grant) -> bool:
        tracker = self._mirrors[grant.number].tracker
        if grant.discarded:
            # Lost: its next owner may have begun.
            tracker.discarded = True
            for flight in list(tracker.sending):
                del self._under_way[flight.number]
                self._scheduler.arrived(flight)
        if tracker.sending:
            self._outbox.hurry()
        return super()._busy(grant)


class CommittingFlights(DeliveringFlights):
    """Table with several records in hand, committed in transactions; see the module's head. A `transactions.Table`."""

    def places(self, batch: OutputBatch, live: Sequence[Entry]) -> list[ClientPartition]:
        """See `transactions.Table`. Those before it that are not delivered yet count as done: their transactions are
        committed before this one, or this one is aborted with them."""
        delivered = _flights(live).union(*(_flights(before.entries) for before in batch.all_before()))
        with self._lock:
            trackers = {flight.tracker for flight in _flights(live)}
            places = {tracker: tracker.position_with(delivered) for tracker in trackers}
            for tracker, place in places.items():
                tracker.placed = place.offset
        return [_as_client_has_it(tracker, place) for tracker, place in places.items()]

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _take_back(self, refused: Sequence[InFlight]) -> Sequence[InFlight]:
        first = {flight.lane: flight for flight in sorted(refused, key=lambda flight: -flight.offset)}
        for flight in first.values():
            for recalled in self._scheduler.recall(flight):
                self._under_way.pop(recalled.number, None)
                self._mirrors[recalled.tracker.grant].left(recalled)
                recalled.withdraw()
                recalled.refusal = None
        return list(first.values())

    def _open(self, start: FetcherStart) -> Grant:
        grant = super()._open(start)
        tracker = self._mirrors[grant.number].tracker
        tracker.placed, tracker.began_with = start.offset, start.began_with
        return grant

    def _pass_by(self, mirror: LedgerMirror, position: int, epoch: int) -> None:
        tracker = mirror.tracker
        tracker.pass_deleted(position)
        if tracker.order or max(tracker.consumed, position) <= tracker.placed:
            return
        flight = self._scheduler.stand_in(tracker, max(tracker.consumed, position), epoch)
        self._under_way[flight.number] = flight
        self._outbox.put(Entry(flight, flight.offset, flight.offset + 1, ()), 0, 0)

    def _done(self, flight: InFlight) -> bool:
        if flight.message is not None:
            return super()._done(flight)
        mirror = self._mirrors[flight.tracker.grant]
        self._scheduler.finish(flight)
        mirror.store()
        return not self._conclude(mirror)

    def _finish(self, flight: InFlight) -> bool:
        if self.overtaken(flight):
            flight.withdraw()
            self._scheduler.queue_again(flight)
            return self._left_hands(flight)
        return self._deliver(flight, lane_waits=False)


def _flights(entries: Sequence[Entry]) -> set[InFlight]:
    return {entry.origin for entry in entries if isinstance(entry.origin, InFlight)}


def _as_client_has_it(tracker: OffsetTracker, place: Position) -> ClientPartition:
    metadata = with_partitions(tracker.began_with, place.done)
    if place.leader_epoch == NO_EPOCH:
        return ClientPartition(*tracker.tp, place.offset, metadata)
    return ClientPartition(*tracker.tp, place.offset, metadata, place.leader_epoch)
