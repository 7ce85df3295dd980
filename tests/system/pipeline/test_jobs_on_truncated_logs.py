"""Logs that an unclean election truncates, and that grow beyond their former end: no job passes over what came instead,
or takes it for what it has read before. The edges of such a log tell nothing; its leaders' epochs do (KIP-320)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kunicorn.clients.range_reader import RangeUnreadable
from kunicorn.errors import ConfigError
from kunicorn.pipeline.plan import bounds_of
from kunicorn.pipeline.source import KunicornReader, RangePartition, SourceOptions
from kunicorn.pipeline.spark import Job
from kunicorn.pipeline.tasks.range_outcomes import Summary
from tests.kafka import KafkaCluster
from tests.system.pipeline.desk import MASTER, Desk, lake_rows, reader
from tests.system.pipeline.truncating import AFTER, ALONE, REPLICATED, Replicas
from tests.system.producing import committed_offsets

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PARTED = REPLICATED
"""Where the logs part."""
FORMER = REPLICATED + ALONE
END = REPLICATED + AFTER
TRUNCATED = f"-0 ends at {PARTED} now, before {FORMER}: it was truncated"
ACCEPTED: Mapping[str, Mapping[str, Any]] = {"pipeline": {"fail_on_data_loss": False}}


@pytest.fixture(scope="module")
def replicas() -> Iterator[Replicas]:
    with KafkaCluster(brokers=3) as cluster:
        yield Replicas(cluster)


@pytest.fixture
def desk_for(replicas: Replicas, topic: str, tmp_path: Path, audit: Path) -> Iterator[Callable[[str], Desk]]:
    """A desk for each job, with a topic of its own that the test creates."""
    with ExitStack() as desks:

        def make(job: str) -> Desk:
            own = tmp_path / job
            own.mkdir()
            desk = Desk(replicas.kafka, f"{topic[:80]}-{job}", own, audit, {"http": {"enabled": False}})
            desks.callback(desk.close)
            return desk

        yield make


def exported(desk: Desk) -> list[tuple[int, bytes]]:
    """Offset and value of all that the lake has."""
    return sorted(lake_rows(desk.directory / "lake", "offset", "value"))


def batch(desk: Desk, start: dict[str, Any] | None, **options: str) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The next micro-batch as Spark asks for it: its end, and the offsets that its tasks would read."""
    made = reader(desk, **options)
    begin = made.initialOffset() if start is None else start
    end = made.latestOffset(begin, ReadAllAvailable())
    return end, ranges_in(desk, begin, end, **options)


def ranges_in(desk: Desk, start: dict[str, Any], end: dict[str, Any], **options: str) -> list[tuple[int, int]]:
    return [(each.value[2], each.value[3]) for each in reader(desk, **options).partitions(start, end)]


