"""The rates of a job, task by task: what is read when, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.arrow import rows_of
from kunicorn.handler.columns import records_batch
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import Rows
from kunicorn.pipeline import stream
from kunicorn.pipeline.range_job import Stop
from kunicorn.pipeline.shares import Shares
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import settings_file
from kunicorn.pipeline.tasks.limits import TaskLimits, limits_of
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import FromSource, HandleRanges, MicroBatch
from kunicorn.positions import OffsetRange
from kunicorn.settings import PipelineSettings, load
from tests.unit.pipeline.played_log import PlayedLog
from tests.unit.settings.files import LEAST

SECOND = 1_000_000_000


class Clock:
    """Time that passes only where somebody waits."""

    def __init__(self) -> None:
        self.at = 0
        self.longest = 0.0

    def now(self) -> int:
        return self.at

    def wait(self, seconds: float) -> None:
        self.at += max(1, round(seconds * SECOND))
        self.longest = max(self.longest, seconds)


def runs(*sizes: int, value: bytes = b"v") -> Iterator[Run]:
    at = 0
    for size in sizes:
        yield [Message(topic="orders", partition=0, offset=at + each, value=value) for each in range(size)]
        at += size


def times(limits: TaskLimits, fetched: Iterator[Run], clock: Clock, handling: float = 0.0) -> list[tuple[float, int]]:
    """When, in seconds, how many records came; the handler takes `handling` for each."""
    found = []
    for run in limits.paced(fetched, clock.now, clock.wait):
        if len(run):
            found.append((clock.at / SECOND, len(run)))
            clock.at += round(len(run) * handling * SECOND)
    return found


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 40), st.sampled_from([0.0, 0.01, 0.2]))
def test_within_any_time_no_more_is_read_than_the_rate_allows_and_a_second_more(
    sizes: list[int], rate: int, handling: float
) -> None:
    clock = Clock()
    came = times(TaskLimits(records_per_second=rate), runs(*sizes), clock, handling)
    assert sum(count for _, count in came) == sum(sizes), "nothing is left out"
    for first in range(len(came)):
        for last in range(first, len(came)):
            count = sum(each for _, each in came[first : last + 1])
            assert count <= rate * (came[last][0] - came[first][0]) + rate + 1
    assert clock.at / SECOND >= sum(sizes) / rate - 1 / rate - 0.001, "the range's end is paid for, too"
    assert clock.longest <= 0.2, "the caller sees to what it has in hand"


def test_a_rate_that_is_not_used_is_not_caught_up_with() -> None:
    came = times(TaskLimits(records_per_second=10), runs(10, 10, 10), Clock(), handling=1.0)
    assert [count for _, count in came] == [10, 10, 10]


def test_bytes_are_those_of_keys_and_values_and_one_record_passes_however_large() -> None:
    clock = Clock()
    came = times(TaskLimits(bytes_per_second=100), runs(1, 1, 1, value=b"v" * 1000), clock)
    assert [count for _, count in came] == [1, 1, 1]
    assert clock.at / SECOND == pytest.approx(30, abs=0.1)


def test_a_small_record_costs_the_same_in_columns() -> None:
    """What columns have beside keys and values is nothing that brokers have sent."""
    clock, columns = Clock(), Rows(rows_of(next(runs(100, value=b"v" * 10))))
    times(TaskLimits(bytes_per_second=100), iter([columns]), clock)
    assert clock.at / SECOND == pytest.approx(10, abs=1)


def test_columns_are_cut_as_records_are() -> None:
    clock, columns = Clock(), Rows(records_batch(next(runs(100))))
    came = times(TaskLimits(records_per_second=20), iter([columns]), clock)
    assert [count for _, count in came] == [20] * 5


def test_without_a_limit_nothing_is_touched() -> None:
    fetched = runs(3)
    assert TaskLimits().paced(fetched) is fetched


@pytest.mark.parametrize(
    ("partitions", "cores", "pieces", "share"),
    [(10, 4, None, 250.0), (2, 4, None, 500.0), (0, 4, None, 1000.0), (2, 4, 64, 250.0), (2, 0, None, 1000.0)],
)
def test_a_share_is_that_of_as_many_tasks_as_can_run_at_once(
    partitions: int, cores: int, pieces: int | None, share: float
) -> None:
    ordering = "none" if pieces else "partition"
    settings = PipelineSettings(ordering=ordering, min_partitions=pieces, max_records_per_second=1000)  # type: ignore[arg-type]
    limits = limits_of(settings, partitions, cores)
    assert (limits.records_per_second, limits.bytes_per_second) == (share, None)


@pytest.mark.parametrize(("partitions", "pieces"), [(8, 10), (100, 101), (8, 64), (1, 7), (8, 3)])
@pytest.mark.parametrize("together", [1, 3, 100])
def test_pieces_of_partitions_have_the_rate_together_however_many_begin_at_once(
    partitions: int, pieces: int, together: int
) -> None:
    settings = PipelineSettings(ordering="none", min_partitions=pieces, max_records_per_second=1000)
    ranges = [OffsetRange("orders", each, 0, 300 * (each % 4 + 1)) for each in range(partitions)]
    state, shares, rate = RunState(ranges), Shares(settings), 0.0
    while state.waiting:
        share = limits_of(settings, len(state.left), 1_000).records_per_second or 0.0
        more = shares.of(state, together)
        state, rate = state.begin(more), rate + share * len(more)
    assert 500 < rate < 1000.001


@pytest.mark.parametrize(("cores", "seconds"), [(1, 0.0), (32, 0.0), (64, 0.64), (4_000, 30.0)])
def test_many_processes_connect_each_at_a_moment_of_its_own(cores: int, seconds: float) -> None:
    limits = limits_of(PipelineSettings(), 1, cores)
    assert limits.connect_seconds == seconds
    waited: list[float] = []
    for _ in range(100):
        limits.spread(waited.append)
    assert all(0 <= each <= seconds for each in waited)
    assert len(set(waited)) == (100 if seconds else 0)


class Context:
    """Spark's, of a driver and of a task: a property that is set in the one is there in the other."""

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}

    def setLocalProperty(self, name: str, value: str) -> None:
        self.properties[name] = value

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


