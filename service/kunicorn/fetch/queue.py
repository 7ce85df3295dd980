"""What was fetched and is not taken yet: between the fetcher's thread, which puts, and the worker's loop, which takes.

Bounded in bytes: while it is full the fetcher asks no broker for more. An answer on its way comes on top, one for each
broker. Neither side waits for a lock: each counts what it has moved, and reads the other's count.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import NamedTuple

from kunicorn.fetch.table import News
from kunicorn.handler.messages import Columnar


class Fetched(NamedTuple):
    """What one answer has of one partition."""

    news: News
    rows: Columnar | None
    """None: nothing to handle, but the position has moved, or there is a fault."""
    nbytes: int


class FetchQueue:
    """The queue. One thread puts, one takes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._queue: queue.SimpleQueue[Fetched] = queue.SimpleQueue()
        self._put = self._taken = 0
        self._wake: Callable[[], None] = lambda: None
        self._waits = False

    # -- the fetcher's thread ------------------------------------------------------------------------------------------

    def on_room(self, wake: Callable[[], None]) -> None:
        """`wake` is called, by the taking thread, when there is room again after `waits_for_room`."""
        self._wake = wake

    def put(self, fetched: Fetched) -> None:
        """Add this, whatever room there is."""
        self._put += fetched.nbytes
        self._queue.put(fetched)

    def waits_for_room(self) -> bool:
        """Whether there is no room; then `wake` is called when there is."""
        self._waits = True
        if self._is_full:
            return True
        self._waits = False
        return False

    # -- the loop ------------------------------------------------------------------------------------------------------

    def take(self, most: int, seconds: float) -> list[Fetched]:
        """What there is until `most` rows are had, or more by the last; waits so long for the first."""
        taken: list[Fetched] = []
        rows = 0
        try:
            fetched = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
            while True:
                self._taken += fetched.nbytes
                rows += 0 if fetched.rows is None else len(fetched.rows)
                taken.append(fetched)
                if rows >= most:
                    break
                fetched = self._queue.get_nowait()
        except queue.Empty:
            pass
        if self._waits and not self._is_full:
            self._waits = False
            self._wake()
        return taken

    @property
    def bytes(self) -> int:
        """Of the rows in it."""
        return self._put - self._taken

    @property
    def _is_full(self) -> bool:
        return self._put - self._taken >= self._most
