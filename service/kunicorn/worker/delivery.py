"""When a record counts as done, where outputs are sent: with their delivery, or with their commit.

`SettlingFetcher`, one record or batch of a partition in hand: the ledger follows the delivery, not the handler.
1. A record counts as consumed when its outputs, and those of everything before it in its partition, are delivered.
2. A grant that is given up settles first: it is reported when all that it handled is delivered. Only one that is lost
   is reported at once, and what it has left is delivered no more.
3. Of a partition with a refused output nothing more is handled until it is rewound to that record.
4. What is handled and not delivered, the ledger says exactly: with nothing in hand, from the consumed offset to the
   hand's. Whoever has to blame a record for a worker's death goes by it.

`DeliveringFlights`, several records in hand, outputs sent at least once.
1. A record is done when its outputs are delivered. Its hand is free meanwhile; its lane waits, so that outputs of one
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

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.outputs import size_of
from kunicorn.ipc.bitmap import with_partitions
from kunicorn.ipc.clock import now_ns
from kunicorn.ipc.ledger import CONSUMED, HAND_OFFSET, LEADER_EPOCH
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, Parked
from kunicorn.positions import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Position, TopicPartition
from kunicorn.worker.in_flight import Flights, Handed
from kunicorn.worker.partitions import PARKED_TOLD, Fetcher, Parts
from kunicorn.worker.produce.outbox import Entry, Outbox, Shipment
from kunicorn.worker.progress import Flight, Grant, GrantState, Hands, Track, note_gone, place_with

_AT_REST = (GrantState.WAITING, GrantState.FETCHING, GrantState.PARKED, GrantState.PUT_OFF)
"""Nothing of it is in hand."""


class SettlingFetcher(Fetcher):
    """See the module's head. While a grant settles it is *stopping*, with nothing in hand."""

    def __init__(self, parts: Parts, outbox: Outbox) -> None:
        super().__init__(parts)
        parts.ledger.use_delivery()
        self._outbox = outbox
        self._rewinding: list[Grant] = []

    # -- sender's thread -----------------------------------------------------------------------------------------------

    def settle(self, reached: Mapping[int, int]) -> None:
        """By the grant's number: everything before that offset is delivered."""
        with self._lock:
            for number, following in reached.items():
                if (grant := self._grants.get(number)) is not None and not grant.discarded:
                    at = grant.at + CONSUMED
                    self._cells[at] = max(self._cells[at], following)
                    self._close_if_settled(grant)

    def rewind(self, numbers: Iterable[int]) -> None:
        """Their refused record is the next to be delivered now: have it, and what is behind it, fetched again."""
        with self._lock:
            for number in numbers:
                if (grant := self._grants.get(number)) is not None:
                    grant.handled_to, grant.rewinds = self._cells[grant.at + CONSUMED], True
                    if grant.last_word is not None:
                        # It was to end at a record behind that one, which comes first.
                        grant.last_word = None
                        grant.state = GrantState.STOPPING if grant.stopped else GrantState.WAITING
                    self._rewinding.append(grant)
                    self._close_if_settled(grant)
        self.interrupt()

    def places(self, shipment: Shipment, live: Sequence[Entry]) -> list[ClientPartition]:
        """See `transactions.Table`."""
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
                if grant.state not in (GrantState.PARKED, GrantState.PUT_OFF) and not grant.settled(self._cells)
            ]
        told += [Parked(number, "delivery", why) for number in late[: PARKED_TOLD - len(told)]]
        return told, {**count, "delivery": len(late)} if late else count

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """See `GrantTable`."""
        if self._rewinding:
            with self._lock:
                rewinding, self._rewinding = self._rewinding, []
                for grant in rewinding:
                    if grant.number in self._grants and grant.state in _AT_REST:
                        self._rewind(grant)
        super().begin_turn(now)

    def take(
        self, tp: TopicPartition, following: Sequence[int], epoch: int, now: int, timestamp: int = NO_TIMESTAMP
    ) -> Grant | None:
        """See `Fetcher`."""
        grant = self._by_partition.get(tp)
        if grant is not None and grant.refused_at != NO_OFFSET:
            return None
        return super().take(tp, following, epoch, now, timestamp)

    def retake(self, grant: Grant, now: int) -> bool:
        """See `Fetcher`."""
        return grant.refused_at == NO_OFFSET and super().retake(grant, now)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _take(self, grant: Grant, following: Sequence[int], epoch: int, now: int) -> None:
        cells, at, offset = self._cells, grant.at, following[0] - 1
        if grant.settled(cells) and offset > cells[at + CONSUMED]:
            # Markers and compacted records lie between: what is not delivered begins with this one.
            cells[at + CONSUMED] = offset
        super()._take(grant, following, epoch, now)

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
        return self._hand is grant or self._settles(grant)

    def _settles(self, grant: Grant) -> bool:
        """Whether it has to wait for its delivery before it can be reported; that is hurried then."""
        if grant.settled(self._cells):
            return False
        self._outbox.hurry()
        return True

    def _ended(self, grant: Grant) -> bool:
        if grant.state is GrantState.STOPPING and self._settles(grant):
            return True
        if grant.state is GrantState.IN_HAND and grant.rewinds:
            self._rewind(grant)
            return True
        return super()._ended(grant)

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        if not self._settles(grant):
            super()._fail(grant, kind, offset, error)
            return
        self._leave(grant)
        grant.state = GrantState.STOPPING
        grant.last_word = Failed(grant.number, kind, offset, self._cells[grant.at + LEADER_EPOCH], error)

    def _close_if_settled(self, grant: Grant) -> None:
        if grant.state is GrantState.STOPPING and self._hand is not grant and grant.settled(self._cells):
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


