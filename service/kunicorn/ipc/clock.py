"""Clock of leases and deadlines, shared by supervisor and workers. Small, as it is part of every start.

CLOCK_BOOTTIME: the same in every process of the machine, and running on while the machine is suspended, since a lease
must run out although nobody was there to watch it. Off Linux, where no lease is kept, the monotonic clock.
"""

from __future__ import annotations

import time

NANOSECONDS = 1_000_000_000
CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since boot, suspended time included."""
    return time.clock_gettime(CLOCK)


def now_ns() -> int:
    """Nanoseconds since boot, suspended time included."""
    return time.clock_gettime_ns(CLOCK)


def wall_ms() -> int:
    """Milliseconds since 1970, the clock of records' timestamps. Deadlines never go by it."""
    return time.time_ns() // 1_000_000
