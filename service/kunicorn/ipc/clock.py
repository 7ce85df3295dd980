"""The one clock that supervisor and workers share. Light: part of every start.

CLOCK_BOOTTIME, because it is the same in every process of the machine and goes on while the machine
is suspended: a lease must run out although nobody was there to watch it.
"""

from __future__ import annotations

import time

NANOSECONDS = 1_000_000_000


def now() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now_ns() -> int:
    """Nanoseconds since boot, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Milliseconds since 1970: records' timestamps are of that clock, and nothing else here goes by it."""
    return time.time_ns() // 1_000_000
