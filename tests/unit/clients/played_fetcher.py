"""In the place of our own fetcher, as a reader of columns sees it: what it is told, and what it has fetched."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kunicorn.clients.column_reader import ColumnReader
from kunicorn.fetch.queue import Fetched
from kunicorn.positions import Edges


class Placing:
    """Of a fetcher: what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def call(self, do: Callable[[Any], None]) -> None:
        do(SimpleNamespace(place=self._note, remove=self._note, get=lambda tp: None))

    def _note(self, *each: Any, topic_id: bytes = b"") -> None:
        self.told.append(each)


class Queue:
    """What was fetched, one after the other; None: nothing came in time."""

    def __init__(self, *fetched: Fetched | None) -> None:
        self._fetched = list(fetched)

    def get(self, within: float) -> Fetched | None:
        return self._fetched.pop(0) if self._fetched else None


def reader_of(*found: Fetched | None, first: int = 0, placing: Placing | None = None, **reading: Any) -> ColumnReader:
    """Of logs that begin there."""
    fetcher: Any = placing or Placing()
    queue: Any = Queue(*found)
    return ColumnReader(fetcher, queue, lambda tp: Edges(first, 99), **reading)
