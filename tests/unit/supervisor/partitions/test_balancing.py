"""Partitions measured in real ledgers, and moved between workers that are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from kunicorn.group.protocol import LogOffset
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import CONSUMED, HAND_COUNT, HAND_OFFSET, HAND_SINCE, HANDLED
from kunicorn.ipc.messages import InHand, Parked, Pong
from kunicorn.positions import TopicPartition
from kunicorn.settings import WorkerSettings
from kunicorn.supervisor.partitions.balancer import Balancer
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.partitions.poison import Poison
from tests.fakes.played_workers import PlayedPool, PlayedWorker
from tests.fakes.stage import Stage

SETTINGS = WorkerSettings(sharing_interval_ms=1000)


@dataclass
class WatchedPool(PlayedPool):
    stopping: bool = False

    def processes(self) -> list[PlayedWorker]:
        return list(self.workers.values())


@dataclass
class Logs:
    """The brokers: what they say of the logs' ends."""

    sharing: Any

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, LogOffset]:
        self.sharing.asked += 1
        return {tp: LogOffset(0, self.sharing.ends[tp.partition]) for tp in wanted}


class Sharing:
    """Eight partitions over two workers, the even ones with worker 0; one second between looks."""

    def __init__(self) -> None:
        self.pool = WatchedPool({})
        self.stage = Stage(workers=2, pool=self.pool)
        self.handled = 0
        self.stage.give(*range(8))
        for worker in self.pool.workers.values():
            self.answer(worker)
            for start in worker.starts().values():
                worker.consume(start, 100)
        self.steady = True
        self.asked = 0
        self.ends = dict.fromkeys(range(8), 100)
        logs: Any = Logs(self)
        self.stage.in_force.workers = SETTINGS
        in_force: Any = self.stage.in_force
        self.balancer = Balancer(self.stage.assignment, logs, in_force, lambda: self.steady)
        self.now = clock.now()
        self.run()
        assert {n for n in range(8) if self.worker_of(n) == 0} == {0, 2, 4, 6}

    def answer(self, worker: PlayedWorker, **evidence: Any) -> None:
        """Its latest Pong."""
        self.handled += 1
        worker.pong = Pong(0, 0, self.handled, None, 0, False, 0, **evidence)

    def run(self) -> None:
        asyncio.run(self.balancer.look(self.now))

    def worker_of(self, number: int) -> int | None:
        worker = self.partition(number).worker
        return worker.number if worker is not None else None

    def partition(self, number: int) -> Any:
        return self.stage.assignment.table[TopicPartition("orders", number)]

    def handle(self, number: int, records: int, seconds: float, lag: int = 0) -> None:
        """So many records were handled, in so much time; so many more are in the log."""
        partition = self.partition(number)
        if (pong := partition.worker.pong) is not None:
            partition.worker.pong = msgspec.structs.replace(pong, handled=pong.handled + records)
        cells, at = partition.worker.ledger.cells, partition.worker.ledger.index(partition.slot)
        cells[at + CONSUMED] += records
        cells[at + HANDLED] += records
        cells[partition.worker.ledger.busy_index(partition.slot)] += int(seconds * clock.NANOSECONDS)
        self.ends[number] = cells[at + CONSUMED] + lag
        partition.log_end = self.ends[number]

    def look(self, seconds: float = 1.0) -> list[int]:
        """Some time later; the numbers of the partitions that are asked to stop where they are."""
        before = {worker.number: len(worker.asked_to_stop()) for worker in self.pool.processes()}
        self.now += seconds
        self.run()
        stopped = [grant for w in self.pool.processes() for grant in w.asked_to_stop()[before[w.number] :]]
        return [n for n in range(8) if self.partition(n).grant in stopped]

    def let_go(self, number: int) -> None:
        """Its worker reports what was asked for; the next one opens its slot."""
        partition = self.partition(number)
        old = partition.worker
        offset = old.ledger.cells[old.ledger.index(partition.slot) + CONSUMED]
        self.stage.stopped(old.starts()[partition.tp], offset, old.number)
        new = partition.worker
        new.consume(new.starts()[partition.tp], offset)
        partition.read_ledger()

    def heat(self, number: int = 0) -> None:
        """That one has as much to do as the seven others together; each worker is busy."""
        for each in range(8):
            self.handle(each, 1000, 0.25, lag=90_000 if each == number else 10_000)


