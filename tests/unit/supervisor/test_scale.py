"""Ten thousand partitions in one member that all have something to report: heartbeats go out on time meanwhile.

Measured in CPU time, and against what else costs CPU time in the same run: a slow or busy machine changes neither.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kunicorn.group.protocol import CommitAnswer, Committed, EpochEnd, LogOffset
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStopped, StopFetcher, Stopped
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import LATEST, Position, TopicPartition
from kunicorn.supervisor.membership.source import StartLookup
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.start_offsets import Starts
from kunicorn.supervisor.partitions import assignment as assignment_module
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.pool import Pool
from tests.fakes.driver import until
from tests.fakes.stage import Stage, settings_with

FEW, MANY, WORKERS = 1_000, 10_000, 16
CHUNK = 250
"""So many reports come out of a pipe at a time, and out of all pipes in one turn of the loop."""
STEEPEST = 90
"""Ten times as many partitions may cost so many times as much: ten is proportional, and what others do to the
processor's caches makes it thirty; a hundred, and these times that, is quadratic."""

AT_MOST, AT_A_STRETCH = 150, 12
"""So many times as long as this processor takes, in the same minute, for a table of a hundred thousand names (some 40
ms as servers have them): 6 s, and half a second at a stretch."""


@dataclass
class Spent:
    """CPU seconds, and how often everything was gone over."""

    all: float = 0.0
    turn: float = 0.0
    """The longest turn of the loop: so long may a heartbeat have to wait."""
    distributed: int = 0
    resolved: int = 0
    committed: int = 0


