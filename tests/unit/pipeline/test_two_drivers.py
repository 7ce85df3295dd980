"""Drivers that are killed at any step, beside others that were started too early: nothing is lost, nothing doubled.

Spark and the cluster are left out. Drivers are threads that take turns, by a seed: each stops before every step that
another process could see (a file that is read, written, listed, deleted, a table that is read or committed to), and
there another one goes on, or it is killed. What a killed one's executors have in hand they may write later.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message
from deltalake import DeltaTable
from deltalake.table import TableMerger

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.handler.config import Decoding
from kunicorn.handler.dead_letters import Cause
from kunicorn.handler.retry import End
from kunicorn.pipeline import backfill, export, range_job
from kunicorn.pipeline.export import ExportRanges
from kunicorn.pipeline.lake.columns import Asked, Form, form_asked
from kunicorn.pipeline.lake.files import OWN, file_name
from kunicorn.pipeline.lake.iceberg import IcebergLake
from kunicorn.pipeline.lake.tables import DeltaLake, MergedDelta, NotCommitted
from kunicorn.pipeline.range_job import Stop
from kunicorn.pipeline.report import Tasks
from kunicorn.pipeline.state import Runs, RunState
from kunicorn.pipeline.storage import Directory, Manifest, Overtaken
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.outcomes import Row, Tiling
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.pipeline.tasks.ranges import HandleRanges
from kunicorn.positions import Edges, OffsetRange, TopicPartition
from kunicorn.settings import Settings
from tests.fakes.complete_settings import settings_of

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(2)]
PATIENCE = 120.0
"""Seconds for one step, on a machine that has other things to do."""


class Killed(BaseException):
    """As SIGKILL: nothing in the driver may heed it."""


class Driver:
    """One driver, in a thread that runs only while it has its turn."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.killed = False
        self.over = False
        self.committing = False
        """Whether it stands before a commit to a table: others often get ahead of it there."""
        self.error: BaseException | None = None
        self._turn, self._given_back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[], Any]) -> None:
        _of_thread.driver = self
        try:
            self.stop()
            run()
        except BaseException as error:
            self.error = error
        self.over = True
        self._given_back.release()

    def stop(self) -> None:
        """Caller: the driver itself, before a step."""
        self._given_back.release()
        assert self._turn.acquire(timeout=PATIENCE)
        if self.killed:
            raise Killed

    def go_on(self) -> None:
        """Caller: the test."""
        assert self._given_back.acquire(timeout=PATIENCE)
        if not self.over:
            self._turn.release()
        else:
            self._given_back.release()

    def wait(self) -> None:
        """Until it stands still. Caller: the test."""
        assert self._given_back.acquire(timeout=PATIENCE)
        self._given_back.release()

    def go_until(self, reached: Callable[[], bool]) -> None:
        """Step by step. Caller: the test."""
        while not reached():
            assert not self.over, self.error
            self.go_on()
            self.wait()


_of_thread = threading.local()


def step() -> None:
    """Somebody else may go on here."""
    driver: Driver | None = getattr(_of_thread, "driver", None)
    if driver is not None:
        driver.stop()