def test_each_micro_batch_of_a_stream_has_the_share_of_the_cores_and_partitions_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log = tmp_path / "config.toml", PlayedLog({"orders": 1})
    spark: Any = Context()
    path.write_text(f"{LEAST}[pipeline]\nmax_records_per_second = 1000\n")
    settings = load(path, {})
    monkeypatch.setattr(stream, "cluster_session", log.session)
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: spark)
    seen: list[float | None] = []

    def handle(task: HandleRanges, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        seen.append(task.limits.records_per_second)
        return iter(())

    monkeypatch.setattr(HandleRanges, "__call__", handle)
    task = FromSource(HandleRanges(settings_file(path, settings), Directory(str(tmp_path))))
    row = pa.RecordBatch.from_pylist([{"topic": "orders", "partition": 0, "start": 0, "stop": 9}])
    monkeypatch.setattr(stream.Batches, "_finish", lambda *_: None)
    exposed: Any = None
    frame: Any = SimpleNamespace(collect=lambda: list(task(iter([row]))))
    for partitions, cores in [(1, 2), (40, 2), (40, 40)]:
        log.there["orders"] = partitions
        limits = stream._limits(settings, cores)

        def begin(number: int, first: bool, limits: TaskLimits = limits) -> None:
            MicroBatch(limits, first, number).tell(spark)

        stream.Batches(settings, Directory(str(tmp_path / "all")), Stop(), exposed, print, begin)(frame, 0)
    assert seen == [1000.0, 500.0, 25.0]