class DeliveringFlights(Flights):
    """See the module's head. A `Settles`, by the flights' numbers."""

    def __init__(self, parts: Parts, hands_of: Callable[[str], Hands], outbox: Outbox) -> None:
        super().__init__(parts, hands_of)
        self.delivered: Callable[[], None] = lambda: None
        """Called when more may start than before. Set by the runner; caller: the sender's thread."""
        self.refused: Callable[[Flight, BaseException], None] = lambda flight, error: None
        """Called with a record whose outputs the brokers will never take. Likewise."""
        self._outbox = outbox
        self._under_way: dict[int, Flight] = {}

    # -- sender's thread -----------------------------------------------------------------------------------------------

    def settle(self, reached: Mapping[int, int]) -> None:
        """These have arrived."""
        with self._lock:
            for number in reached:
                if (flight := self._under_way.pop(number, None)) is not None:
                    flight.outputs = ()
                    self._done(flight)
        self.delivered()

    def rewind(self, numbers: Iterable[int]) -> None:
        """These are refused: they have failed."""
        with self._lock:
            known = [flight for number in numbers if (flight := self._under_way.get(number)) is not None]
            # One that was taken back with another one may be on its way again by now.
            refused = self._take_back([flight for flight in known if flight.refusal is not None])
            for flight in refused:
                del self._under_way[flight.number]
                flight.withdraw()
                flight.lane.refused_at = NO_OFFSET
                self._lanes.take_up(flight, now_ns())
                self._handed[flight.track.grant].taken(flight)
        for flight in refused:
            assert flight.refusal is not None
            self.refused(flight, flight.refusal)

    # -- control thread ------------------------------------------------------------------------------------------------

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `GrantTable`: and those whose outputs do not arrive."""
        told, count = super().parked()
        if (why := self._outbox.late()) is None:
            return told, count
        with self._lock:
            late = [number for number, handed in self._handed.items() if handed.track.sending]
        told += [Parked(number, "delivery", why) for number in islice(late, PARKED_TOLD - len(told))]
        return told, {**count, "delivery": len(late)} if late else count

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _start(self, hands: Hands, now: int) -> Flight | None:
        return super()._start(hands, now) if self._outbox.room() else None

    def _take_back(self, refused: Sequence[Flight]) -> Sequence[Flight]:
        """Which of these are dealt with now."""
        return refused

    def _finish(self, flight: Flight) -> bool:
        return self._deliver(flight, lane_waits=True) if flight.outputs else self._done(flight)

    def _deliver(self, flight: Flight, *, lane_waits: bool) -> bool:
        """See `_finish`: it is done when all that it left has arrived."""
        handed = self._handed[flight.track.grant]
        if flight.track.discarded:
            self._lanes.queue_again(flight)
            return self._left_hands(flight)
        self._lanes.send(flight, lane_waits=lane_waits)
        handed.returned(flight)
        flight.refusal = None
        self._under_way[flight.number] = flight
        entry = Entry(flight, flight.offset, flight.offset + 1, flight.outputs, flight.given_up)
        # The record is kept in memory as well: it may have to be handled again.
        self._outbox.put(entry, 1, flight.size + size_of(flight.outputs))
        if handed.grant.state is GrantState.STOPPING or self._lanes.holds_back:
            self._outbox.hurry()
        return True

    def _busy(self, grant: Grant) -> bool:
        track = self._handed[grant.number].track
        if grant.discarded:
            # Lost: its next owner may have begun.
            track.discarded = True
            for flight in list(track.sending):
                del self._under_way[flight.number]
                self._lanes.arrived(flight)
        if track.sending:
            self._outbox.hurry()
        return super()._busy(grant)


class CommittingFlights(DeliveringFlights):
    """See the module's head. A `transactions.Table`."""

    def places(self, shipment: Shipment, live: Sequence[Entry]) -> list[ClientPartition]:
        """See `transactions.Table`. Those before it that are not settled yet count as done: their transactions are
        committed before this one, or this one is aborted with them."""
        delivered = _flights(live).union(*(_flights(before.entries) for before in shipment.all_before()))
        with self._lock:
            places = {track: place_with(track, delivered) for track in {flight.track for flight in _flights(live)}}
            for track, place in places.items():
                track.placed = place.offset
        return [_as_client_has_it(track, place) for track, place in places.items()]

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _take_back(self, refused: Sequence[Flight]) -> Sequence[Flight]:
        first = {flight.lane: flight for flight in sorted(refused, key=lambda flight: -flight.offset)}
        for flight in first.values():
            for recalled in self._lanes.recall(flight):
                self._under_way.pop(recalled.number, None)
                self._handed[recalled.track.grant].left(recalled)
                recalled.withdraw()
                recalled.refusal = None
        return list(first.values())

    def _open(self, start: FetcherStart) -> Grant:
        grant = super()._open(start)
        track = self._handed[grant.number].track
        track.placed, track.began_with = start.offset, start.began_with
        return grant

    def _pass_by(self, handed: Handed, position: int, epoch: int) -> None:
        track = handed.track
        note_gone(track, position)
        if track.order or max(track.consumed, position) <= track.placed:
            return
        flight = self._lanes.stand_in(track, max(track.consumed, position), epoch)
        self._under_way[flight.number] = flight
        self._outbox.put(Entry(flight, flight.offset, flight.offset + 1, ()), 0, 0)

    def _done(self, flight: Flight) -> bool:
        if flight.message is not None:
            return super()._done(flight)
        handed = self._handed[flight.track.grant]
        self._lanes.finish(flight)
        handed.store()
        return not self._conclude(handed)

    def _finish(self, flight: Flight) -> bool:
        if self.overtaken(flight):
            flight.withdraw()
            self._lanes.queue_again(flight)
            return self._left_hands(flight)
        return self._deliver(flight, lane_waits=False)


def _flights(entries: Sequence[Entry]) -> set[Flight]:
    return {entry.origin for entry in entries if isinstance(entry.origin, Flight)}


def _as_client_has_it(track: Track, place: Position) -> ClientPartition:
    metadata = with_partitions(track.began_with, place.done)
    if place.leader_epoch == NO_EPOCH:
        return ClientPartition(*track.tp, place.offset, metadata)
    return ClientPartition(*track.tp, place.offset, metadata, place.leader_epoch)