class World:
    """The topic, which grows, and all drivers."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.ends = {tp: self.rng.randrange(1, 40) for tp in PARTITIONS}
        directory.mkdir()
        self.catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
        """Of Iceberg tables."""
        self.orphans: list[Callable[[], object]] = []
        """What executors of killed drivers have in hand."""
        self.gone: set[TopicPartition] = set()
        """Partitions that do not exist any more. Drivers that begin then go on without them."""
        self.failing = 0.1
        """Of the records that a handler gets."""
        self.planned: list[Driver | None] = []
        """Those that have asked for the logs' edges."""
        self.cluster: Any = SimpleNamespace(ask_another=lambda: None)
        self._jobs: dict[int, list[tuple[Callable[[OffsetRange], Summary], OffsetRange]]] = {}
        """What each driver has underway."""

    def play(self, run: Callable[[Settings], Any], drivers: int) -> list[Driver]:
        """Drivers beside one another, some of them killed; the last one alone, to its end."""
        started: list[Driver] = []
        while len(started) < drivers or any(not each.over for each in started):
            self._something_else()
            alive = [each for each in started if not each.over]
            if len(started) < drivers and (not alive or self.rng.random() < 0.05):
                started.append(self._begun(run))
            elif alive:
                chosen = self.rng.choice(alive)
                if chosen.committing and self.rng.random() < 0.9:
                    if len(started) < drivers:
                        started.append(self._begun(run))
                    continue
                chosen.killed = self.rng.random() < 0.02
                # Another one often has many turns while this one stands still.
                for _ in range(self.rng.choice((1, 1, 5, 60))):
                    chosen.go_on()
                    chosen.wait()
        return [*started, self._ended(run)]

    def _ended(self, run: Callable[[Settings], Any]) -> Driver:
        """One that nobody interrupts."""
        driver = self._begun(run)
        driver.go_until(lambda: driver.over)
        return driver

    def _begun(self, run: Callable[[Settings], Any]) -> Driver:
        pieces = self.rng.choice((None, 2, 3))
        driver = Driver(lambda: run(self._settings(pieces)))
        driver.wait()
        return driver

    def _something_else(self) -> None:
        if self.rng.random() < 0.05:
            self.ends[self.rng.choice(PARTITIONS)] += self.rng.randrange(5)
        if self.orphans and self.rng.random() < 0.1:
            self.orphans.pop(self.rng.randrange(len(self.orphans)))()

    def _settings(self, pieces: int | None) -> Settings:
        pipeline = {
            "directory": str(self.directory / "runs"),
            "ordering": "none",
            "min_partitions": pieces,
            "max_offsets_per_trigger": 10,
            "iceberg_catalog": "test",
            "iceberg": self.catalog,
            "fail_on_data_loss": not self.gone,
        }
        return settings_of(handler={"entrypoint": "x:y"}, http={"enabled": False}, pipeline=pipeline)

    # As the cluster's session -----------------------------------------------------------------------------------

    def topic_ids(self, topics: Any) -> dict[str, str]:
        return {TOPIC: "id"}

    def partitions(self, topics: Any, setting: str = "", numbered: Any = ()) -> list[TopicPartition]:
        return self.existing(PARTITIONS)

    def existing(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [tp for tp in partitions if tp not in self.gone]

    def ends_of_epochs(self, epochs: Any) -> Mapping[TopicPartition, int]:
        return {}

    def edges(self, partitions: Any) -> Mapping[TopicPartition, Edges]:
        step()
        self.planned.append(getattr(_of_thread, "driver", None))
        return {tp: Edges(0, self.ends[tp]) for tp in partitions}

    # As Spark's job ---------------------------------------------------------------------------------------------

    def check_executors(self, directory: Directory, *, handler: bool) -> None:
        step()

    def stop(self) -> None:
        pass

    def tasks(self) -> Tasks:
        return Tasks()

    def cores(self) -> int:
        return 4

    def room(self, at_once: int) -> int:
        return 8

    def submit(self, ranges: Sequence[OffsetRange], task: Any, hands: Directory, *, at_once: int, done: Any) -> None:
        """What executors do; a driver that is killed leaves it behind."""
        do = self._written(task) if isinstance(task, ExportRanges) else self._handled(task)
        driver: Driver | None = getattr(_of_thread, "driver", None)
        self._jobs.setdefault(id(driver), []).extend((do, whole) for whole in ranges)

    def ended(self, seconds: float) -> list[Summary]:
        """Some of what this driver has underway, in any order."""
        left = self._jobs[id(getattr(_of_thread, "driver", None))]
        found: list[Summary] = []
        try:
            for _ in range(self.rng.randrange(1, len(left) + 1)):
                at = self.rng.randrange(len(left))
                do, whole = left[at]
                found.append(do(whole))
                del left[at]
        except Killed:
            self.orphans += [lambda do=do, whole=whole: do(whole) for do, whole in left]  # type: ignore[misc]
            raise
        return found

    def _written(self, task: ExportRanges) -> Callable[[OffsetRange], Summary]:
        """The ranges of an export."""

        def written(whole: OffsetRange) -> Summary:
            messages = [_message(whole.tp, at) for at in range(whole.start, whole.stop)]
            columns = replace(task.form.columns(Decoding()), schema=task.schema)
            files = task._write(whole, iter([messages]), columns)
            return Summary(*whole, whole.stop, whole.size, 0, 0, None, json.dumps(files), 1.0)

        return written

    def _handled(self, task: HandleRanges) -> Callable[[OffsetRange], Summary]:
        """The ranges of a backfill: some have failures, at one try and not at another."""

        def handled(whole: OffsetRange) -> Summary:
            failing = {at for at in range(whole.start, whole.stop) if self.rng.random() < self.failing}
            with task._outcomes(whole) as outcomes:
                for row in _rows(whole, failing):
                    outcomes.add(row)
                return outcomes.end()

        return handled


def _message(tp: TopicPartition, at: int) -> Message:
    """The record there: changes of seven keys for each partition, some of which delete."""
    key, value = f"{tp.partition}-{at % 7}".encode(), None if at % 3 == 1 else b"v"
    return Message(*tp, at, key=key, value=value, timestamp=(1, at * 10**8))


def _rows(whole: OffsetRange, failing: Collection[int]) -> Iterator[Row]:
    tiling = Tiling(whole)
    for at in range(whole.start, whole.stop):
        if at in failing:
            message = Message(topic=whole.topic, partition=whole.partition, offset=at, value=b"v")
            yield from tiling.failed(message, End.SKIP, Cause("ValueError", "no", "", 1), 0)
        else:
            tiling.handled(1)
    yield from tiling.rest()


@pytest.fixture
def world_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], World]:
    """`world_of(seed)`."""
    # Not by each process that collects tests: it brings SQLAlchemy.
    from pyiceberg.catalog.sql import SqlCatalog

    def made(seed: int) -> World:
        world = World(seed, tmp_path / str(seed))

        @contextmanager
        def session(*_: object, **__: object) -> Iterator[World]:
            yield world

        @contextmanager
        def never_stopping() -> Iterator[Stop]:
            yield Stop()

        for module in (export, backfill, range_job):
            monkeypatch.setattr(module, "cluster_session", session)
        monkeypatch.setattr(range_job, "stopping", never_stopping)
        monkeypatch.setattr(range_job, "open_session", lambda *_: world)
        monkeypatch.setattr(range_job, "Job", lambda *_: world)
        monkeypatch.setattr(backfill, "check_installed", lambda: None)
        monkeypatch.setattr(backfill, "check_handlers", lambda settings: None)
        monkeypatch.setattr(backfill, "at_once", lambda settings: 1)
        return world

    for name in ("read", "create", "delete", "names"):
        monkeypatch.setattr(Directory, name, stepping(getattr(Directory, name)))
    written = Directory.writing

    @contextmanager
    def writing(self: Directory, name: str) -> Iterator[Any]:
        step()
        with written(self, name) as file:
            yield file
            step()

    monkeypatch.setattr(Directory, "writing", writing)
    monkeypatch.setattr(SqlCatalog, "commit_table", between_steps(SqlCatalog.commit_table))
    monkeypatch.setattr(DeltaTable, "create_write_transaction", between_steps(DeltaTable.create_write_transaction))
    monkeypatch.setattr(TableMerger, "execute", between_steps(TableMerger.execute))
    monkeypatch.setattr(MergedDelta.__init__, "__defaults__", (200,))  # Bytes of a part.
    for table in (IcebergLake, DeltaLake):
        monkeypatch.setattr(table, "committed", stepping(table.committed))
    return made


