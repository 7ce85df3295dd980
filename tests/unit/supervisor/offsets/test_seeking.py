"""A person puts partitions elsewhere while the group runs; the workers and the broker are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer, LogOffset
from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStopped, Stopped
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.requests import Done, Goal
from kunicorn.positions import EARLIEST, LATEST, Position, TopicPartition
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions.poison import Poison
from tests.fakes.complete_settings import settings_of
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import Stage, tps

FIRST, END, AT_NOON = 50, 200, 120
NOON = 1_700_000_000_000


class Log:
    """Implements what of `starts.Offsets` is asked."""

    error = 0

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        await self.answers.wait()
        where = {EARLIEST: FIRST, LATEST: END, NOON: AT_NOON}
        return {tp: LogOffset(self.error, where.get(at, -1), 3, -1) for tp, at in queries.items()}


class Broker:
    """Implements `CommitTarget`."""

    def __init__(self) -> None:
        self.committed: list[dict[TopicPartition, int]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    may_commit = True
    changed = Notifier()

    lost = False
    """Answers are."""

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        self.committed.append({tp: position.offset for tp, position in offsets.items()})
        await self.answers.wait()
        if self.lost:
            raise PeerError("the connection is closed")
        return CommitAnswer(dict.fromkeys(offsets, 0))

    def commit_refused(self, error: int) -> None:
        raise AssertionError(error)

    def is_gone(self, topic: str) -> bool:
        raise AssertionError(topic)


class Bench:
    """One worker with two partitions, which it has handled up to 110."""

    def __init__(self, drain_timeout_ms: int = 60_000, commit_timeout_ms: int = 5_000) -> None:
        self.stage, self.broker, self.log = Stage(), Broker(), Log()
        self.stage.give(0, 1)
        table = self.stage.assignment.table
        self.commits = OffsetCommitter(self.broker, table.consumed, table.committed, Metrics())
        settings = settings_of(group={"drain_timeout_ms": drain_timeout_ms, "commit_timeout_ms": commit_timeout_ms})
        log: Any = self.log
        self.seeker = Seeker(settings, self.stage.assignment, self.commits, log)
        for number in (0, 1):
            self.worker.consume(self.worker.starts()[tps(number)[0]], 110)
            self.partition(number).read_ledger()

    @property
    def worker(self) -> PlayedWorker:
        return self.stage.workers[0]

    def partition(self, number: int) -> Any:
        return self.stage.assignment.table[tps(number)[0]]

    async def seek(self, goal: Goal, *numbers: int, execute: bool = True) -> Done:
        return await self.seeker.seek([self.partition(n) for n in numbers], goal, execute=execute)

    async def begin(self, goal: Goal, number: int) -> asyncio.Task[Done]:
        """Up to where the worker is to drain."""
        task = asyncio.ensure_future(self.seek(goal, number))
        for _ in range(10):
            await asyncio.sleep(0)
        return task

    def let_go(self, number: int, offset: int) -> None:
        grant = self.worker.starts()[tps(number)[0]].grant
        self.stage.assignment.worker_stopped(self.worker, FetcherStopped([Stopped(grant, offset, 3)]))


async def turns() -> None:
    """As many as lead from a worker's report to the commit, however long they take."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("goal", "then"),
    [
        (Goal(offset=60), 60),
        (Goal(edge="earliest"), FIRST),
        (Goal(edge="latest"), END),
        (Goal(time_ms=NOON), AT_NOON),
        (Goal(time_ms=NOON + 1), END),
    ],
)
async def test_a_plan_changes_nothing(bench: Bench, goal: Goal, then: int) -> None:
    done = await bench.seek(goal, 0, execute=False)
    assert done.ok
    assert done.moves is not None
    (move,) = done.moves
    assert (move.position, move.committed, move.then, move.log_start, move.log_end) == (110, 100, then, FIRST, END)
    assert (bench.worker.asked_to_stop(), bench.broker.committed) == ([], [])


