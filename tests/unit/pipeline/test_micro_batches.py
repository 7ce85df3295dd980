"""A stream's micro-batches: every offset is in the outcome table once, and how the stream ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from kunicorn.errors import ConfigError, ServiceError
from kunicorn.pipeline import stream
from kunicorn.pipeline.range_job import Stop
from kunicorn.pipeline.spark import JobFailed
from kunicorn.pipeline.storage import Directory, Overtaken, StoreFailed
from kunicorn.pipeline.tasks.executor_process import SettingsFile, settings_file
from kunicorn.pipeline.tasks.limits import NO_LIMITS
from kunicorn.pipeline.tasks.outcomes import SCHEMA, table
from kunicorn.pipeline.tasks.range_outcomes import Summary, rows_file
from kunicorn.pipeline.tasks.ranges import FromSource, HandleRanges, MicroBatch
from kunicorn.positions import OffsetRange
from kunicorn.settings import load
from tests.unit.pipeline.played_log import PlayedLog
from tests.unit.settings.files import LEAST

WHOLE = OffsetRange("orders", 0, 0, 100)
WITH_A_FAILURE = [(0, 50, "done"), (50, 51, "dead_letter"), (51, 100, "done")]


@pytest.mark.parametrize("start", ["lastest", '{"orders": {"0": "5"}}', '{"orders": {"0": -3}}'])
def test_a_start_that_is_none_is_refused_before_spark_is_started(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would tell of it as of a failure that may pass (6), which schedulers try again."""
    config = tmp_path / "config.toml"
    config.write_text(f'{LEAST}[pipeline]\ndirectory = "{tmp_path / "runs"}"\n')
    settings = load(config, {})
    for name in ("check_installed", "check_handlers"):
        monkeypatch.setattr(stream, name, lambda *_: None)
    monkeypatch.setattr(stream, "open_session", lambda *_: pytest.fail("Spark is started"))
    with pytest.raises(ConfigError, match=r"^startingOffsets.*"):
        stream.stream(settings, settings_file(config, settings), "local", "live", start, stream.Pace(), print)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_a_pace_that_is_none_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigError, match=f"--every {seconds} is no number of seconds"):
        stream.Pace(float(seconds))


def driver(outcomes: Directory) -> stream.Batches:
    """A driver that begins now."""
    exposed: Any = SimpleNamespace(moved=lambda *_: None)
    settings: Any = SimpleNamespace(stream_group="orders.stream")
    return stream.Batches(settings, outcomes, Stop(), exposed, lambda said: None)


def handled(outcomes: Directory, number: int, file: str = "", by: stream.Batches | None = None) -> None:
    """The micro-batch of that number, in a driver of its own unless there is one. `file`: what its range has written,
    as of a failure.
    """
    summary = Summary(*WHOLE, 100, 100, 0, 1 if file else 0, None, file, 1.0)
    row = SimpleNamespace(asDict=lambda: asdict(summary))
    frame: Any = SimpleNamespace(collect=lambda: [row])
    (by or driver(outcomes))(frame, number)


def written(outcomes: Directory, *ends: tuple[int, int, str]) -> str:
    """The range's file, as its task writes it when a record fails, and in a driver's first micro-batch in any case."""
    rows: list[dict[str, Any]] = [
        {"topic": "orders", "partition": 0, "offset": at, "until": until, "records": until - at, "status": status}
        for at, until, status in ends
    ]
    with outcomes.writing(rows_file(WHOLE)) as file, pq.ParquetWriter(file, SCHEMA) as writer:
        writer.write_batch(table(rows))
    return rows_file(WHOLE)


def rows_of(outcomes: Directory) -> list[tuple[int, int]]:
    batches = (batch for name in outcomes.names(".parquet") for batch in outcomes.batches(name))
    return sorted((row["offset"], row["until"]) for batch in batches for row in batch.to_pylist())


@pytest.fixture
def outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    monkeypatch.setattr(stream, "cluster_session", PlayedLog({}).session)
    monkeypatch.setattr(stream, "commit", lambda *_: None)
    return Directory(str(tmp_path))


def test_only_a_new_stream_has_to_be_told_where_it_begins(tmp_path: Path) -> None:
    settings: Any = SimpleNamespace(group=SimpleNamespace(auto_offset_reset="none"))
    checkpoint = Directory(str(tmp_path))
    # As a stream leaves it that was killed before its first micro-batch was planned.
    checkpoint.write("metadata", b"{}")
    (checkpoint / "offsets").write(".0.tmp", b"")
    with pytest.raises(ConfigError, match="say where a new stream begins with --starting-offsets"):
        stream._policy(settings, checkpoint)
    (checkpoint / "offsets").write("0", b"")
    assert stream._policy(settings, checkpoint) == "earliest"


