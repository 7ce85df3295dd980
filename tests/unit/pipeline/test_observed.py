"""What the driver sees of ranges underway: by the files of tasks that run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.in_hand_file import NEXT, noted_so_far, take_up
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import FromRows, ranges_text
from kunicorn.positions import OffsetRange

FIRST, SECOND = OffsetRange("orders", 0, 100, 200), OffsetRange("orders", 1, 0, 50)


def noted(place: Path) -> int:
    return noted_so_far(Directory(str(place)), {FIRST, SECOND})


def test_a_range_counts_as_far_as_its_try_is(tmp_path: Path) -> None:
    assert noted(tmp_path) == 0
    hand = take_up(FIRST, Directory(str(tmp_path)))
    assert noted(tmp_path) == 0
    hand.cells[NEXT] = 130
    assert noted(tmp_path) == 30
    hand.over()
    assert noted(tmp_path) == 0, "its task is about to tell"


def test_another_try_of_a_range_counts_from_where_the_furthest_was(tmp_path: Path) -> None:
    take_up(FIRST, Directory(str(tmp_path))).cells[NEXT] = 170
    take_up(FIRST, Directory(str(tmp_path))).cells[NEXT] = 120
    assert noted(tmp_path) == 70


def test_ranges_that_are_not_underway_add_nothing(tmp_path: Path) -> None:
    take_up(SECOND._replace(stop=60), Directory(str(tmp_path))).cells[NEXT] = 55
    assert noted(tmp_path) == 0


def test_only_directories_of_ranges_underway_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(100):
        take_up(OffsetRange("orders", partition, 100, 200), Directory(str(tmp_path))).cells[NEXT] = 130
    read: set[str] = set()

    def noting(ask: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(path: Any) -> Any:
            read.add(str(path))
            return ask(path)

        return noted

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    assert noted(tmp_path) == 30
    assert read <= {str(tmp_path / "orders" / number) for number in "01"}


def test_a_task_tells_what_a_range_has_come_to_as_soon_as_it_has_ended() -> None:
    told: list[Summary] = []

    class Told:
        def add(self, more: list[Summary]) -> None:
            told.extend(more)

    through = Summary(*FIRST, FIRST.stop, 90, 5, 0, None, "", 0.1)
    halted = Summary(*SECOND, 20, 20, 0, 0, "orders-1@20: not now", "", 0.1)
    accumulator: Any = Told()
    task = FromRows(lambda ranges: ({FIRST: through, SECOND: halted}[each] for each in ranges), accumulator)
    rows = pa.RecordBatch.from_pydict({"ranges": [ranges_text([FIRST]), ranges_text([SECOND])]})
    assert list(task(iter([rows]))) == []
    assert told == [through, halted]
