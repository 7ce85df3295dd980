"""What the driver learns of tries that fail, on a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kunicorn.errors import ConfigError
from kunicorn.pipeline.report import Bar, tasks_of
from kunicorn.pipeline.spark import asked_of_spark, open_session
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.tasks.executor_process import named_by_place
from kunicorn.positions import OffsetRange
from tests.system.members import toml
from tests.system.pipeline.desk import MASTER, QUICK_START
from tests.unit.settings.files import LEAST, loaded
from tests.waiting import wait_until


def test_why_a_try_failed_is_told_while_the_next_one_is_underway(tmp_path: Path) -> None:
    goes_on = tmp_path / "goes on"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        if context.attemptNumber() == 0:
            with named_by_place((OffsetRange("orders", 3, 100, 200), memoryview(bytearray(64)).cast("q"))):
                raise ValueError("a reason")
        wait_until(goes_on.exists, "the test to have seen it", 240, every=0.1)
        yield from batches

    spark = open_session(loaded(tmp_path, LEAST + toml({"pipeline": {"spark": QUICK_START}})), MASTER, "tries")
    said: list[str] = []
    bar = Bar(RunState(()), said.append)
    rows: list[Any] = []
    frame = spark.range(0, 1, 1, 1).mapInArrow(fail_once, "id bigint")
    round_underway = Thread(target=lambda: rows.extend(asked_of_spark(lambda: list(frame.collect()))))

    def is_told() -> bool:
        bar.underway(tasks_of(spark))
        return any("a reason" in line for line in said)

    try:
        round_underway.start()
        wait_until(is_told, "the reason", 240, every=0.2)
        goes_on.touch()
        round_underway.join(120)
    finally:
        goes_on.touch()
        spark.stop()
    assert [row["id"] for row in rows] == [0]
    # On a slow machine there is a line about the round, too.
    (line,) = (line for line in said if "a reason" in line)
    assert line.startswith("warning: try 1 of a task failed, executor driver: orders-3 at offset 0, in 100 to 200, on ")
    assert "ValueError: a reason (test_failed_tries.py:" in line


def test_a_session_that_is_there_already_and_speculates_is_refused(tmp_path: Path) -> None:
    settings = loaded(tmp_path, LEAST)
    builder = (
        SparkSession.builder.master(MASTER).config("spark.speculation", "true").config("spark.ui.enabled", "false")
    )
    there = builder.getOrCreate()

    try:
        with pytest.raises(ConfigError, match="speculation = true, and a range that two tasks handle at once"):
            open_session(settings, MASTER, "run")
    finally:
        there.stop()
