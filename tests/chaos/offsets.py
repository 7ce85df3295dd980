"""Sets of offsets as ranges: as large as they have gaps, however many records they are. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class Offsets:
    """The offsets of one partition that something has happened to. Small, as it is one data structure.

    Offsets mostly come one after the other: then it is one range, and adding to it costs a comparison.
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, offset: int) -> bool:
        """Whether it is new."""
        ends = self._ends
        if ends and ends[-1] == offset:
            ends[-1] = offset + 1
            return True
        at = bisect_right(self._firsts, offset)
        if at and offset < ends[at - 1]:
            return False
        self._insert(at, offset)
        return True

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset)
        return bool(at) and offset < self._ends[at - 1]

    def __len__(self) -> int:
        """How many they are."""
        return sum(self._ends) - sum(self._firsts)

    @property
    def end(self) -> int:
        """Behind the highest."""
        return self._ends[-1] if self._ends else 0

    def missing(self, end: int) -> Iterator[range]:
        """Ranges below `end` that are not in it."""
        at = 0
        for first, last in zip(self._firsts, self._ends, strict=True):
            if first >= end:
                break
            if first > at:
                yield range(at, first)
            at = last
        if at < end:
            yield range(at, end)

    def lacking(self, begin: int, end: int, excused: Iterable[int] = ()) -> int:
        """How many from `begin` to before `end` are not in it, without those that are excused."""
        gaps = sum(max(0, gap.stop - max(begin, gap.start)) for gap in self.missing(end))
        return gaps - sum(begin <= offset < end and offset not in self for offset in set(excused))

    def _insert(self, at: int, offset: int) -> None:
        joins_before = at > 0 and self._ends[at - 1] == offset
        joins_after = at < len(self._firsts) and self._firsts[at] == offset + 1
        if joins_before and joins_after:
            self._ends[at - 1] = self._ends.pop(at)
            del self._firsts[at]
        elif joins_before:
            self._ends[at - 1] = offset + 1
        elif joins_after:
            self._firsts[at] = offset
        else:
            self._firsts.insert(at, offset)
            self._ends.insert(at, offset + 1)