async def test_what_is_in_hand_is_finished_then_the_new_offset_is_committed_then_fetched(bench: Bench) -> None:
    before = bench.worker.starts()[tps(0)[0]].grant
    seeking = await bench.begin(Goal(offset=60), 0)
    assert bench.worker.asked_to_stop() == [before]
    assert bench.stage.state(0) is PartitionState.PAUSED
    bench.broker.answers.clear()
    bench.let_go(0, 111)
    await turns()
    assert bench.broker.committed[-1][tps(0)[0]] == 60, "backwards, because a person asks for it"
    assert bench.worker.starts()[tps(0)[0]].grant == before, "not fetched before it is committed"
    bench.broker.answers.set()
    assert (await seeking).ok
    again = bench.worker.starts()[tps(0)[0]]
    assert (again.offset, again.grant > before) == (60, True)
    assert bench.worker.starts()[tps(1)[0]].offset == 100, "its neighbour goes on"


async def test_partitions_that_have_drained_together_are_committed_together(bench: Bench) -> None:
    seeking = asyncio.ensure_future(bench.seek(Goal(offset=60), 0, 1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(bench.worker.asked_to_stop()) == 2
    bench.let_go(0, 111)
    bench.let_go(1, 110)
    assert (await seeking).said == "2 of 2 partitions go on where they were put"
    assert bench.broker.committed == [{tps(0)[0]: 60, tps(1)[0]: 60}]


async def test_one_that_drains_late_holds_up_no_other(bench: Bench) -> None:
    seeking = asyncio.ensure_future(bench.seek(Goal(offset=60), 0, 1))
    for _ in range(10):
        await asyncio.sleep(0)
    before = bench.worker.starts()[tps(0)[0]].grant
    bench.let_go(0, 111)
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.worker.starts()[tps(0)[0]].grant > before
    assert not seeking.done()
    bench.let_go(1, 110)
    assert (await seeking).ok


@pytest.mark.parametrize("offset", [FIRST - 1, END + 1])
async def test_an_offset_outside_of_the_log_is_refused(bench: Bench, offset: int) -> None:
    done = await bench.seek(Goal(offset=offset), 0, 1)
    assert not done.ok
    assert f"orders-0: offset {offset} is not in the log ({FIRST} to {END})" in done.said
    assert bench.worker.asked_to_stop() == []


@pytest.mark.parametrize(("by_workers", "why"), [(True, "producing.delivery"), (False, "load_offsets")])
async def test_where_the_supervisor_commits_nothing_a_seek_is_refused(bench: Bench, by_workers: bool, why: str) -> None:
    bench.stage.assignment.table.workers_commit = by_workers
    bench.stage.in_force.keeps_offsets = lambda _: not by_workers
    done = await bench.seek(Goal(offset=60), 0)
    assert (done.ok, why in done.said) == (False, True)
    assert bench.worker.asked_to_stop() == []


async def test_a_halted_partition_goes_on_behind_the_record_that_halted_it(bench: Bench) -> None:
    grant = bench.partition(0).grant
    bench.stage.assignment.worker_failed(bench.worker, Failed(grant, FailureKind.HANDLER, 110, 3, "too bad"))
    bench.partition(0).blame.name(110, 2)
    bench.partition(0).blame.poison = Poison(110, 2, "SIGSEGV")
    assert (await bench.seek(Goal(offset=111), 0)).ok
    start = bench.worker.starts()[tps(0)[0]]
    assert (start.offset, start.poison) == (111, "")
    assert not bench.partition(0).blame.weighs_on(0)


async def test_a_paused_partition_stays_paused_at_its_new_place(bench: Bench) -> None:
    partition = bench.partition(0)
    bench.let_go(0, 110)
    partition.state = PartitionState.PAUSED
    partition.take_back()
    assert (await bench.seek(Goal(offset=61), 0)).ok
    assert (bench.stage.state(0), partition.position.offset, partition.committed) == (PartitionState.PAUSED, 61, 61)


async def test_one_that_is_revoked_while_it_drains_leaves_with_what_was_handled(bench: Bench) -> None:
    seeking = await bench.begin(Goal(offset=60), 0)
    revoking = asyncio.ensure_future(bench.stage.assignment.revoke(tps(0), 1e18, 1e18))
    await asyncio.sleep(0)
    bench.let_go(0, 111)
    await revoking
    done = await seeking
    assert (done.ok, "has left this member" in done.said) == (False, True)
    assert bench.partition(0).position.offset == 111


async def test_a_commit_that_is_out_meanwhile_does_not_count_for_the_new_place(bench: Bench) -> None:
    bench.broker.answers.clear()
    old = asyncio.ensure_future(bench.commits._commit_once(bench.stage.assignment.table.consumed, "timer"))
    await asyncio.sleep(0)
    seeking = await bench.begin(Goal(offset=100), 0)
    bench.let_go(0, 110)
    await turns()
    bench.broker.answers.set()
    await old
    assert (await seeking).ok
    assert [each.get(tps(0)[0]) for each in bench.broker.committed] == [110, 100]


async def test_a_commit_of_the_new_place_that_goes_unanswered_does_not_hide_the_next_one() -> None:
    bench = Bench(commit_timeout_ms=100)
    await bench.commits.commit_all(tps(0), 60)
    assert bench.broker.committed[-1][tps(0)[0]] == 110
    bench.broker.lost = True
    seeking = await bench.begin(Goal(offset=109), 0)
    bench.let_go(0, 110)
    assert not (await seeking).ok
    assert bench.broker.committed[-1][tps(0)[0]] == 109, "the broker has taken it, and nobody knows"
    bench.broker.lost = False
    bench.worker.consume(bench.worker.starts()[tps(0)[0]], 110)
    assert await bench.commits.commit_all(tps(0), 60)
    assert bench.broker.committed[-1][tps(0)[0]] == 110


async def test_a_record_that_takes_longer_than_the_drain_budget_keeps_its_place() -> None:
    bench = Bench(drain_timeout_ms=20)
    done = await bench.seek(Goal(offset=60), 0)
    assert (done.ok, "drain_timeout_ms" in done.said) == (False, True)
    assert bench.stage.state(0) is PartitionState.STARTING
    bench.let_go(0, 112)
    assert bench.worker.starts()[tps(0)[0]].offset == 112
    assert bench.broker.committed == []


async def test_a_partition_is_put_elsewhere_once_at_a_time_and_not_while_it_leaves(bench: Bench) -> None:
    seeking = await bench.begin(Goal(offset=60), 0)
    assert (await bench.seek(Goal(offset=70), 0)).said == "orders-0 is being put elsewhere now: try again"
    bench.let_go(0, 111)
    assert (await seeking).ok
    bench.partition(1).state = PartitionState.STOPPING
    assert (await bench.seek(Goal(offset=70), 1)).said == "orders-1 is stopping now: try again"


async def test_of_two_seeks_that_ask_the_brokers_at_a_time_one_puts_the_partition_elsewhere(bench: Bench) -> None:
    bench.log.answers.clear()
    first, second = await bench.begin(Goal(offset=60), 0), await bench.begin(Goal(offset=70), 0)
    bench.log.answers.set()
    assert (await asyncio.wait_for(second, 60)).said == "orders-0 is being put elsewhere now: try again"
    bench.let_go(0, 111)
    assert (await first).ok
    assert bench.broker.committed[-1][tps(0)[0]] == 60


async def test_a_partition_that_is_given_up_while_the_brokers_are_asked_is_not_put_elsewhere(bench: Bench) -> None:
    bench.log.answers.clear()
    seeking = await bench.begin(Goal(offset=60), 0)
    bench.partition(0).state = PartitionState.STOPPING
    bench.log.answers.set()
    assert (await seeking).said == "orders-0 is stopping now: try again"


async def test_a_leader_that_does_not_answer_is_told(bench: Bench) -> None:
    bench.log.error = 6
    done = await bench.seek(Goal(offset=60), 0)
    assert (done.ok, "error 6" in done.said) == (False, True)