@pytest.fixture
def sharing() -> Sharing:
    return Sharing()


def test_a_hot_partition_gets_its_worker_to_itself_one_move_after_the_other(sharing: Sharing) -> None:
    moved = []
    for _ in range(20):
        sharing.heat()
        for number in sharing.look():
            moved.append(number)
            assert sharing.partition(number).state is PartitionState.MOVING
            sharing.let_go(number)
    assert sorted(moved) == [2, 4, 6]
    assert {n for n in range(8) if sharing.worker_of(n) == 0} == {0}


def test_a_moved_partition_goes_on_where_its_worker_let_go_of_it(sharing: Sharing) -> None:
    sharing.heat()
    (number,) = sharing.look()
    position = 100 + 1000
    sharing.let_go(number)
    start = sharing.pool.workers[1].starts()[TopicPartition("orders", number)]
    assert start.offset == position
    assert sharing.stage.assignment.table.consumed()[TopicPartition("orders", number)].offset == position


def test_counts_do_not_undo_what_loads_have_placed(sharing: Sharing) -> None:
    for _ in range(20):
        sharing.heat()
        for number in sharing.look():
            sharing.let_go(number)
    sharing.stage.assignment.distribute()
    assert {n for n in range(8) if sharing.worker_of(n) == 0} == {0}
    assert all(p.state is PartitionState.RUNNING for p in sharing.stage.assignment.table.values())
    sharing.stage.give(8)
    assert sharing.worker_of(8) == 1, "to the worker that has less to do, though it has seven"


def test_the_partitions_of_a_dead_worker_go_back_to_its_successor(sharing: Sharing) -> None:
    for _ in range(20):
        sharing.heat()
        for number in sharing.look():
            sharing.let_go(number)
    sharing.stage.die(1)
    assert [n for n in range(8) if sharing.worker_of(n) is not None] == [*range(8)], "the other one takes them"
    sharing.stage.revive(1)
    moving = [n for n in range(8) if sharing.partition(n).state is PartitionState.MOVING]
    assert len(moving) == 4, "a worker with nothing makes it a matter of counts"


def test_a_move_under_way_is_the_only_one(sharing: Sharing) -> None:
    sharing.heat()
    assert len(sharing.look()) == 1
    sharing.heat()
    assert sharing.look(5.0) == []


def test_while_something_is_under_way_nothing_moves(sharing: Sharing) -> None:
    worker = sharing.pool.workers[1]

    def rebalance(on: bool) -> None:
        sharing.steady = not on

    def start_successor(on: bool) -> None:
        sharing.pool.slots[1].successor = worker if on else None

    def back_off(on: bool) -> None:
        sharing.pool.slots[0].backing_off = on

    def stop(on: bool) -> None:
        sharing.pool.stopping = on

    def pause_for_the_lease(on: bool) -> None:
        worker.pong = Pong(0, 0, 0, None, 0, on, 0)

    def resolve_a_start(on: bool) -> None:
        sharing.partition(7).state = PartitionState.RESOLVING if on else PartitionState.RUNNING

    for under_way in (rebalance, start_successor, back_off, stop, pause_for_the_lease, resolve_a_start):
        under_way(True)
        sharing.heat()
        assert sharing.look() == [], under_way.__name__
        under_way(False)
    sharing.heat()
    assert len(sharing.look()) == 1


def test_what_waits_for_a_retry_is_suspected_or_is_in_hand_for_long_stays(sharing: Sharing) -> None:
    giver = sharing.pool.workers[0]
    waiting = [Parked(sharing.partition(number).grant, "retry", "failed") for number in (0, 2)]
    sharing.answer(giver, parked=waiting)
    sharing.partition(4).blame.poison = Poison(10**6, 2, "SIGKILL")
    slow = sharing.partition(6)
    at = giver.ledger.index(slow.slot)
    giver.ledger.cells[at + HAND_COUNT], giver.ledger.cells[at + HAND_OFFSET] = 1, 100
    giver.ledger.cells[at + HAND_SINCE] = int((sharing.now - 10) * clock.NANOSECONDS)
    for _ in range(4):
        sharing.heat()
        assert sharing.look() == []


