"""What counts as a pause. Times are seconds; the partition's records are appended a second apart, from 8 s on."""

from __future__ import annotations

import pytest

from kunicorn.ipc.clock import NANOSECONDS
from tests.chaos.calls import Call, longest_waits

APPENDED = [8.0, 9.0, 10.0, 30.0]


def longest(*begun: float, served: float = 0) -> float:
    """Each call takes a tenth; what is asked about is the time from 10 s on."""
    calls = [
        Call(int(at * NANOSECONDS), 0, offset, int((at + 0.1) * NANOSECONDS), "a", 1) for offset, at in enumerate(begun)
    ]
    appended = [int(at * NANOSECONDS) for at in APPENDED]
    (wait,) = longest_waits({0: calls}, {0: appended}, 10 * NANOSECONDS, 99 * NANOSECONDS, int(served * NANOSECONDS))
    return wait / NANOSECONDS


def test_a_partition_pauses_while_its_next_record_lies_in_the_log_and_none_is_in_hand() -> None:
    assert longest(8.0, 9.0, 12.0, 30.5) == pytest.approx(2.0)


def test_what_was_in_the_log_when_a_broker_died_does_not_make_its_death_a_pause() -> None:
    assert longest(8.0, 9.0, 30.5, 30.7) == pytest.approx(20.5)
    assert longest(8.0, 9.0, 30.5, 30.7, served=29.0) == pytest.approx(1.5)
    assert longest(8.0, 9.0, 30.5, 30.7, served=31.0) == 0