def stepping(method: Callable[..., Any]) -> Callable[..., Any]:
    def stepped(*arguments: Any, **named: Any) -> Any:
        step()
        return method(*arguments, **named)

    return stepped


def between_steps(method: Callable[..., Any]) -> Callable[..., Any]:
    """Somebody else may go on before it, and behind it, where nobody knows yet that it has happened."""

    def stepped(*arguments: Any, **named: Any) -> Any:
        driver: Driver | None = getattr(_of_thread, "driver", None)
        if driver is not None:
            driver.committing = True
        step()
        if driver is not None:
            driver.committing = False
        found = method(*arguments, **named)
        step()
        return found

    return stepped


def few_and_many(few: int, many: int) -> Any:
    """Seeds: some always, all of them where there is time."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, many))]


def said(line: str) -> None:
    """Nobody listens."""


def check_ends(drivers: Sequence[Driver]) -> None:
    """Killed, overtaken, refused by the table that has the round of another, or at the end: no other way out."""
    for each in drivers:
        assert each.error is None or isinstance(each.error, Killed | Overtaken | NotCommitted), each.error
    assert drivers[-1].error is None


TABLE = "shop.orders"


@pytest.mark.parametrize("to", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("seed", few_and_many(5, 55))
def test_the_lake_has_every_record_once_whichever_drivers_are_killed(
    world_of: Callable[[int], World], seed: int, to: str
) -> None:
    world = world_of(seed)
    check_ends(world.play(exports(world, to), 6))
    for orphan in world.orphans:
        orphan()
    assert not (world.directory / "lake" / OWN / "all").exists(), "an export has no table of outcomes"
    assert Counter(offsets_in(world, to)) == every_record(world)


@pytest.mark.parametrize("seed", few_and_many(5, 55))
def test_the_table_has_the_newest_record_of_each_key_whichever_drivers_are_killed(
    world_of: Callable[[int], World], seed: int
) -> None:
    world = world_of(seed)
    check_ends(world.play(exports(world, "delta", merge_by="key"), 6))
    assert Counter(offsets_in(world, "delta")) == newest_of_each_key(world)


def test_an_export_that_cannot_begin_leaves_the_round_of_another_alone(
    world_of: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(0)
    run = exports(world, "delta", merge_by="key")

    def refused(*_: object) -> None:
        raise ConfigError("Spark does not start")

    first = world._begun(run)
    first.go_until(lambda: first.committing)
    monkeypatch.setattr(range_job, "open_session", refused)
    with pytest.raises(ConfigError, match="Spark does not start"):
        run(world._settings(None))
    first.go_until(lambda: first.over)
    assert first.error is None
    assert Counter(offsets_in(world, "delta")) == newest_of_each_key(world)


def test_an_export_without_what_is_gone_leaves_the_files_that_another_one_counts_meanwhile(
    world_of: Callable[[int], World],
) -> None:
    world = world_of(0)
    lake = Directory(str(world.directory / "lake"))
    run = exports(world, "parquet")

    def state() -> RunState:
        told = Manifest(lake / OWN).read()
        return RunState(()) if told is None else RunState.from_json(told)

    deleted = overtaken_as_a_topic_went(world, run, state)
    found = Counter(at for number, at in offsets_in(world, "parquet") if number == deleted.partition)
    assert found == Counter(range(state().positions[deleted])), "nobody can export them again"


@pytest.mark.parametrize("late", [1, 2])
def test_a_file_that_is_written_late_of_a_range_that_was_given_up_is_not_there_after_the_next_export(
    world_of: Callable[[int], World], late: int
) -> None:
    """By an executor of a driver that was killed, behind the first or the second export since."""
    world = world_of(0)
    lake = Directory(str(world.directory / "lake"))
    job = exports(world, "parquet")

    def run(_: Settings) -> None:
        job(world._settings(None))

    first = world._begun(run)
    first.go_until(lambda: any((world.directory / "lake").glob("date=*/_unfinished-*")))
    first.killed = True
    first.go_until(lambda: first.over)
    back = PARTITIONS[1]
    world.gone.add(back)
    for number in range(1, 4):
        check_ends([first, world._ended(run)])
        world.gone.clear()
        world.ends[back] += 5
        if number == late:
            before = lake.names(".parquet")
            for orphan in world.orphans:
                orphan()
            assert any("orders-1-" in name for name in set(lake.names(".parquet")).difference(before))
    world._ended(run)
    found = Counter(at for partition, at in offsets_in(world, "parquet") if partition == back.partition)
    assert found == Counter(range(world.ends[back]))


def test_an_export_that_is_overtaken_deletes_no_late_file_that_another_one_counts(
    world_of: Callable[[int], World],
) -> None:
    world = world_of(0)
    lake, form = Directory(str(world.directory / "lake")), Form()
    whole = OffsetRange(*PARTITIONS[0], 0, 5)
    name = file_name(whole, "id")
    earlier, later = (export._Known(lake, form, SCHEMA) for _ in "ab")
    earlier.given_up = frozenset({name})
    earlier.save(state := RunState((whole,), topics={TOPIC: "id"}))
    assert later.read() == state
    later.save(state.begin([whole]))
    lake.write(f"date=2026-01-01/{name}", b"")
    now = export._Continued(state, [], [], [], frozenset())
    with pytest.raises(Overtaken):
        export._accept(lake, None, earlier, state, now, moved=False)
    assert lake.names(".parquet")
    export._accept(lake, None, later, state, now, moved=False)
    assert lake.names(".parquet"), "it is underway again"


@pytest.mark.parametrize("to", ["delta", "iceberg"])
@pytest.mark.parametrize("first_commits", [True, False])
def test_a_round_that_another_driver_has_planned_anew_is_committed_by_one_of_the_two(
    world_of: Callable[[int], World], to: str, first_commits: bool
) -> None:
    """A driver stands before its commit, and a partition of its round goes. Another driver takes its place, and has a
    round without that partition, which comes back later.
    """
    world = world_of(0)
    run = exports(world, to)
    run(world._settings(None))
    for tp in PARTITIONS:
        world.ends[tp] += 5
    first = world._begun(run)
    first.go_until(lambda: first.committing and first in world.planned)
    world.gone.add(PARTITIONS[1])
    second = world._begun(run)
    second.go_until(lambda: second.committing and second in world.planned)
    for each in (first, second) if first_commits else (second, first):
        each.go_until(lambda each=each: each.over)  # type: ignore[misc]
    check_ends([first, world._ended(run)])
    world.gone.clear()
    check_ends([second, world._ended(run)])
    assert Counter(offsets_in(world, to)) == every_record(world)


def overtaken_as_a_topic_went(
    world: World, job: Callable[[Settings], Any], state: Callable[[], RunState]
) -> TopicPartition:
    """A partition goes while a driver has records of it underway. A second driver that finds it gone stands still until
    the first one has counted these, and ends, as the first one has moved the `state` on. The partition."""
    deleted = PARTITIONS[1]
    first = world._begun(job)
    first.go_until(lambda: deleted in {each.tp for each in state().underway})
    world.gone.add(deleted)
    second = world._begun(job)
    second.go_until(lambda: second in world.planned)
    first.go_until(lambda: deleted in state().positions)
    second.go_until(lambda: second.over)
    first.go_until(lambda: first.over)
    assert isinstance(second.error, Overtaken)
    return deleted


def exports(world: World, to: str, merge_by: str | None = None) -> Callable[[Settings], None]:
    """What a driver does that exports to the world's lake."""
    lake = Directory(str(world.directory / "lake"))
    file: Any = SimpleNamespace(path="config.toml")
    form = form_asked(world._settings(None), Asked(to, table=TABLE if to == "iceberg" else None, merge_by=merge_by))

    def run(settings: Settings) -> None:
        export.export(settings, file, lake, "local", form, said)

    return run


