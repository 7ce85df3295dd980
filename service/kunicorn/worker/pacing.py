"""How many records are handled between two looks at the clock. Pure; durations are nanoseconds."""

from __future__ import annotations

MAX_CHUNK = 1000
_FAST_NS = 1_000_000
_SLOW_NS = 4_000_000


class ChunkPace:
    """Grows with fast handlers, so that the clock costs nothing, and falls to one record with slow ones.

    Between two looks at the clock the lease may run out unseen by the runner (the control thread sees it, but only
    when it gets the interpreter), so a chunk shall stay in the order of a millisecond.
    """

    def __init__(self) -> None:
        self.size = 1

    def took(self, records: int, duration: int) -> None:
        """Note a finished chunk."""
        if duration > _SLOW_NS:
            self.size = 1
        elif duration > _FAST_NS:
            self.size = max(1, self.size // 2)
        elif records >= self.size:
            self.size = min(self.size * 2, MAX_CHUNK)
