"""How far a partition is with its records, and what may start by that. Pure; called under the table's lock."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop

from kunicorn.pipes.marks import WINDOW, written
from kunicorn.topics import Position
from kunicorn.worker.flight import Flight, Lane, Stage, Track


def settle(track: Track) -> bool:
    """Let go of what is done with nothing unfinished before it; whether the consumed offset has moved by that."""
    order = track.order
    if not order or order[0].stage is not Stage.DONE:
        return False
    while order and order[0].stage is Stage.DONE:
        flight = order.popleft()
        track.passed.append(flight.offset)
        track.consumed, track.epoch = flight.offset + 1, flight.epoch
    if order:
        track.consumed = order[0].offset
    # Only those that may start now: each that may not would come back with every record that ends.
    while track.beyond and track.beyond[0][0] < track.consumed + WINDOW:
        make_ready(heappop(track.beyond)[2])
    return True


def note_gone(track: Track, position: int) -> None:
    """Dropped records that did not come again were compacted away meanwhile."""
    gone = False
    while track.dropped and track.dropped[0].offset < position:
        track.dropped.popleft().stage = Stage.DONE
        gone = True
    if gone:
        settle(track)


def make_ready(lane: Lane, *, first: bool = False) -> None:
    """Put the lane among those that a free hand looks at; `first`: before the others."""
    if lane.ready:
        return
    lane.ready = True
    lane.track.hands.ready.add(lane, first=first)


def done_ahead(track: Track) -> Iterator[int]:
    """What is done beyond the consumed offset: under this grant, and under earlier ones."""
    yield from (flight.offset for flight in track.order if flight.stage is Stage.DONE)
    yield from (offset for offset in track.done_before if offset >= track.consumed)


def place_with(track: Track, delivered: Collection[Flight]) -> Position:
    """How far the partition is once these are done, too."""
    consumed, epoch, ahead = track.consumed, track.epoch, []
    unfinished = False
    for flight in track.order:
        if unfinished and flight.offset >= consumed + WINDOW:
            break
        if flight.stage is not Stage.DONE and flight not in delivered:
            consumed, unfinished = (consumed if unfinished else flight.offset), True
        elif unfinished:
            ahead.append(flight.offset)
        else:
            consumed, epoch = flight.offset + 1, flight.epoch
    ahead += [offset for offset in track.done_before if offset >= consumed]
    return Position(consumed, epoch, written(consumed, frozenset(ahead)))