def every_record(world: World) -> Counter[tuple[int, int]]:
    return Counter((tp.partition, at) for tp in PARTITIONS for at in range(world.ends[tp]))


def newest_of_each_key(world: World) -> Counter[tuple[int, int]]:
    newest = {_message(tp, at).key(): (tp, at) for tp in PARTITIONS for at in range(world.ends[tp])}
    return Counter((tp.partition, at) for tp, at in newest.values() if _message(tp, at).value() is not None)


def offsets_in(world: World, to: str) -> list[tuple[int, int]]:
    """Partition and offset of all that the lake has, as another reader finds it."""
    if to == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        tables = [SqlCatalog("test", **world.catalog).load_table(TABLE).scan().to_arrow()]
    elif to == "delta":
        tables = [DeltaTable(str(world.directory / "lake")).to_pyarrow_table()]
    else:
        paths = (world.directory / "lake").glob("date=*/[!_]*.parquet")
        tables = [pq.ParquetFile(path).read() for path in paths]
    rows = [row for table in tables for row in table.select(["partition", "offset"]).to_pylist()]
    return [(row["partition"], row["offset"]) for row in rows]


def a_run_of(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Settings], Any]:
    """A backfill of the name shared has begun; what goes on with it."""
    monkeypatch.setattr(SettingsFile, "settings", lambda file: world._settings(None))
    ranges = [OffsetRange(*tp, 0, end) for tp, end in world.ends.items()]
    state = RunState(ranges, topics={TOPIC: "id"})
    Runs(world._settings(None).pipeline.directory).start("backfill", "x:y", backfill.Request().text, state, "shared")
    file = SettingsFile("config.toml", "")
    return lambda settings: backfill.resume(settings, file, "shared", "local", said)


