"""The table where several records are in hand and what handlers return is committed in transactions.

1. Every record goes out with a transaction, also one that leaves nothing: the transaction has its offset.
2. A transaction commits for each partition its lowest unfinished offset and, as the commit's metadata, what is done
   beyond that; whoever gets the partition next leaves those out.
3. What was passed by without a record (markers, compacted records) at the end of a partition goes out likewise: else
   others would see a lag there.
4. A lane goes on while its records are on their way, else a key would have one record per transaction. When one of them
   is refused, what came behind it in its lane is taken back, and handled again behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.pipes.marks import with_partitions
from kunicorn.pipes.messages import FetcherStart
from kunicorn.topics import NO_EPOCH, Position
from kunicorn.worker.delivering import DeliveringFlights
from kunicorn.worker.flight import Flight, Track
from kunicorn.worker.grants import Grant
from kunicorn.worker.handed import Handed
from kunicorn.worker.outbox import Entry
from kunicorn.worker.progress import note_gone, place_with
from kunicorn.worker.shipment import Shipment


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
