"""Partitions that [assign] names: where their logs end, and topics that are created anew meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from kunicorn.errors import ConfigError
from kunicorn.group.protocol import LogOffset
from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import StopFetcher, ToWorker
from kunicorn.kafka_errors import ErrorCode
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import EARLIEST, LATEST, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.membership.manual import ManualAssignment
from kunicorn.supervisor.membership.source import StartLookup
from kunicorn.supervisor.tasks import ServiceTasks
from tests.fakes.complete_settings import settings_of
from tests.fakes.driver import until
from tests.fakes.obedient_worker import ObedientWorker
from tests.fakes.stage import Stage, tps
from tests.fakes.virtual_loop import Teller, in_virtual_time, with_scene

ZERO, ONE = tps(0, 1)
_OLD, _NEW = UUID(int=1), UUID(int=2)


class HeldUp(ObedientWorker):
    """A worker that may have a record in hand, and a hook that waits for it."""

    held_up = False

    def send(self, message: ToWorker) -> None:
        if not (self.held_up and isinstance(message, StopFetcher)):
            super().send(message)

    def take_to(self, tp: TopicPartition, offset: int) -> None:
        (start,) = (each for each in self._held.values() if (each.topic, each.partition) == tp)
        self.consume(start, offset)


class _Topics:
    """Connections by which a topic of two partitions is known, and nothing else."""

    def __init__(self) -> None:
        self.brokers = self.topics = self

    def subscribe(self) -> None: ...

    def watch_counts(self, topics: Collection[str]) -> None: ...

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return [ZERO, ONE]


class World(_Topics):
    """A topic of two partitions, one worker, and the service's real parts between them: `Topics` and `Offsets`."""

    def __init__(self, stop: str) -> None:
        super().__init__()
        self.id = _OLD
        self.ends = {ZERO: 500, ONE: 500}
        self.silent: set[TopicPartition] = set()
        """Their leaders do not answer."""
        self.recreated = asyncio.Event()
        untyped: Any = self
        self.stage = Stage(workers=0, topics=self)
        self.worker = HeldUp(0, self.stage.assignment)
        self.stage.pool.workers[0] = self.worker
        self.tasks = ServiceTasks()
        settings = _settings(stop)
        self.source = ManualAssignment(settings, untyped, self.stage.assignment, Metrics())
        lookup = StartLookup(settings, self.source, untyped, self.stage.assignment, self.tasks)
        self.tasks.start(lookup.run(self.stage.assignment.table.without_start))
        self.running = self.tasks.start(self.source.run())
        for work in self.source.works():
            self.tasks.start(work)

    def create_anew(self) -> None:
        """With 20 records in each partition."""
        self.id, self.ends = _NEW, {ZERO: 20, ONE: 20}
        self.recreated.set()

    def topic_id(self, topic: str) -> UUID:
        return self.id

    async def changes(self, max_age: float) -> str:
        await asyncio.Event().wait()
        raise AssertionError("nothing changes")

    async def confirm_ids(self, topics: Collection[str]) -> None: ...

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        return {tp: self._edge(tp, at) for tp, at in queries.items()}

    def _edge(self, tp: TopicPartition, at: int) -> LogOffset:
        if tp in self.silent:
            return LogOffset(ErrorCode.LEADER_NOT_AVAILABLE)
        return LogOffset(0, {EARLIEST: 0, LATEST: self.ends[tp]}[at])

    def state(self, tp: TopicPartition) -> PartitionState:
        state: PartitionState = self.stage.assignment.table[tp].state
        return state


def _settings(stop: str, partitions: Sequence[str] = ("orders",)) -> Settings:
    start = "latest" if stop == "never" else "earliest"
    return settings_of(assign={"partitions": partitions, "start": start, "stop": stop})


def play(story: Callable[[World], Any], stop: str) -> None:
    async def whole() -> None:
        world = World(stop)
        try:
            await story(world)
        finally:
            await world.tasks.cancel(5)
            world.worker.ledger.close()
        assert world.tasks.error is None

    in_virtual_time(whole, sockets=False)


