"""What a task that cannot go on says, and where a person reads it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import Message

from kunicorn import Record
from kunicorn.clients.range_reader import RangeUnreadable
from kunicorn.errors import ConfigError
from kunicorn.handler.messages import Run
from kunicorn.pipeline import stream
from kunicorn.pipeline.range_job import Stop
from kunicorn.pipeline.report import Bar, Tasks, said_by_task, tasks_of, watched
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import RangeFailed, SettingsFile, named_by_place, settings_file
from kunicorn.pipeline.tasks.in_hand_file import NEXT
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import OffsetRange
from kunicorn.settings import load
from tests.unit.pipeline.task_settings import task_settings

WHOLE = OffsetRange("orders", 3, 100, 200)


def handle(record: Record) -> None: ...


def failed(error: Exception, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the driver finds of it in Spark's account."""
    monkeypatch.setenv("SPARK_EXECUTOR_ID", "7")
    monkeypatch.setattr("socket.gethostname", lambda: "node-4")
    cells = memoryview(bytearray(64)).cast("q")
    cells[NEXT] = 142
    with pytest.raises(RangeFailed) as raised, named_by_place((WHOLE, cells)):
        raise error
    return said_by_task("An exception was thrown: " + "".join(traceback.format_exception(raised.value)))


def test_an_error_names_partition_offset_executor_and_the_tracebacks_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = failed(ValueError("year 55840\nis out of range"), monkeypatch)
    place = "orders-3 at offset 142, in 100 to 200, on executor 7 on node-4"
    assert said.startswith(f"{place}: ValueError: year 55840 is out of range (test_failing_tasks.py:")
    said = failed(RangeUnreadable("offsets 142 to 150 are gone"), monkeypatch)
    assert said == f"{place}: offsets 142 to 150 are gone"


def test_an_error_of_a_task_with_several_ranges_names_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader:
        def read(self, *ranges: OffsetRange, aside: object) -> Iterator[Run]:
            yield [Message(topic="orders", partition=4, offset=7, value=b"v")]
            raise ConnectionError("reset by peer")

    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:handle", "concurrency = 2"))
    file = settings_file(path, load(path, {}))
    task = HandleRanges(file, Directory(str(tmp_path / "outcomes")))
    monkeypatch.setattr(SettingsFile, "records", lambda *_: Reader())
    with pytest.raises(RangeFailed) as raised:
        list(task([WHOLE, OffsetRange("orders", 4, 0, 9)]))
    assert str(raised.value).startswith("orders-3 at offset 100, in 100 to 200 or orders-4 at offset ")
    assert "reset by peer" in str(raised.value)


def test_a_range_that_cannot_be_taken_up_is_named(tmp_path: Path) -> None:
    """As where the disk is full on which it notes what it has in hand."""
    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:handle"))
    (tmp_path / "outcomes").write_text("no directory")
    task = HandleRanges(settings_file(path, load(path, {})), Directory(str(tmp_path / "outcomes")))
    with pytest.raises(RangeFailed, match=r"^orders-3 at offset 100, in 100 to 200, on .*: NotADirectoryError: "):
        list(task([WHOLE]))


def test_failed_tries_are_told_while_the_round_goes_on() -> None:
    said: list[str] = []
    bar = Bar(RunState((WHOLE,)), said.append)
    bar.underway(Tasks(2, 0, 1, 1, tries=("try 1 of a task failed, executor 7: no",)))
    bar.underway(Tasks(2, 0, 1, 2, tries=("another",)))
    assert said == ["warning: try 1 of a task failed, executor 7: no", "warning: another"]


class Store:
    """Spark's, with the failed tries of its only stage; counts the questions to it."""

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.asked = list(numbers), 0

    def taskList(self, stage: int, attempt: int, offset: int, length: int, order: object, states: object) -> Any:
        self.asked += 1
        found = [self._failed(number) for number in sorted(self.numbers)[offset : offset + length]]
        return SimpleNamespace(size=lambda: len(found), apply=lambda at: found[at])

    @staticmethod
    def _failed(number: int) -> Any:
        why = SimpleNamespace(isDefined=lambda: True, get=lambda: f"kunicorn.errors.ServiceError: no {number}")
        return SimpleNamespace(
            taskId=lambda: number, attempt=lambda: 0, executorId=lambda: "7", errorMessage=lambda: why
        )


def test_of_very_many_failed_tries_all_are_told_in_time_each_once() -> None:
    store = Store(*range(100, 145))
    tracker = SimpleNamespace(
        getActiveStageIds=lambda: [3],
        getStageInfo=lambda number: SimpleNamespace(
            stageId=number, currentAttemptId=0, numTasks=9, numCompletedTasks=0, numActiveTasks=9,
            numFailedTasks=len(store.numbers),
        ),
    )  # fmt: skip
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(
            statusTracker=lambda: tracker,
            _jvm=MagicMock(),
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store)),
        )
    )
    told, heard = dict[int, set[int]](), list[str]()
    for _ in range(3):
        heard += tasks_of(spark, told).tries
    assert heard == [f"try 1 of a task failed, executor 7: no {number}" for number in store.numbers]
    asked = store.asked
    assert tasks_of(spark, told).tries == ()
    assert store.asked == asked, "nothing is new"
    store.numbers.append(77)  # An earlier one, which took longer.
    assert tasks_of(spark, told).tries == ("try 1 of a task failed, executor 7: no 77",)


def test_a_streams_failed_tries_are_told_and_its_tasks_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "watched", partial(watched, every=0.01))
    asked = iter([Tasks(2, 0, 1, 1, tries=("try 1 of a task failed, executor 7: no",)), Tasks(2, 1, 1, 1)])
    shown, said, over = list[Tasks](), list[str](), threading.Event()

    def ask() -> Tasks:
        if (found := next(asked, None)) is None:
            over.set()
        return found or Tasks()

    job, exposed = SimpleNamespace(tasks=ask), SimpleNamespace(underway=shown.append)
    with stream._watched(job, exposed, said.append):  # type: ignore[arg-type]
        assert over.wait(60)
    assert said == ["warning: try 1 of a task failed, executor 7: no"]
    assert ([each.done for each in shown[:2]], shown[-1]) == ([0, 1], Tasks())


def test_a_stream_goes_on_where_its_offsets_for_dashboards_cannot_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ConfigError("group 'orders.stream': COORDINATOR_NOT_AVAILABLE")

    monkeypatch.setattr(stream, "cluster_session", refused)
    settings: Any = SimpleNamespace(stream_group="orders.stream")
    exposed: Any = SimpleNamespace(moved=lambda *_: None)
    said: list[str] = []
    batches = stream.Batches(settings, Directory(str(tmp_path / "all")), Stop(), exposed, said.append)
    row = SimpleNamespace(asDict=lambda: asdict(Summary(*WHOLE, 200, 100, 0, 0, None, "f", 1.0)))
    frame: Any = SimpleNamespace(collect=lambda: [row])
    batches(frame, 4)
    assert (batches.latest, batches.counts.records) == (4, 100)
    assert "the offsets of micro-batch 4 are not committed for group orders.stream" in said[0]
    assert said[1] == "micro-batch 4: 100 records"
