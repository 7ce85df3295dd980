"""Clock of leases and deadlines, shared by supervisor and workers. Small, as it is part of every start.

CLOCK_BOOTTIME: the same in every process of the machine, and running on while the machine is suspended, since a lease
must run out although nobody was there to watch it.
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
    """Milliseconds since 1970, the clock of records' timestamps. Deadlines never go by it."""
    return time.time_ns() // 1_000_000
