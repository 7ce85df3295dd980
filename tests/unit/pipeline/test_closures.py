"""What Spark sends to every task does not grow with the partitions, and what a process has opened it keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.accumulators import INT_ACCUMULATOR_PARAM, Accumulator
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from kunicorn.clients.config import consumer_properties
from kunicorn.group.protocol import Committed
from kunicorn.handler.columns import SCHEMA
from kunicorn.ipc import bitmap
from kunicorn.pipeline import catch_up, spark
from kunicorn.pipeline.catch_up import TakeOver
from kunicorn.pipeline.export import ExportRanges
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.source import KunicornDataSource
from kunicorn.pipeline.spark import Job
from kunicorn.pipeline.state import Run, Runs, RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import SettingsFile, settings_file, told_of_differences
from kunicorn.pipeline.tasks.limits import NO_LIMITS
from kunicorn.pipeline.tasks.ranges import FromRows, HandleRanges, Task, ranges_text
from kunicorn.positions import OffsetRange, Position, TopicPartition
from kunicorn.settings import Settings, load
from tests.unit.pipeline.secured_config import CONFIG

RACK = "KUNICORN_KAFKA__CLIENT_RACK"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def file(config: Path) -> SettingsFile:
    return settings_file(config, load(config, {}))


def closure(task: Task) -> bytes:
    """As Spark sends it."""
    return pickled(FromRows(task, Accumulator(0, 0, INT_ACCUMULATOR_PARAM)))


def pickled(what: Any) -> bytes:
    found: bytes = cloudpickle.dumps(what)  # type: ignore[no-untyped-call]
    return found


def of_catch_up(
    file: SettingsFile, place: Directory, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Task, Mapping[TopicPartition, Any]]:
    """The task of a catch-up that takes over so many partitions, each with marks; and what is done of them."""
    jobs: list[RangeJob] = []

    def ran(job: RangeJob, state: RunState, *_: Any) -> RunState:
        jobs.append(job)
        return state

    settings = file.settings()
    tps = [TopicPartition("orders", number) for number in range(partitions)]
    ranges = [OffsetRange(*tp, 0, 500) for tp in tps]
    committed = Committed(0, 0, metadata=bitmap.written(0, range(7, 300, 3)))
    starts = dict.fromkeys(tps, Position(0, done=committed.metadata))
    found = TakeOver(starts, ranges, {}, dict.fromkeys(tps, committed), {}, [])
    run = Run("one", "catch-up", "x:y", "", RunState(ranges))
    monkeypatch.setattr(RangeJob, "__call__", ran)
    monkeypatch.setattr(catch_up, "told_of_differences", lambda settings, say: None)
    monkeypatch.setattr(catch_up, "at_once", lambda settings: 1)
    catch_up._run(settings, file, Runs(place.url), run, found, "local", lambda line: None)
    (job,) = jobs
    return job.task(False, NO_LIMITS), job.done


def test_a_task_is_sent_its_own_ranges_and_marks_and_no_others(
    file: SettingsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(str(tmp_path))
    sizes = []
    for partitions in (2, 2_000):
        task, done = of_catch_up(file, place, partitions, monkeypatch)
        sizes.append(len(closure(task)))
        row = ranges_text([OffsetRange("orders", 1, 0, 500)], done)
        assert len(row) < 200
    assert sizes[0] == sizes[1], "bytes of a closure of 2 partitions, and of 2,000"


def test_a_task_leaves_out_what_its_row_says_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Heard(HandleRanges):
        def __call__(self, ranges: Any) -> Any:
            heard.append((list(ranges), dict(self.done)))
            return ()

    heard: list[tuple[list[OffsetRange], dict[TopicPartition, Any]]] = []
    ranges = [OffsetRange("orders", 0, 10, 50), OffsetRange("orders", 1, 0, 9)]
    task = Heard(SettingsFile("", ""), Directory("/tmp/x"))
    rows = pa.RecordBatch.from_pydict(
        {"ranges": [ranges_text(ranges, {ranges[0].tp: {12, 49}}), ranges_text(ranges[1:])]}
    )
    list(FromRows(task, Accumulator(0, 0, INT_ACCUMULATOR_PARAM))(iter([rows])))
    assert heard == [(ranges, {ranges[0].tp: {12, 49}}), (ranges[1:], {})]


class Frame:
    """Of rows; keeps how large the function is that is sent to every task."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def mapInArrow(self, task: FromRows, schema: str) -> Frame:
        self.sent.append(len(closure(task.task)))
        return self


