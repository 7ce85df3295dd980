"""Time that nobody waits for: the worker's clock stands still while the handler works, and is turned on for a retry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kunicorn.pipes import clock

_START = 1_000_000 * clock.NANOSECONDS
_OVERSHOOT = 0.01


class TurnedClock:
    """Stands in for the module `time` inside `kunicorn.pipes.clock`. The handler's own clocks go on as they do."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self._now = _START
        self._began_ns = time.time_ns()
        self._idle_since = _START

    def clock_gettime_ns(self, number: int) -> int:
        """As of `time`."""
        return self._now

    def clock_gettime(self, number: int) -> float:
        """As of `time`."""
        return self._now / clock.NANOSECONDS

    def time_ns(self) -> int:
        """As of `time`."""
        return self._began_ns + self._now - _START

    def busy(self) -> None:
        """Something was handled."""
        self._idle_since = self._now

    def pass_idle(self, seconds: float) -> None:
        """Nobody has anything to do for so long, or a little longer the longer nobody had: a wait of a day is a few
        hundred turns of the loop, and ends at most one in a hundred late."""
        idle = self._now - self._idle_since
        self._now += max(int(seconds * clock.NANOSECONDS), int(idle * _OVERSHOOT), 1)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """What asks `kunicorn.pipes.clock` gets this time, in the whole process."""
        place: Any = clock
        place.time, before = self, place.time
        try:
            yield
        finally:
            place.time = before
