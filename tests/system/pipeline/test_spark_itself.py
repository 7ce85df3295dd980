"""What jobs ask of Spark and of a session that is there already, each in a context of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from kunicorn.errors import ConfigError
from kunicorn.pipeline import stream
from kunicorn.pipeline.range_job import Stop, StoppedAtOnce, stopping
from kunicorn.pipeline.report import Bar, tasks_of
from kunicorn.pipeline.spark import Job, collected, open_session, stopped_behind
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import SettingsFile, named_by_place
from kunicorn.pipeline.tasks.limits import limits_of
from kunicorn.positions import OffsetRange
from tests.deploy.tools import Tools
from tests.system.members import toml
from tests.system.pipeline.desk import MASTER, QUICK_START, Desk, send
from tests.unit.settings.files import LEAST, loaded
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(900)
"""The first test of a file starts a JVM, which takes its time on a busy machine."""
SECONDS = 300.0


@pytest.fixture(scope="module", autouse=True)
def _jvm(audit: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A JVM that was started without a test's own settings: it keeps them over the sessions of other tests."""
    usual = LEAST + toml({"pipeline": {"spark": QUICK_START}})
    open_session(loaded(tmp_path_factory.mktemp("jvm"), usual), MASTER, "first").stop()


@pytest.mark.parametrize(("own", "cores"), [({"spark.default.parallelism": "1000"}, 4), ({"spark.task.cpus": "2"}, 2)])
def test_tasks_at_once_are_those_that_the_executors_run_whatever_clusters_set_as_parallelism(
    tmp_path: Path, own: dict[str, str], cores: int
) -> None:
    pipeline = {"max_records_per_second": 5000, "spark": {**QUICK_START, **own}}
    settings = loaded(tmp_path, LEAST + toml({"pipeline": pipeline}))
    spark = open_session(settings, "local[4]", "cores")
    try:
        job = Job(spark, SettingsFile("", ""))
        assert job.cores() == cores
        assert job.room() == 8
        assert limits_of(settings.pipeline, 10_000, job.cores()).records_per_second == 5000 / cores
    finally:
        spark.stop()


def test_sparks_python_processes_have_the_allocator_that_workers_have(
    desk_of: Callable[..., Desk], tools: Tools
) -> None:
    """In a context of its own, whose environment has the allocator for all jobs behind this one."""
    options = {"library": tools.jemalloc}
    desk = desk_of(1, {"handler": {"options": options}, "workers": {"allocator": tools.jemalloc}})
    send(desk.kafka.bootstrap, desk.topic, {0: ["preloaded"]})
    assert "handled       1 records in " in desk.said("backfill", "--master", MASTER, "--run", "preloaded")


def test_a_second_signal_ends_a_stream_at_once_and_is_not_taken_for_a_death_of_the_jvm(tmp_path: Path) -> None:
    spark = open_session(loaded(tmp_path, LEAST + toml({"pipeline": {"spark": QUICK_START}})), MASTER, "twice")
    over = Event()

    def attend() -> None:
        with stopped_behind(spark), stopping() as stop:
            attend_a_batch_that_hangs(spark, Directory(str(tmp_path)), stop, over)

    with pytest.raises(StoppedAtOnce, match="stopped at once"):
        attend()
    over.set()


def attend_a_batch_that_hangs(spark: SparkSession, place: Directory, stop: Stop, over: Event) -> None:
    """A stream in whose first micro-batch two signals come."""
    underway, nothing = Event(), cast(Any, None)
    batches = stream.Batches(nothing, place, stop, nothing, print)
    batches.busy = True

    def hang(frame: DataFrame, number: int) -> None:
        underway.set()
        over.wait(SECONDS)

    def signal_twice() -> None:
        assert underway.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: stop.asked, "the first signal")
        os.kill(os.getpid(), signal.SIGTERM)

    source = spark.readStream.format("rate").load().writeStream
    query = source.option("checkpointLocation", f"{place.url}/checkpoint").foreachBatch(hang).start()
    Thread(target=signal_twice, daemon=True).start()
    stream._attend(query, batches, stop, tries=4)


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
    told: dict[int, set[int]] = {}
    rows: list[Any] = []
    frame = spark.range(0, 1, 1, 1).mapInArrow(fail_once, "id bigint")
    round_underway = Thread(target=lambda: rows.extend(collected(frame)))

    def is_told() -> bool:
        bar.underway(tasks_of(spark, told))
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
    assert "ValueError: a reason (test_spark_itself.py:" in line


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
