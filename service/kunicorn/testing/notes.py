"""What is noted of each record while it is handled: in shared memory, so that a killed worker's notes are not lost."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from enum import IntEnum

_WORD = 4


class Fate(IntEnum):
    """How a record ended other than by the handler's return."""

    NONE = 0
    SKIPPED = 1
    DEAD_LETTER = 2
    GIVEN_UP = 3
    RETRY_TOPIC = 4


class Notes:
    """Attempts and fate of `count` records, by their index; errors are this process's own."""

    def __init__(self, count: int) -> None:
        self._map = mmap.mmap(-1, max(1, 2 * count) * _WORD)
        self._cells = memoryview(self._map).cast("i")
        self._count = count
        self.errors: dict[int, list[BaseException]] = {}

    def called(self, indices: Iterable[int]) -> None:
        """The handler is called with these."""
        for index in indices:
            self._cells[index] += 1

    def raised(self, indices: Iterable[int], error: BaseException) -> None:
        """The handler raised over these."""
        for index in indices:
            self.errors.setdefault(index, []).append(error)

    def ended(self, indices: Iterable[int], fate: Fate) -> None:
        """These are done with."""
        for index in indices:
            self._cells[self._count + index] = fate

    def attempts(self, index: int) -> int:
        """How often the handler was called with it."""
        return self._cells[index]

    def fate(self, index: int) -> Fate:
        """How it ended, if not by the handler's return."""
        return Fate(self._cells[self._count + index])

    def close(self) -> None:
        """Free the memory."""
        self._cells.release()
        self._map.close()
