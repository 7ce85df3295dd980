"""What was fetched and is not taken yet: between the fetcher's thread, which puts, and the worker's loop, which takes.

Bounded in bytes: while it is full the fetcher asks no broker for more, and goes on in no answer. A piece of an answer
comes on top, one for each broker. What was taken and is still alive counts, too: where a handler keeps its columns,
or records wait for another try, less is fetched ahead. Even where that leaves no room at all, an answer is fetched
whenever the queue is empty: a partition that waits must hold up no other. Neither side waits for a lock: each counts
what it has moved, and reads the other's count.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Any, NamedTuple

from kunicorn.fetch.table import News
from kunicorn.handler.messages import Columnar


class Fetched(NamedTuple):
    """What one answer has of one partition."""

    news: News
    rows: Columnar | None
    """None: nothing to handle, but the position has moved, or there is a fault."""
    nbytes: int

    def cut(self, most: int) -> tuple[Fetched, Fetched | None]:
        """Its first rows, so many at most, and the rest. A fault comes with the last row."""
        rows, news = self.rows, self.news
        if rows is None or len(rows) <= most:
            return self, None
        whole: Any = rows
        first, behind = whole[:most], whole[most:]
        kept = self.nbytes * most // len(rows)
        begun = news._replace(rows=most, next_offset=first.ends()[1] + 1, fault=None)
        left = news._replace(first=news.first + most, rows=len(behind))
        return Fetched(begun, first, kept), Fetched(left, behind, self.nbytes - kept)


class FetcherBroke(Exception):
    """The fetcher's thread has ended by what nobody has foreseen, which is the cause: nothing comes any more."""


class FetchQueue:
    """The queue. One thread puts, one takes."""

    def __init__(self, most_bytes: int, held: Callable[[], int] = lambda: 0) -> None:
        """`held`: bytes of all rows that are alive, queued or not (`Decoder.held`)."""
        self._most, self._held = most_bytes, held
        self._queue: queue.SimpleQueue[Fetched | BaseException] = queue.SimpleQueue()
        self._head: Fetched | None = None
        """Out of the queue, and not taken, or not all of it."""
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

    def broke(self, error: BaseException) -> None:
        """Say that nothing comes behind what is queued, and why."""
        self._queue.put(error)

    def waits_for_room(self) -> bool:
        """Whether there is no room; then `wake` is called when there is."""
        self._waits = True
        if self._is_full:
            return True
        self._waits = False
        return False

    # -- the loop ------------------------------------------------------------------------------------------------------

    def head(self, seconds: float) -> Fetched | None:
        """The first, which stays; waits so long for it. None: there is none. Raises `FetcherBroke`, each time from then
        on."""
        if self._head is None:
            with contextlib.suppress(queue.Empty):
                found = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
                if isinstance(found, BaseException):
                    self._queue.put(found)
                    raise FetcherBroke("the fetcher's thread has ended: nothing is fetched any more") from found
                self._head = found
        return self._head

    def pop(self, rest: Fetched | None = None) -> None:
        """Take the first away, of which `rest` stays in its place."""
        assert self._head is not None
        self._taken += self._head.nbytes - (0 if rest is None else rest.nbytes)
        self._head = rest
        if self._waits and not self._is_full:
            self._waits = False
            self._wake()

    def get(self, seconds: float) -> Fetched | None:
        """Take the first, all of it; waits so long for it. Raises as `head`."""
        if (fetched := self.head(seconds)) is not None:
            self.pop()
        return fetched

    @property
    def bytes(self) -> int:
        """Of the rows in it."""
        return self._put - self._taken

    @property
    def taken_bytes(self) -> int:
        """Of rows that are alive and not in it, with whatever they keep in memory."""
        return max(0, self._held() - self.bytes)

    @property
    def _is_full(self) -> bool:
        return self.bytes >= self._most or (self.bytes > 0 and self._held() >= self._most)
