"""What the driver sees of a round underway: by files of tasks that run, by what those that are through have told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from kunicorn.pipeline.in_hand_file import NEXT, take_up
from kunicorn.pipeline.spark import Observed
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.task import FromNumbers, Summary, summary_batch
from kunicorn.positions import OffsetRange

FIRST, SECOND = OffsetRange("orders", 0, 100, 200), OffsetRange("orders", 1, 0, 50)


class Told:
    """An accumulator, as far as a task and the driver see it."""

    value = 0

    def add(self, more: int) -> None:
        self.value += more


def observed(place: Path, told: Any) -> Observed:
    return Observed(told, Directory(str(place)), [FIRST, SECOND])


def test_a_range_counts_as_far_as_its_try_is_and_stays_counted_when_its_file_is_gone(tmp_path: Path) -> None:
    told = Told()
    seen = observed(tmp_path, told)
    assert seen.offsets() == 0
    hand = take_up(FIRST, Directory(str(tmp_path)))
    assert seen.offsets() == 0
    hand.cells[NEXT] = 130
    assert seen.offsets() == 30
    hand.over()
    assert seen.offsets() == 30, "its task has not ended yet"
    told.add(FIRST.size)
    assert seen.offsets() == 100


def test_another_try_of_a_range_counts_from_where_the_furthest_was(tmp_path: Path) -> None:
    seen = observed(tmp_path, Told())
    take_up(FIRST, Directory(str(tmp_path))).cells[NEXT] = 170
    take_up(FIRST, Directory(str(tmp_path))).cells[NEXT] = 120
    assert seen.offsets() == 70


def test_a_round_of_many_ranges_is_counted_without_looking_at_the_notes_of_each(tmp_path: Path) -> None:
    many = [OffsetRange("orders", number, 0, 10) for number in range(501)]
    told = Told()
    seen = Observed(told, Directory(str(tmp_path)), many)  # type: ignore[arg-type]
    take_up(many[0], Directory(str(tmp_path))).cells[NEXT] = 5
    assert seen.offsets() == 0
    told.add(10)
    assert seen.offsets() == 10


def test_ranges_of_other_rounds_and_tasks_that_spark_ran_twice_add_nothing(tmp_path: Path) -> None:
    told = Told()
    seen = observed(tmp_path, told)
    take_up(SECOND._replace(stop=60), Directory(str(tmp_path))).cells[NEXT] = 55
    assert seen.offsets() == 0
    told.add(2 * FIRST.size + SECOND.size)
    assert seen.offsets() == FIRST.size + SECOND.size


def test_a_task_tells_of_what_it_has_handled_when_a_range_is_through() -> None:
    told: Any = Told()
    through = summary_batch(Summary(*FIRST, FIRST.stop, 90, 5, 0, None, "", 0.1))
    halted = summary_batch(Summary(*SECOND, 20, 20, 0, 0, "orders-1@20: not now", "", 0.1))
    task = FromNumbers(
        [FIRST, SECOND], lambda ranges: ({FIRST: through, SECOND: halted}[each] for each in ranges), told
    )
    for _ in task(iter([pa.RecordBatch.from_pydict({"id": [0, 1]})])):
        pass
    assert told.value == FIRST.size + 20