def test_a_repeated_micro_batch_with_a_failure_replaces_the_rows_of_one_without(outcomes: Directory) -> None:
    handled(outcomes, 7)
    assert rows_of(outcomes) == [(0, 100)]
    handled(outcomes, 7, written(outcomes, *WITH_A_FAILURE))
    assert rows_of(outcomes) == [(0, 50), (50, 51), (51, 100)]


def test_a_repeated_micro_batch_without_a_failure_replaces_the_rows_of_one_with(outcomes: Directory) -> None:
    handled(outcomes, 7, written(outcomes, *WITH_A_FAILURE))
    handled(outcomes, 7, written(outcomes, (0, 100, "done")))
    assert rows_of(outcomes) == [(0, 100)]


def test_a_driver_that_stood_still_adds_no_rows_to_those_of_the_one_that_took_its_place(outcomes: Directory) -> None:
    before = driver(outcomes)
    handled(outcomes, 6, by=before)
    handled(outcomes, 7, written(outcomes, *WITH_A_FAILURE))
    with pytest.raises(Overtaken, match="another process goes on with"):
        handled(outcomes, 7, by=before)
    assert rows_of(outcomes) == [(0, 50), (0, 100), (50, 51), (51, 100)]


def test_a_stream_that_is_begun_anew_replaces_the_rows_of_the_former_one(outcomes: Directory) -> None:
    for _ in range(2):
        again = driver(outcomes)
        handled(outcomes, 0, by=again)
        handled(outcomes, 1, by=again)
    assert rows_of(outcomes) == [(0, 100), (0, 100)], "of each micro-batch"


