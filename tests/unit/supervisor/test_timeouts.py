"""Since when a handler has had its record."""

from __future__ import annotations

from kunicorn.pipes import clock
from kunicorn.pipes.ledger import SlotReading
from kunicorn.supervisor.timeouts import began
from kunicorn.topics import Position


def reading(consumed: int, hand_offset: int = 100, since: float = 50.0) -> SlotReading:
    """Ten records from `hand_offset` on were taken in hand at `since` seconds."""
    return SlotReading(Position(consumed, 1), hand_offset, 10, round(since * clock.NANOSECONDS), -1, 0)


def test_the_first_record_in_hand_began_when_it_was_taken() -> None:
    assert began(reading(100), seen=None, now=70.0) == 50.0
    assert began(reading(100), seen=60.0, now=70.0) == 50.0


def test_a_later_one_is_not_charged_for_those_before_it() -> None:
    """A hundred fast records are taken in hand at once; the last of them has not been there from the beginning."""
    assert began(reading(107), seen=None, now=70.0) == 70.0
    assert began(reading(107), seen=68.5, now=70.0) == 68.5
