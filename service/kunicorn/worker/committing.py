"""The table where several records are in hand and what handlers return is committed in transactions.

1. Every record goes out with a transaction, also one that leaves nothing: the transaction has its offset.
2. A transaction commits for each partition its lowest unfinished offset and, as the commit's metadata, what is done
   beyond that; whoever gets the partition next leaves those out.
3. A lane goes on while its records are on their way, else a key would have one record per transaction. When one of them
   is refused, what came behind it in its lane is taken back, and handled again behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.topics import NO_EPOCH, Position, TopicPartition
from kunicorn.worker.delivering import DeliveringFlights
from kunicorn.worker.flight import Flight
from kunicorn.worker.outbox import Entry
from kunicorn.worker.progress import place_with
from kunicorn.worker.shipment import Shipment


class CommittingFlights(DeliveringFlights):
    """See the module's head. A `transactions.Table`."""

    def places(self, shipment: Shipment, live: Sequence[Entry]) -> list[ClientPartition]:
        """See `transactions.Table`. Those before it that are not settled yet count as done: their transactions are
        committed before this one, or this one is aborted with them."""
        delivered = _flights(live).union(*(_flights(before.entries) for before in shipment.all_before()))
        with self._lock:
            places = [(track.tp, place_with(track, delivered)) for track in {flight.track for flight in _flights(live)}]
        return [_as_client_has_it(tp, place) for tp, place in places]

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _take_back(self, refused: Sequence[Flight]) -> Sequence[Flight]:
        first = {flight.lane: flight for flight in sorted(refused, key=lambda flight: -flight.offset)}
        for flight in first.values():
            for recalled in self._lanes.recall(flight):
                self._under_way.pop(recalled.number, None)
                self._handed[recalled.track.grant].left(recalled)
                recalled.outputs, recalled.is_letter, recalled.refusal = (), False, None
        return list(first.values())

    def _finish(self, flight: Flight) -> bool:
        if self.overtaken(flight):
            flight.outputs, flight.is_letter = (), False
            self._lanes.queue_again(flight)
            return self._left_hands(flight)
        return self._deliver(flight, lane_waits=False)


def _flights(entries: Sequence[Entry]) -> set[Flight]:
    return {entry.origin for entry in entries if isinstance(entry.origin, Flight)}


def _as_client_has_it(tp: TopicPartition, place: Position) -> ClientPartition:
    if place.leader_epoch == NO_EPOCH:
        return ClientPartition(*tp, place.offset, place.done)
    return ClientPartition(*tp, place.offset, place.done, place.leader_epoch)