def told(stop: str) -> Teller[World]:
    """Tests of a world of their own."""
    return with_scene(lambda story, _: play(story, stop))


async def test_a_partition_that_does_not_exist_ends_the_service_before_anything_is_consumed() -> None:
    world: Any = _Topics()
    settings = _settings("never", partitions=["orders:1-2"])
    source = ManualAssignment(settings, world, Stage(workers=0).assignment, Metrics())
    with pytest.raises(ConfigError, match=r"assign.partitions: orders:2 do not exist: .*; orders has 0-1"):
        await asyncio.wait_for(source.run(), 5)


@told("never")
async def test_a_topic_that_is_created_anew_is_consumed_from_its_beginning(world: World) -> None:
    await until(lambda: world.worker.positions == {ZERO: 500, ONE: 500})
    world.create_anew()
    await until(lambda: world.worker.positions == {ZERO: 0, ONE: 0})


@told("never")
async def test_a_position_that_the_new_topic_does_not_reach_is_not_taken_to_its_end(world: World) -> None:
    """The client finds it out of range before the metadata shows another id."""
    await until(lambda: world.worker.positions == {ZERO: 500, ONE: 500})
    world.id, world.ends = _NEW, {ZERO: 20, ONE: 20}
    world.worker.fall_out_of_range()
    await asyncio.sleep(5.0)
    assert not world.worker.positions
    world.recreated.set()
    await until(lambda: world.worker.positions == {ZERO: 0, ONE: 0})


@told("never")
async def test_one_that_had_no_start_yet_begins_the_new_topic_at_its_beginning_too(world: World) -> None:
    world.silent = {ONE}
    await until(lambda: world.worker.positions == {ZERO: 500})
    world.silent.clear()
    world.create_anew()
    await until(lambda: world.worker.positions == {ZERO: 0, ONE: 0})


def test_a_range_that_is_gone_with_its_topic_ends_unfinished_and_nothing_of_the_new_one_is_handled(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def story(world: World) -> None:
        await until(lambda: world.worker.positions == {ZERO: 0, ONE: 0})
        world.create_anew()
        await until(lambda: world.source.over)
        assert world.source.unfinished == 2
        assert world.state(ZERO) is world.state(ONE) is PartitionState.RELEASED
        assert not world.worker.positions

    play(story, "end")
    assert "deleted and created anew" in capfd.readouterr().err


@pytest.mark.parametrize("leaves", [False, True], ids=["as long as it takes", "until the service is to stop"])
@told("end")
async def test_a_partition_at_its_end_waits_for_its_worker_however_long_another_ones_record_takes(
    world: World, *, leaves: bool
) -> None:
    """Its report waits for `on_revoked`, and that for the record in hand."""
    await until(lambda: world.worker.positions == {ZERO: 0, ONE: 0})
    world.worker.held_up = True
    world.worker.take_to(ZERO, 500)
    await asyncio.sleep(3600.0)
    assert world.state(ZERO) is PartitionState.STOPPING
    assert world.state(ONE) is PartitionState.RUNNING
    assert not world.stage.pool.escalated
    assert not world.source.assign().finished
    if leaves:
        world.source.leave("SIGTERM")
        await until(lambda: world.stage.pool.escalated == [0])
        return
    world.worker.held_up = False
    world.stage.assignment.let_go([ZERO])
    world.worker.take_to(ONE, 500)
    await until(lambda: world.source.over)
    assert world.source.through
    assert not world.source.unfinished


@told("end")
async def test_leaders_that_do_not_tell_where_their_logs_end_are_named_while_everything_waits_for_them(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    world.silent = {ONE}
    await asyncio.sleep(9.0)
    assert not capfd.readouterr().err, "an election takes less"
    await asyncio.sleep(4.0)
    log = capfd.readouterr().err
    assert log.count("1 have not: orders:1; start the brokers") == 1
    assert not world.worker.positions
    await asyncio.sleep(60.0)
    assert capfd.readouterr().err.count("1 have not: orders:1") == 1, "once a minute"
    world.silent.clear()
    await until(lambda: world.worker.positions == {ZERO: 0, ONE: 0})
