"""A grant of several records in hand: its lanes, and what the ledger says of it.

Bits before offsets, and offsets before bits that are cleared: a record that SIGKILL hits between two stores is at worst
handled again, never passed over (see `pipes.marks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from kunicorn.pipes import marks
from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.pipes.ledger import (
    CONSUMED,
    HAND_COUNT,
    HAND_OFFSET,
    HAND_SINCE,
    HANDLED,
    LEADER_EPOCH,
    TIMESTAMP,
    Ledger,
)
from kunicorn.pipes.messages import FailureKind, InHand, Parked
from kunicorn.topics import NO_EPOCH, NO_TIMESTAMP
from kunicorn.worker.flight import Flight, Track, oldest
from kunicorn.worker.grants import Grant, GrantState
from kunicorn.worker.progress import done_ahead
from kunicorn.worker.table import PARKED_TOLD


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
        return marks.written(self.track.consumed, frozenset(done_ahead(self.track)))

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
        if track.consumed - cells[at + CONSUMED] >= marks.WINDOW:
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
