"""`setup`, `flush` and `teardown` in a process that has one task after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import Message

from kunicorn import Halt, Record, Skip
from kunicorn.handler.messages import Run
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import concurrent, range_outcomes, ranges
from kunicorn.pipeline.tasks.executor_process import RangeFailed, SettingsFile, set_up, settings_file
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import OffsetRange
from kunicorn.settings import load
from tests.unit.pipeline.fetched import messages
from tests.unit.pipeline.task_settings import task_settings

WHOLE = OffsetRange("orders", 3, 0, 10)
calls: list[str] = []


class Plain:
    def setup(self, worker: Any) -> None:
        calls.append("setup")

    def handle(self, record: Any) -> None:
        pass


class WithFlush(Plain):
    def flush(self) -> None:
        calls.append("flush")

    def teardown(self) -> None:
        calls.append("teardown")


class WithTeardown(Plain):
    def teardown(self) -> None:
        calls.append("teardown")


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (Plain, ["setup"]),
        (WithFlush, ["setup", "flush", "flush"]),
        (WithTeardown, ["setup", "teardown", "setup", "teardown"]),
    ],
)
def test_setup_is_called_once_a_process_unless_only_teardown_writes(
    tmp_path: Path, handler: type, expected: list[str]
) -> None:
    calls.clear()
    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:{handler.__name__}"))
    file = settings_file(path, load(path, {}))
    for _ in range(2):
        with set_up(file) as handlings:
            handlings.of("orders").flush()
    assert calls == expected


def test_a_task_that_fails_leaves_no_handler_behind(tmp_path: Path) -> None:
    calls.clear()
    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:WithFlush"))
    file = settings_file(path, load(path, {}))
    with pytest.raises(OSError, match="away"), set_up(file):
        raise OSError("away")
    with set_up(file):
        pass
    assert calls == ["setup", "setup"]


class WritesAtItsEnd:
    """Holds records back until `teardown`, and finds the database away in the first try."""

    away = True
    written: ClassVar[list[int]] = []

    def setup(self, options: Any) -> None:
        self.held: list[int] = []

    def handle(self, record: Record) -> Any:
        if record.offset == 9:
            return Skip("known")
        if record.offset == 4 and not self.away:
            return Halt("met by the second try alone")
        self.held.append(record.offset)
        return None

    def teardown(self) -> None:
        if self.away:
            raise ConnectionError("the database is away")
        self.written.extend(self.held)


class AsyncWritesAtItsEnd(WritesAtItsEnd):
    """Has several records in hand."""

    async def handle(self, record: Record) -> Any:
        return super().handle(record)


@pytest.mark.parametrize("handler", [WritesAtItsEnd, AsyncWritesAtItsEnd])
def test_a_try_whose_teardown_fails_leaves_no_rows_that_the_next_one_would_go_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: type[WritesAtItsEnd]
) -> None:
    class Reader:
        def read(self, *ranges: OffsetRange, aside: object) -> Iterator[Run]:
            yield messages(*range(10))

    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:{handler.__name__}"))
    monkeypatch.setattr(SettingsFile, "records", lambda *_: Reader())
    monkeypatch.setattr(handler, "written", [])
    outcomes = Directory(str(tmp_path / "outcomes"))
    task = HandleRanges(settings_file(path, load(path, {})), outcomes)
    monkeypatch.setattr(handler, "away", True)
    with pytest.raises(
        RangeFailed, match=rf"^teardown of .*:{handler.__name__}, on .*: ConnectionError: the database is"
    ):
        list(task([WHOLE]))
    assert outcomes.names(".parquet") == []
    monkeypatch.setattr(handler, "away", False)
    monkeypatch.setattr("kunicorn.pipeline.tasks.ranges._attempt", lambda: 1)
    (summary,) = task([WHOLE])
    assert (summary.until, summary.records, handler.written) == (4, 4, [0, 1, 2, 3])
    assert outcomes.names(".parquet") == [summary.file]


class SideBySide:
    """Has several records in hand."""

    async def handle(self, record: Any) -> None:
        handled.append(record.partition)


handled: list[int] = []


def test_of_ranges_side_by_side_each_tells_its_own_time_by_which_its_partition_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, empty = WHOLE._replace(partition=4), WHOLE._replace(partition=5)
    now = 0.0

    class Reader:
        def read(self, *ranges: OffsetRange, aside: object) -> Iterator[Run]:
            nonlocal now
            yield [Message(*WHOLE.tp, at, value=b"v") for at in range(10)]
            while len(handled) < 10:
                yield []
            yield []
            now += 30
            yield [Message(*slow.tp, 0, value=b"v")]

    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:SideBySide"))
    handled.clear()
    clock = SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns)
    for module in (concurrent, range_outcomes, ranges):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(SettingsFile, "records", lambda *_: Reader())
    task = HandleRanges(settings_file(path, load(path, {})), Directory(str(tmp_path)))
    seconds = {each.partition: each.seconds for each in task([WHOLE, slow, empty])}
    assert seconds == {3: 0, 4: 30, 5: 30}


@pytest.mark.parametrize(("any_age", "filtered"), [(False, 10), (True, 0)])
def test_records_are_as_young_as_max_age_ms_says_unless_the_job_is_asked_for_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_age: bool, filtered: int
) -> None:
    class Reader:
        def read(self, *ranges: OffsetRange, aside: object) -> Iterator[Run]:
            yield [Message(*WHOLE.tp, at, value=b"v", timestamp=(1, 1_000)) for at in range(10)]

    path = tmp_path / "config.toml"
    path.write_text(task_settings(f"{__name__}:Plain", "max_age_ms = 3_600_000"))
    monkeypatch.setattr(SettingsFile, "records", lambda *_: Reader())
    file = replace(settings_file(path, load(path, {})), any_age=any_age)
    (summary,) = HandleRanges(file, Directory(str(tmp_path)))([WHOLE])
    assert (summary.records, summary.filtered) == (10, filtered)
