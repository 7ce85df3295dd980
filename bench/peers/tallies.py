"""Reading what contenders counted (`clients/tally.py`), and judging it: every record handled exactly once."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

COUNT_BITS = 42
_SUM = (1 << COUNT_BITS) - 1


class Counted(NamedTuple):
    """What was handled of one partition."""

    records: int
    offsets: int
    """Their sum."""


class Tallies:
    """All processes' files of one run; the processes may still be writing."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self._directory = directory
        self._partitions = partitions
        self._cells: dict[str, memoryview] = {}

    def total(self) -> int:
        """Records counted so far."""
        self._look()
        return sum(
            cell >> COUNT_BITS for cells in self._cells.values() for cell in cells[: self._partitions].tolist() if cell
        )

    def counted(self) -> list[Counted]:
        """By partition."""
        self._look()
        columns = [cells[: self._partitions].tolist() for cells in self._cells.values()]
        return [
            Counted(sum(cell >> COUNT_BITS for cell in row), sum(cell & _SUM for cell in row))
            for row in zip(*columns, strict=True)
        ] or [Counted(0, 0)] * self._partitions

    def delays(self) -> list[tuple[int, int]]:
        """When each record was sent and how long ago that was when it was handled; nanoseconds, unsorted."""
        self._look()
        found: list[tuple[int, int]] = []
        for cells in self._cells.values():
            count, first = cells[self._partitions], self._partitions + 1
            pairs = cells[first : first + 2 * count].tolist()
            found += zip(pairs[::2], pairs[1::2], strict=True)
        return found

    def _look(self) -> None:
        for path in self._directory.iterdir():
            if path.name not in self._cells and path.stat().st_size:
                with path.open("rb") as file:
                    self._cells[path.name] = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)).cast("Q")


def first_offsets(records: int) -> int:
    """The sum of a partition's first offsets."""
    return records * (records - 1) // 2


def findings(
    counted: Sequence[Counted], produced: Sequence[int], *, stopped: bool = False, in_order: bool = True
) -> str:
    """What was not handled exactly once; nothing if all was. `stopped`: the run was cut short, so that each partition's
    first records are all that there may be; unless `in_order`, only their number can be judged then."""
    lost = repeated = wrong = 0
    for (records, offsets), there in zip(counted, produced, strict=True):
        due = min(records, there) if stopped else there
        lost += max(0, due - records)
        repeated += max(0, records - there)
        wrong += records == due and offsets != first_offsets(due) and (in_order or not stopped)
    said = [f"{lost:,} lost" * bool(lost), f"{repeated:,} handled again" * bool(repeated)]
    said.append(f"other records than these in {wrong} partitions" * bool(wrong))
    return ", ".join(filter(None, said))