def test_the_first_micro_batch_of_a_driver_is_told_as_such_to_its_tasks(
    outcomes: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a former driver's tries some may have died with a record in hand."""
    spark: Any = SimpleNamespace(setLocalProperty=lambda name, text: told.append(text))
    told: list[str] = []
    seen: list[bool] = []
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: SimpleNamespace(getLocalProperty=lambda _: told[-1]))

    def handle(task: HandleRanges, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        seen.append(task.may_have_died)
        return iter([Summary(*WHOLE, 100, 100, 0, 0, None, "", 1.0)])

    monkeypatch.setattr(HandleRanges, "__call__", handle)
    task = FromSource(HandleRanges(SettingsFile("", ""), outcomes))
    row = pa.RecordBatch.from_pylist([WHOLE._asdict()])

    def collect() -> list[Any]:
        found = [each for batch in task(iter([row])) for each in batch.to_pylist()]
        return [SimpleNamespace(asDict=lambda each=each: each) for each in found]

    exposed: Any = SimpleNamespace(moved=lambda *_: None)
    settings: Any = SimpleNamespace(stream_group="orders.stream")
    batches = stream.Batches(
        settings,
        outcomes,
        Stop(),
        exposed,
        lambda _: None,
        lambda number, first: MicroBatch(NO_LIMITS, first, number).tell(spark),
    )
    frame: Any = SimpleNamespace(collect=collect)
    for number in (7, 8):
        batches(frame, number)
    assert seen == [True, False]


def tried(outcomes: Directory, monkeypatch: pytest.MonkeyPatch, driver: str, batch: MicroBatch, *ends: int) -> None:
    """The tasks of a micro-batch whose records each fail, by that driver; of partition 0, cut at these ends."""
    told: list[str] = []
    batch.tell(SimpleNamespace(setLocalProperty=lambda name, text: told.append(text)))  # type: ignore[arg-type]
    context = SimpleNamespace(getLocalProperty=lambda _: told[-1], attemptNumber=lambda: 0)

    def handle(task: HandleRanges, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        for whole in ranges:
            with task._outcomes(whole) as rows:
                for at in range(whole.start, whole.stop):
                    place = {"topic": whole.topic, "partition": whole.partition, "offset": at, "until": at + 1}
                    rows.add({**place, "records": 1, "status": "skip", "error_type": driver})
                yield rows.end()

    with monkeypatch.context() as moment:
        moment.setattr("pyspark.TaskContext.get", lambda: context)
        moment.setattr(HandleRanges, "__call__", handle)
        task = FromSource(HandleRanges(SettingsFile("", ""), outcomes, driver=driver))
        rows = [OffsetRange("orders", 0, *each)._asdict() for each in pairwise(ends)]
        for _ in task(iter([pa.RecordBatch.from_pylist(rows)])):
            pass


@pytest.mark.parametrize("again", [(20, 100), (0, 60), (20, 60, 90)])
def test_a_repeated_micro_batch_has_every_offset_once_though_records_were_lost_since(
    outcomes: Directory, monkeypatch: pytest.MonkeyPatch, again: tuple[int, ...]
) -> None:
    tried(outcomes, monkeypatch, "1-a", MicroBatch(NO_LIMITS, False, 7), 0, 50, 100)
    tried(outcomes, monkeypatch, "2-b", MicroBatch(NO_LIMITS, True, 7), *again)
    assert rows_of(outcomes) == [(at, at + 1) for at in range(again[0], again[-1])]


def test_a_topic_that_was_created_anew_has_its_rows_beside_those_of_other_micro_batches(
    outcomes: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried(outcomes, monkeypatch, "1-a", MicroBatch(NO_LIMITS, False, 6), 0, 5)
    tried(outcomes, monkeypatch, "2-b", MicroBatch(NO_LIMITS, True, 7), 0, 2)
    assert rows_of(outcomes) == [(0, 1), (0, 1), (1, 2), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_a_topic_that_was_created_anew_has_its_rows_in_the_place_of_the_same_range(
    outcomes: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (9, 10):
        tried(outcomes, monkeypatch, "1-a", MicroBatch(NO_LIMITS, False, number), 0, 2)
    (name,) = outcomes.names(".parquet")
    assert (outcomes.footer(name).metadata or {})[b"kunicorn.driver"].endswith(b"-0000000000000000010")


class PlayedQuery:
    """A query of Spark's: a signal comes in the first wait, and then it does what `then` says."""

    def __init__(self, batches: stream.Batches, then: Callable[[PlayedQuery], None] = lambda query: None) -> None:
        self.isActive, self.stopped = True, False
        self.error: StreamingQueryException | None = None
        self.lastProgress = {"batchId": batches.latest}
        self._batches, self._then = batches, then

    def wait(self, seconds: float) -> None:
        self._batches.stop.ask(signal.SIGTERM, None)
        self._then(self)

    def fail(self, error: str) -> None:
        self.isActive, self.error = False, StreamingQueryException(error)

    def stop(self) -> None:
        self.isActive, self.stopped = False, True

    def exception(self) -> Exception | None:
        return self.error


def attended(query: PlayedQuery, batches: stream.Batches) -> bool:
    played: Any = query
    return stream._attend(played, batches, batches.stop, 4, query.wait)


@pytest.fixture
def batches(outcomes: Directory) -> stream.Batches:
    nothing: Any = None
    return stream.Batches(nothing, outcomes, Stop(), nothing, lambda said: None, latest=0, through=1)


def test_a_signal_ends_the_query_behind_what_is_written_and_the_stream_has_not_ended_by_itself(
    batches: stream.Batches,
) -> None:
    query = PlayedQuery(batches)
    assert not attended(query, batches)
    assert query.stopped


def test_a_micro_batch_that_a_signal_turns_down_is_no_failure(batches: stream.Batches) -> None:
    def turned_down(query: PlayedQuery) -> None:
        frame: Any = None
        with pytest.raises(stream._StopAsked):
            batches(frame, 1)
        query.fail("_StopAsked")

    batches.latest, batches.busy = 0, True
    assert not attended(PlayedQuery(batches, turned_down), batches)


def test_a_query_that_ends_by_itself_has_handled_everything_of_now_though_a_signal_comes(
    batches: stream.Batches,
) -> None:
    def ended(query: PlayedQuery) -> None:
        query.isActive = False

    assert attended(PlayedQuery(batches, ended), batches)


def test_a_micro_batch_that_fails_behind_a_signal_is_told(batches: stream.Batches) -> None:
    batches.busy = True
    failing = PlayedQuery(batches, lambda query: query.fail("Task 0 failed:\nkunicorn.x.RangeFailed: orders-0 at 5"))
    with pytest.raises(JobFailed, match="Spark ended the stream: orders-0 at 5"):
        attended(failing, batches)


def test_a_record_that_halts_behind_a_signal_is_told(batches: stream.Batches) -> None:
    batches.busy, batches.failure = True, stream.StreamHalted("the handler halts orders-0@5")
    with pytest.raises(ServiceError, match="orders-0@5"):
        attended(PlayedQuery(batches, lambda query: query.fail("StreamHalted")), batches)


def test_a_store_that_goes_away_while_a_micro_batch_is_written_leaves_something(
    batches: stream.Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StoreFailed("s3://runs cannot be used")

    monkeypatch.setattr(stream, "write_micro_batch", fails)
    frame: Any = SimpleNamespace(collect=list)
    with pytest.raises(JobFailed, match="s3://runs cannot be used"):
        batches(frame, 1)
    assert isinstance(batches.failure, JobFailed)


def test_what_fails_while_the_query_is_stopped_is_told(batches: stream.Batches) -> None:
    query = PlayedQuery(batches)
    query.error = StreamingQueryException("the checkpoint cannot be written")
    with pytest.raises(JobFailed, match="the checkpoint cannot be written"):
        attended(query, batches)