@pytest.mark.parametrize(
    "where", [(backfill, "check_handlers"), (backfill, "_in_logs"), (range_job, "open_session")], ids=lambda at: at[1]
)
def test_a_resume_that_cannot_begin_leaves_the_run_of_another_driver_alone(
    world_of: Callable[[int], World], monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str]
) -> None:
    world = world_of(0)
    resume = a_run_of(world, monkeypatch)

    def refused(*_: object) -> None:
        raise ConfigError("not here")

    def run() -> RunState:
        return Runs(str(world.directory / "runs")).read("shared").state

    first = world._begun(resume)
    first.go_until(lambda: bool(run().tiles))
    assert not run().finished
    with monkeypatch.context() as here:
        here.setattr(*where, refused)
        with pytest.raises(ConfigError, match="not here"):
            resume(world._settings(None))
    first.go_until(lambda: first.over)
    assert first.error is None
    assert run().finished


def test_a_resume_without_what_is_gone_leaves_the_files_that_another_driver_counts_meanwhile(
    world_of: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(0)
    world.failing = 1.0
    resume = a_run_of(world, monkeypatch)

    def run() -> RunState:
        return Runs(str(world.directory / "runs")).read("shared").state

    deleted = overtaken_as_a_topic_went(world, resume, run)
    place = Runs(str(world.directory / "runs")).outcomes("shared") / TOPIC / str(deleted.partition)
    rows = [
        row["offset"] for name in place.names(".parquet") for batch in place.batches(name) for row in batch.to_pylist()
    ]
    assert sorted(rows) == [*range(run().positions[deleted])]


@pytest.mark.parametrize("seed", few_and_many(10, 60))
def test_a_backfills_outcomes_tile_its_ranges_whichever_drivers_are_killed(
    world_of: Callable[[int], World], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = world_of(seed)
    ranges = [OffsetRange(*tp, 0, end) for tp, end in world.ends.items()]
    check_ends(world.play(a_run_of(world, monkeypatch), 6))
    for orphan in world.orphans:
        orphan()
    rows = Counter(
        (row["partition"], at)
        for path in (world.directory / "runs" / "shared" / "outcomes").glob("**/[!_]*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
        for at in range(row["offset"], row["until"])
    )
    assert rows == Counter((each.partition, at) for each in ranges for at in range(each.stop))
    run = Runs(str(world.directory / "runs")).read("shared")
    counts = run.state.counts
    assert (run.state.finished, counts.records + counts.skipped) == (True, sum(each.size for each in ranges))
