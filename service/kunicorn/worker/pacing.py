"""How many records are handled between two looks at the clock. Pure; durations are nanoseconds."""

from __future__ import annotations

MAX_CHUNK = 1000
_CHUNK_NS = 1_000_000


class ChunkPace:
    """Grows with fast handlers, so that the clock costs nothing, and falls to one record with slow ones.

    Between two looks at the clock the lease may run out unseen by the runner (the control thread sees it, but only
    when it gets the interpreter), so a chunk shall stay in the order of a millisecond.
    """

    def __init__(self) -> None:
        self.size = 1

    def took(self, records: int, duration: int) -> None:
        """Note a finished chunk."""
        if duration > _CHUNK_NS:
            # In proportion: a fast handler whose worker had to wait for a processor is not slow.
            self.size = max(1, records * _CHUNK_NS // duration)
        elif records >= self.size:
            self.size = min(self.size * 2, MAX_CHUNK)
