"""What could write or handle a round twice under other names: another setting at its repetition, or a second driver."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kunicorn.pipeline.spark import Job
from kunicorn.positions import TopicPartition
from tests.system.pipeline.desk import MASTER, Desk, lake_rows, reader, tiles
from tests.system.producing import produce
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("one_context")]

RECORDS = 600
LASTING = 2_000
"""Enough for a job that is to be met before its end."""
START_SECONDS = 400.0
"""Two drivers start on a machine that has other things to do."""
UNORDERED = {"pipeline": {"ordering": "none", "min_partitions": 2}, "http": {"enabled": False}}


def exported(lake: Path) -> Counter[int]:
    """How often each offset of the one partition is there."""
    return Counter(offset for (offset,) in lake_rows(lake, "offset"))


def once(stop: int) -> Counter[int]:
    """Every offset once."""
    return Counter(range(stop))


@pytest.mark.parametrize("job", ["export", pytest.param("backfill", marks=pytest.mark.long)])
def test_a_round_is_repeated_in_the_same_pieces_whatever_min_partitions_is_then(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    desk = desk_of(1, UNORDERED)
    produce(desk.kafka.bootstrap, desk.topic, RECORDS)
    lake = desk.directory / "lake"

    def end_then_die(self: Job, seconds: float) -> Any:
        ended(self, START_SECONDS)
        raise InterruptedError

    with monkeypatch.context() as patched:
        ended = Job.ended
        patched.setattr(Job, "ended", end_then_die)
        with pytest.raises(InterruptedError):
            desk.said(job, *([str(lake)] if job == "export" else ["--run", "cut"]), "--master", MASTER)
    desk.configure({"pipeline": {"min_partitions": 3}})
    desk.said(job, *([str(lake)] if job == "export" else ["--resume", "cut"]), "--master", MASTER)
    if job == "export":
        assert exported(lake) == once(RECORDS)
    else:
        assert tiles(desk.outcomes("cut"), {TopicPartition(desk.topic, 0): range(RECORDS)})


def test_a_micro_batch_is_repeated_in_the_same_pieces_whatever_min_partitions_is_then(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(1, UNORDERED)
    produce(desk.kafka.bootstrap, desk.topic, RECORDS)
    before = reader(desk)
    start = before.initialOffset()
    end = before.latestOffset(start, ReadAllAvailable())
    desk.configure({"pipeline": {"min_partitions": 3}})
    parts = [[part.value for part in made.partitions(start, end)] for made in (before, reader(desk))]
    assert parts[0] == parts[1]
    assert len(parts[0]) == 2


@pytest.mark.long
def test_of_two_exports_into_one_directory_one_ends_and_every_record_is_there_once(
    desk_of: Callable[..., Desk],
) -> None:
    """A driver stands still and is taken for dead; the one that takes its place goes on; then the first does."""
    desk = desk_of(1, {"pipeline": {"max_offsets_per_trigger": 100}, "http": {"enabled": False}})
    produce(desk.kafka.bootstrap, desk.topic, LASTING)
    lake = desk.directory / "lake"
    command = ("export", str(lake), "--master", MASTER)
    first = desk.start(*command)  # Stopped is its own process alone: Spark's would take a long pause for a death.
    wait_until(lambda: rounds(Desk.told(lake / "_kunicorn")) >= 1, "a round", START_SECONDS, every=0.01)
    os.kill(first.pid, signal.SIGSTOP)
    # More than the first has planned: where its last range ends, the second's goes on.
    produce(desk.kafka.bootstrap, desk.topic, 50)
    desk.said(*command)
    assert exported(lake) == once(LASTING + 50)
    os.kill(first.pid, signal.SIGCONT)
    out, _ = first.communicate(timeout=START_SECONDS)
    assert (first.returncode, "another process goes on with" in out) == (6, True), out
    produce(desk.kafka.bootstrap, desk.topic, 10)
    desk.said(*command)
    assert exported(lake) == once(LASTING + 60)


def rounds(manifest: Mapping[str, Any] | None) -> int:
    """Those that count."""
    return 0 if manifest is None else int(manifest["rounds"])


@pytest.mark.long
def test_of_two_that_resume_one_backfill_one_ends_and_the_other_finishes(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1, {"pipeline": {"max_offsets_per_trigger": 100}, "http": {"enabled": False}})
    produce(desk.kafka.bootstrap, desk.topic, LASTING)
    first = desk.start("backfill", "--run", "shared", "--master", MASTER)
    wait_until(lambda: rounds(Desk.told(desk.runs / "shared")) >= 1, "a round", START_SECONDS, every=0.01)
    os.kill(first.pid, signal.SIGSTOP)
    desk.said("backfill", "--resume", "shared", "--master", MASTER)
    os.kill(first.pid, signal.SIGCONT)
    out, _ = first.communicate(timeout=START_SECONDS)
    assert (first.returncode, "another process goes on with" in out) == (6, True), out
    manifest = desk.manifest("shared")
    assert (manifest["finished"], manifest["records"]) == (True, LASTING)
    assert tiles(desk.outcomes("shared"), {TopicPartition(desk.topic, 0): range(LASTING)})
    report = desk.report(1)
    assert report.lost == ()
    assert len(report.handled_twice) <= 100, "no more than the round that both were in"