@dataclass
class Member:
    """The real parts with played workers, and brokers that answer at once."""

    count: int
    policy: str = "earliest"
    tasks: ServiceTasks = field(default_factory=ServiceTasks)
    spent: Spent = field(default_factory=Spent)
    may_commit = goes_by_ids = True

    def __post_init__(self) -> None:
        self.tps = [TopicPartition(f"topic-{number % 20}", number // 20) for number in range(self.count)]
        self.starts = Starts(committed=dict.fromkeys(self.tps, Position(100, 3)))
        self.stage = Stage(workers=WORKERS)
        for worker in self.stage.workers.values():
            worker.ledger.close()
            worker.ledger = Ledger.create(self.count)
        self.assignment = self.stage.assignment
        table = self.assignment.table
        self.commits = OffsetCommitter(self, table.consumed, table.committed, Metrics())
        source: Any = self
        self.start_lookup = StartLookup(settings_with(self.policy), source, self, self.assignment, self.tasks)
        self.tasks.start(self.start_lookup.run(table.without_start))
        self._look_up = table.look_up
        setattr(table, "look_up", self.look_up_partitions)  # noqa: B010 - counts, and goes on
        self._distribute = self.assignment.distribution.distribute
        setattr(self.assignment.distribution, "distribute", self.distribute)  # noqa: B010 - counts, and goes on

    # -- what is counted -----------------------------------------------------------------------------------------

    def look_up_partitions(self, partitions: Collection[Partition]) -> None:
        self.spent.resolved += 1
        self._look_up(partitions)

    def distribute(self, pool: Pool) -> None:
        self.spent.distributed += 1
        self._distribute(pool)

    @property
    def changed(self) -> Notifier:
        return self.stage.assignment.table.changed

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        self.spent.committed += 1
        return CommitAnswer(dict.fromkeys(offsets, 0))

    # -- the brokers ---------------------------------------------------------------------------------------------

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        return self.starts

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        return {tp: LogOffset(0, 900 if at == LATEST else 500) for tp, at in queries.items()}

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        return dict.fromkeys(queries, EpochEnd(0))

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> Any:
        raise NotImplementedError

    async def confirm_ids(self, topics: Collection[str]) -> None: ...

    def is_of_another_topic(self, topic: str, committed: Committed) -> bool:
        return False

    def created_anew(self, topic: str) -> bool:
        return False

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return self.tps

    def commit_refused(self, error: int) -> None:
        raise NotImplementedError

    def is_gone(self, topic: str) -> bool:
        raise NotImplementedError

    # -- the steps -----------------------------------------------------------------------------------------------

    def all_are(self, state: PartitionState) -> bool:
        return all(partition.state is state for partition in self.assignment.table.values())

    def handed_out(self) -> bool:
        return self.all_are(PartitionState.STARTING) and all(
            partition.worker is not None for partition in self.assignment.table.values()
        )

    async def start(self) -> None:
        self.assignment.assign(self.tps)
        await until(self.handed_out)

    async def report(self, kind: FailureKind) -> None:
        """Each of them for itself, as pipes bring it, all workers at the same time."""
        failing = {worker: list(worker.starts().values()) for worker in self.stage.workers.values()}
        for worker in failing:
            worker.told.clear()
        for first in range(0, self.count, CHUNK):
            for worker, starts in failing.items():
                for start in starts[first : first + CHUNK]:
                    self.assignment.worker_failed(worker, Failed(start.grant, kind, start.offset, 3, "what it says"))
            await asyncio.sleep(0)

    async def fall_out_of_the_log(self) -> None:
        await self.report(FailureKind.OUT_OF_RANGE)
        await until(self.handed_out)

    async def lose_the_right(self) -> None:
        """For two rounds: all are tried again, and denied again."""
        for _ in range(2):
            await self.report(FailureKind.DENIED)
            await until(self.handed_out)

    async def come_without_a_start(self) -> None:
        self.starts = Starts(open=dict.fromkeys(self.tps, "nothing is committed for it"))
        self.assignment.assign(self.tps)
        await until(lambda: self.all_are(PartitionState.HALTED))

    async def are_revoked(self) -> None:
        """Each of them has a record in hand, so that its worker reports its end for itself."""
        held = {worker: list(worker.starts().values()) for worker in self.stage.workers.values()}
        for worker, starts in held.items():
            for start in starts:
                worker.consume(start, 100, in_hand=1)
        now = clock.now()
        revoke = asyncio.ensure_future(self.assignment.revoke(self.tps, now + 500, now + 900))
        await asyncio.sleep(0)
        for worker, starts in held.items():
            for start in starts:
                self.assignment.worker_stopped(worker, FetcherStopped([Stopped(start.grant, 101, 3)]))
        await revoke

    def none_moved(self) -> bool:
        told = [message for worker in self.stage.workers.values() for message in worker.told]
        return not any(isinstance(message, StopFetcher) for message in told)

    async def measured(self, what: str) -> Spent:
        """What a step takes."""
        self.spent = Spent()

        loop: Any = asyncio.get_running_loop()
        turn = loop._run_once

        def measured_turn() -> None:
            began = time.process_time()
            turn()
            self.spent.turn = max(self.spent.turn, time.process_time() - began)

        # When a collection of garbage comes, and what other tests have left for it, is no part of what a step costs.
        gc.collect()
        gc.disable()
        loop._run_once = measured_turn
        began = time.process_time()
        await getattr(self, what)()
        self.spent.all = time.process_time() - began
        loop._run_once = turn
        gc.enable()
        for worker in self.stage.workers.values():
            worker.ledger.close()
        assert self.tasks.error is None
        return self.spent


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment_module, "_DENIED_PAUSE", 0.5)


async def spent(count: int, what: str, policy: str = "earliest") -> tuple[Member, Spent]:
    """What that step takes a member with so many partitions."""
    member = Member(count, policy)
    if policy != "none":
        await member.start()
    return member, await member.measured(what)


def yardstick() -> float:
    """CPU seconds for a table of a hundred thousand names."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    assert len({f"topic-{number}": [number] for number in range(100_000)}) == 100_000
    gc.enable()
    return time.process_time() - began


async def test_ten_thousand_positions_outside_the_log_are_looked_up_and_committed_together() -> None:
    member, many = await spent(MANY, "fall_out_of_the_log")
    assert {start.offset for worker in member.stage.workers.values() for start in worker.starts().values()} == {500}
    assert member.none_moved(), "none is moved into the place of one that comes back"
    assert many.resolved <= 10
    assert many.committed <= 10
    assert many.distributed <= 40
    _, few = await spent(FEW, "fall_out_of_the_log")
    assert many.all < STEEPEST * few.all


async def test_ten_thousand_partitions_that_may_not_be_read_are_tried_again_together() -> None:
    member, many = await spent(MANY, "lose_the_right")
    assert member.none_moved(), "none is moved into the place of one that comes back"
    assert many.distributed <= 40
    _, few = await spent(FEW, "lose_the_right")
    assert many.all < STEEPEST * few.all


async def test_ten_thousand_partitions_without_a_start_are_halted_in_proportion_to_their_number() -> None:
    _, many = await spent(MANY, "come_without_a_start", "none")
    _, few = await spent(FEW, "come_without_a_start", "none")
    assert many.all < STEEPEST * few.all


async def test_ten_thousand_partitions_that_end_one_by_one_in_a_revoke_are_not_shared_out_for_each() -> None:
    _, many = await spent(MANY, "are_revoked")
    assert many.distributed <= 2
    _, few = await spent(FEW, "are_revoked")
    assert many.all < STEEPEST * few.all


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "policy"),
    [("fall_out_of_the_log", "latest"), ("lose_the_right", "latest"), ("come_without_a_start", "none")],
)
async def test_heartbeats_are_on_time_while_ten_thousand_partitions_fail(what: str, policy: str) -> None:
    """Of three tries the one that others have disturbed the least."""
    tries = [((await spent(MANY, what, policy))[1], yardstick()) for _ in range(3)]
    many, unit = min(tries, key=lambda each: each[0].turn / each[1])
    print(f"{what}: {many.all:.2f} s of CPU, at most {many.turn:.3f} s at a stretch, of {unit:.3f} s")
    assert many.all < AT_MOST * unit
    assert many.turn < AT_A_STRETCH * unit
    _, few = await spent(FEW, what, policy)
    assert many.all < STEEPEST * few.all
    assert many.turn < STEEPEST * few.turn