def test_no_job_puts_its_ranges_into_the_closure(
    file: SettingsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an export the topics are in it, by their ids: there are few."""
    place, frame = Directory(str(tmp_path)), Frame()
    accumulator = Accumulator(0, 0, INT_ACCUMULATOR_PARAM)
    context = SimpleNamespace(getConf=dict, accumulator=lambda *_: accumulator)
    monkeypatch.setattr(spark, "rows_frame", lambda session, rows, name: frame)
    monkeypatch.setattr(Job, "_collected", lambda self, work, ranges: None)
    monkeypatch.setattr(Job, "cores", lambda self: 400)
    for task in (HandleRanges(file, place), ExportRanges(file, place, Form(), SCHEMA, {"orders": "id"})):
        for partitions in (10, 10_000):
            job = Job(SimpleNamespace(sparkContext=context), file)  # type: ignore[arg-type]
            job.submit([OffsetRange("orders", number, 0, 500) for number in range(partitions)], task, place)
    assert frame.sent[0::2] == frame.sent[1::2], "bytes of a closure for 10 partitions, and for 10,000"


def test_what_a_job_submits_in_turn_has_one_accumulator(
    file: SettingsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark keeps each for as long as the driver lives."""
    made: list[Accumulator[int]] = []

    def accumulator(*_: object) -> Accumulator[int]:
        made.append(Accumulator(len(made), 0, INT_ACCUMULATOR_PARAM))
        return made[-1]

    monkeypatch.setattr(spark, "rows_frame", lambda *_: Frame())
    monkeypatch.setattr(Job, "_collected", lambda self, work, ranges: None)
    monkeypatch.setattr(Job, "cores", lambda self: 4)
    context, place = SimpleNamespace(getConf=dict, accumulator=accumulator), Directory(str(tmp_path))
    job = Job(SimpleNamespace(sparkContext=context), file)  # type: ignore[arg-type]
    for number in range(3):
        job.submit([OffsetRange("orders", number, 0, 500)], HandleRanges(file, place), place)
    assert len(made) == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_a_reader_is_sent_without_the_options_that_name_each_partitions_offset(config: Path, streaming: bool) -> None:
    sizes = []
    for partitions in (2, 2_000):
        offsets = json.dumps({"orders": {f"{number}": 10**9 + number for number in range(partitions)}})
        edges = ("starting",) if streaming else ("starting", "ending")
        options = {"config": str(config), **{f"{edge}Offsets": offsets for edge in edges}}
        # The driver's Python makes it, and another process beside the driver plans.
        made: Any = cloudpickle.loads(pickled(KunicornDataSource(options)))
        reader = made.streamReader(StructType()) if streaming else made.reader(StructType())
        assert len(reader._bounds.start.offsets) == partitions, "it plans by them"
        # Spark's function reads by the one, and names the other in messages.
        sent = pickled((made, reader))
        sizes.append(len(sent))
        there, reads = cloudpickle.loads(sent)
        assert (there.name(), list(reads.read(InputPartition(None)))) == ("kunicorn", [])
    assert sizes[0] == sizes[1], "bytes of a closure by offsets of 2 partitions, and of 2,000"


def test_a_process_keeps_its_client_from_task_to_task(file: SettingsFile) -> None:
    assert file.reader() is file.reader()
    assert file.reader().consumer is file.reader().consumer
    assert file.records(timestamp_types=True) is file.records(timestamp_types=True)


def test_properties_that_only_librdkafka_knows_have_it_fetch_and_the_driver_says_so(config: Path) -> None:
    config.write_text(CONFIG + '[kafka.librdkafka]\n"fetch.error.backoff.ms" = 200\n"fetch.min.bytes" = 2\n')
    settings, said = load(config, {}), list[str]()
    file = settings_file(config, settings)
    assert file.records() is file.reader()
    told_of_differences(settings, said.append)
    assert said == ["records are fetched by librdkafka, one by one, as [kafka.librdkafka] has fetch.error.backoff.ms"]


def test_a_task_fetches_by_the_rack_of_its_own_machine(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = settings_file(config, load(config, {}))
    for rack in ("zone-a", "zone-b"):
        monkeypatch.setenv(RACK, rack)
        there = SettingsFile(driver.path, driver.fingerprint, f"{driver.versions}")
        found: Settings = there._load()
        assert consumer_properties(found, "x")["client.rack"] == rack