def test_a_record_that_killed_workers_and_is_passed_does_not_keep_its_partition_where_it_is(sharing: Sharing) -> None:
    for number in range(8):
        sharing.partition(number).blame.poison = Poison(1, 2, "SIGKILL")
    sharing.heat()
    assert len(sharing.look()) == 1


def test_paused_and_halted_partitions_stay_and_hinder_no_other(sharing: Sharing) -> None:
    sharing.partition(2).state = PartitionState.PAUSED
    sharing.partition(4).state = PartitionState.HALTED
    sharing.heat()
    assert sharing.look() == [6]


def test_before_a_move_the_logs_ends_are_asked_for_and_what_was_caught_up_with_moves_nothing(sharing: Sharing) -> None:
    for number in range(8):
        sharing.handle(number, 1000, 0.1, lag=50_000 if number in (0, 2) else 0)
        sharing.ends[number] = 1100
    assert sharing.look() == []
    assert sharing.asked == 1, "by what was known it paid"
    assert sharing.look() == []
    assert sharing.asked == 1, "nobody is asked where nothing is to be gained"


def test_sharing_by_count_measures_and_moves_nothing(sharing: Sharing) -> None:
    sharing.stage.in_force.workers = WorkerSettings(sharing="count", sharing_interval_ms=1000)
    sharing.heat()
    assert sharing.look() == []
    assert sharing.partition(0).demand > 1.0


def test_after_a_reload_to_count_the_numbers_are_evened_out_again(sharing: Sharing) -> None:
    for _ in range(20):
        sharing.heat()
        for number in sharing.look():
            sharing.let_go(number)
    sharing.stage.in_force.workers = WorkerSettings(sharing="count", sharing_interval_ms=1000)
    moving = sharing.look()
    assert len(moving) == 3
    assert all(sharing.partition(n).last_worker == 0 for n in moving)


def test_a_death_that_lies_behind_keeps_no_partition_where_it_is(sharing: Sharing) -> None:
    for number in (2, 4, 6):
        sharing.partition(number).blame.name(100, 2)
    assert sharing.look() == []
    sharing.heat()
    assert len(sharing.look()) == 1, "the record that was in hand then is done"


def test_what_is_released_at_its_end_hinders_no_other(sharing: Sharing) -> None:
    sharing.partition(7).state = PartitionState.RELEASED
    sharing.heat()
    assert len(sharing.look()) == 1


def test_a_call_that_takes_long_counts_while_it_lasts(sharing: Sharing) -> None:
    partition = sharing.partition(0)
    cells, at = partition.worker.ledger.cells, partition.worker.ledger.index(partition.slot)
    cells[at + HAND_COUNT], cells[at + HAND_OFFSET] = 1, 100
    cells[at + HAND_SINCE] = int(sharing.now * clock.NANOSECONDS)
    sharing.answer(partition.worker)
    partition.worker.pong = msgspec.structs.replace(partition.worker.pong, in_hand=InHand("orders", 0, 100, 1, 0.1))
    for _ in range(3):
        sharing.look()
        assert partition.demand == pytest.approx(1.0, abs=0.4)


def test_a_new_grant_begins_to_count_at_nothing(sharing: Sharing) -> None:
    for _ in range(3):
        sharing.heat()
        moved = sharing.look()
        for number in moved:
            sharing.let_go(number)
    before = sharing.partition(0).demand
    sharing.look()
    assert 0.0 <= sharing.partition(2).demand <= before


def test_an_idle_service_is_not_looked_through(sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    sharing.heat()
    for _ in range(16):
        sharing.look()
    monkeypatch.setattr(Partition, "read_ledger", lambda self: pytest.fail("nobody has told of any work"))
    sharing.look()
    monkeypatch.undo()
    sharing.handle(0, 1000, 0.5)
    sharing.look()
    assert sharing.partition(0).demand > 0.1, "and the idle time counts for nothing"
