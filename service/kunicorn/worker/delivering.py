"""The table where several records are in hand and what handlers return is sent, at least once.

1. A record is done when its outputs are delivered. Its hand is free meanwhile; its lane waits, so that outputs of one
   lane are in its order, and a record whose outputs are refused can still be tried again before the next of its lane.
2. A grant that is given up settles first; only one that is lost is reported at once, and what it has left is delivered
   no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from kunicorn.handling.outputs import size_of
from kunicorn.pipes.clock import now_ns
from kunicorn.pipes.messages import Parked
from kunicorn.topics import NO_OFFSET
from kunicorn.worker.flight import Flight
from kunicorn.worker.flights import Flights
from kunicorn.worker.grants import Grant, GrantState
from kunicorn.worker.hands import Hands
from kunicorn.worker.outbox import Entry, Outbox
from kunicorn.worker.table import PARKED_TOLD, Parts


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