class Jobs:
    """Every job, each with a topic of its own, before and after the election."""

    def __init__(self, desk_for: Callable[[str], Desk]) -> None:
        self.export, self.backfill, self.catch_up, self.stream, self.source = self.every = [
            desk_for(job) for job in ("export", "backfill", "catch-up", "stream", "source")
        ]
        self.topics = [each.topic for each in self.every]
        self.lake = str(self.export.directory / "lake")
        self.commands = (
            (self.export, ("export", self.lake, "--master", MASTER)),
            (self.backfill, ("backfill", "--resume", "former", "--master", MASTER)),
            (self.catch_up, ("catch-up", "--master", MASTER)),
        )

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Read all that there is, or get as far as planning it."""
        self.export.said("export", self.lake, "--master", MASTER)
        self.catch_up.said("catch-up", "--master", MASTER)
        with monkeypatch.context() as patched:
            patched.setattr(Job, "submit", _dies)
            with pytest.raises(InterruptedError):
                self.backfill.said("backfill", "--run", "former", "--master", MASTER)
        self.start = reader(self.stream).initialOffset()
        self.end, ranges = batch(self.stream, self.start)
        assert ranges == [(0, FORMER)]
        options = {"config": str(self.source.config), "minPartitions": "5"}
        self.query = KunicornReader(SourceOptions.of(options), bounds_of(options, batch=True))
        self.pieces = {each.value[2]: each for each in self.query.partitions() if isinstance(each, RangePartition)}

    def reconciled(self, kind: str) -> list[tuple[int, int]]:
        """Ranges of that kind in the lake."""
        found = json.loads(self.export.said("reconcile", self.lake, "--json", "--master", MASTER, code=6))
        return [(each["start"], each["stop"]) for each in found[kind]]


def test_between_two_rounds_every_job_names_what_is_lost_and_goes_on_where_the_logs_part_as_asked(
    replicas: Replicas, desk_for: Callable[[str], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(desk_for)
    replicas.create(jobs.topics)
    jobs.begin(monkeypatch)
    replicas.elect(jobs.topics)
    assert jobs.reconciled("beyond") == [(PARTED, FORMER)]
    replicas.grow(jobs.topics)
    told_and_refused(jobs)
    for desk in jobs.every:
        desk.configure(ACCEPTED)
    told_and_gone_on_with(jobs)
    replicas.heal()


def told_and_refused(jobs: Jobs) -> None:
    why = f"{TRUNCATED}.*fail_on_data_loss = false"
    for desk, command in jobs.commands:
        with pytest.raises(ConfigError, match=why):
            desk.said(*command)
    with pytest.raises(ConfigError, match=why):
        batch(jobs.stream, jobs.end)
    with pytest.raises(ConfigError, match=why):
        ranges_in(jobs.stream, jobs.start, jobs.end)
    # A query has read what was before, and its next piece begins behind where the logs part.
    with pytest.raises(RangeUnreadable, match="truncat"):
        list(jobs.query.read(jobs.pieces[120]))
    assert sum(each.num_rows for each in jobs.query.read(jobs.pieces[60])) == 30


def told_and_gone_on_with(jobs: Jobs) -> None:
    for desk, command in jobs.commands:
        assert f"warning: {desk.topic}{TRUNCATED}" in desk.said(*command)
    before = [(at, b"both" if at < PARTED else b"alone") for at in range(FORMER)]
    assert exported(jobs.export) == sorted(before + [(at, b"after") for at in range(PARTED, END)])
    assert jobs.reconciled("repeated") == [(PARTED, FORMER)]
    assert jobs.backfill.manifest("former")["records"] == PARTED, "what came instead was not asked for"
    assert [each["records"] for each in jobs.catch_up.outcomes()] == [FORMER, AFTER]
    assert committed(jobs.catch_up) == END
    lenient = {"failOnDataLoss": "false"}
    assert ranges_in(jobs.stream, jobs.start, jobs.end, **lenient) == [(0, PARTED)]
    after, ranges = batch(jobs.stream, jobs.end, **lenient)
    assert ranges == [(PARTED, END)]
    assert batch(jobs.stream, after)[1] == []


def committed(desk: Desk) -> int:
    """By the desk's group."""
    (at,) = committed_offsets(desk.kafka.bootstrap, desk.topic, desk.topic, 1).values()
    return at


def _dies(*_: Any, **__: Any) -> Any:
    raise InterruptedError


@pytest.mark.parametrize("job", ["export", "backfill", "catch-up"])
def test_what_is_underway_while_the_log_is_truncated_does_not_count_and_the_next_run_goes_on_as_asked(
    replicas: Replicas, desk_for: Callable[[str], Desk], monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    desk = desk_for(job)
    topics = [desk.topic]
    replicas.create(topics)
    lake = str(desk.directory / "lake")
    begins = {"export": [lake], "backfill": ["--run", "cut"], "catch-up": []}[job]
    ended = Job.ended

    def end_then_elect(self: Job, seconds: float) -> list[Summary]:
        if found := ended(self, seconds):
            replicas.elect(topics)
            replicas.grow(topics)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Job, "ended", end_then_elect)
        with pytest.raises(ConfigError, match=f"{TRUNCATED}.*What is underway does not count"):
            desk.said(job, *begins, "--master", MASTER)
    goes_on = ["--resume", "cut"] if job == "backfill" else begins
    if job != "catch-up":  # Its committed offset lies before where the logs part.
        with pytest.raises(ConfigError, match=f"{TRUNCATED}.*fail_on_data_loss = false"):
            desk.said(job, *goes_on, "--master", MASTER)
    desk.configure(ACCEPTED)
    desk.said(job, *goes_on, "--master", MASTER)
    if job == "export":
        assert exported(desk) == [(at, b"both" if at < PARTED else b"after") for at in range(END)]
    elif job == "backfill":
        assert desk.manifest("cut")["records"] == PARTED
    else:
        assert committed(desk) == END
    replicas.heal()
