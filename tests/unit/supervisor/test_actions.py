"""What a person asks for, with workers that are played by the test."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStopped, StopFetcher, Stopped
from kunicorn.supervisor.actions import Actions
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions import assignment as assignment_module
from kunicorn.supervisor.partitions.table import PartitionTable
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.pool import WorkerSlot
from kunicorn.supervisor.workers.rolling import Outcome, Recycler, ReplacementFailed
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import Stage, tps


class Bench:
    """Actions on a stage with one worker that has two partitions."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.give(0, 1)
        self.tasks = ServiceTasks()
        self.replaced: list[tuple[int, str]] = []
        self.fails = False
        self.stopping = False
        self.slots = self.stage.pool.slots
        self.slots[0].process = self.worker
        self.reloaded = Outcome("completed", "all workers run revision 2", (), 0.0)
        replacer: Any = SimpleNamespace(arbiter=SimpleNamespace(pool=self.stage.pool), replace=self.replace)
        workforce: Any = SimpleNamespace(recycler=Recycler(replacer, mock.Mock()), reloader=self)
        self.actions = Actions(self.stage.assignment, workforce, mock.Mock(spec=Seeker), self.tasks, self)

    @property
    def worker(self) -> PlayedWorker:
        return self.stage.workers[0]

    async def replace(self, slot: WorkerSlot, why: str, reason: str, **_: Any) -> None:
        if self.fails:
            raise ReplacementFailed("no memory")
        self.replaced.append((slot.number, reason))

    async def outcome(self) -> Outcome:
        return self.reloaded

    def drain(self) -> bool:
        self.stopping, before = True, self.stopping
        return not before

    def why_no_reload(self) -> str:
        return "stops" if self.stopping else ""

    def let_go(self, number: int, offset: int) -> None:
        """The worker reports that it has drained the partition."""
        grant = self.worker.starts()[tps(number)[0]].grant
        self.stage.assignment.worker_stopped(self.worker, FetcherStopped([Stopped(grant, offset, 3)]))


def test_a_paused_partition_drains_stays_where_it_is_and_goes_on_from_there() -> None:
    bench = Bench()
    done = bench.actions.pause(["orders:1"])
    assert (done.ok, done.said) == (True, "1 partitions paused: orders-1")
    assert bench.worker.asked_to_stop() == [bench.worker.starts()[tps(1)[0]].grant]
    bench.let_go(1, 105)
    assert bench.stage.state(1) is PartitionState.PAUSED
    before = bench.worker.starts()[tps(1)[0]].grant
    assert bench.actions.resume(["orders:1"]).said == "1 partitions resumed: orders-1"
    bench.stage.tell_uncut()
    again = bench.worker.starts()[tps(1)[0]]
    assert (again.offset, again.grant > before) == (105, True)


def test_one_that_is_resumed_before_it_has_drained_is_not_handed_out_twice() -> None:
    bench = Bench()
    bench.actions.pause(["orders:1"])
    first = bench.worker.starts()[tps(1)[0]]
    assert bench.actions.resume([]).said == "1 partitions resumed: orders-1; 1 are not, being starting"
    assert bench.worker.starts()[tps(1)[0]] == first, "its worker still has it"
    bench.let_go(1, 103)
    assert bench.worker.starts()[tps(1)[0]].offset == 103


@pytest.mark.parametrize("kind", [FailureKind.OUT_OF_RANGE, FailureKind.TRUNCATED, FailureKind.DENIED])
async def test_a_pause_that_a_failing_fetch_crosses_holds_and_what_fails_is_met_again_behind_it(
    kind: FailureKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment_module, "_DENIED_PAUSE", 0.001)
    bench = Bench()
    table = bench.stage.assignment.table
    bench.actions.pause(["orders:1"])
    failed = Failed(bench.worker.starts()[tps(1)[0]].grant, kind, 105, 3, "as the brokers say")
    bench.stage.assignment.worker_failed(bench.worker, failed)
    await asyncio.sleep(0.01)
    assert (bench.stage.state(1), table[tps(1)[0]].reason) == (PartitionState.PAUSED, "paused by a person")
    bench.actions.resume(["orders:1"])
    bench.stage.tell_uncut()
    assert bench.worker.starts()[tps(1)[0]].offset == 105


def test_a_halted_partition_gets_new_tries_or_a_new_start_offset() -> None:
    bench = Bench()
    bench.let_go(0, 101)
    bench.stage.assignment.halt(tps(0)[0], "too bad")
    bench.stage.assignment.assign(tps(2))
    bench.stage.assignment.halt(tps(2)[0], "nothing is committed")
    bench.stage.resolving.clear()
    assert (
        bench.actions.resume(["orders:0-2"]).said
        == "2 partitions resumed: orders-0, orders-2; 1 are not, being starting"
    )
    assert bench.stage.state(0) is PartitionState.STARTING
    assert [p.tp for p in bench.stage.resolving] == tps(2), "where it starts is looked up"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("refunds", "'refunds' is not assigned to this member"),
        ("orders:9", "'orders:9' is not assigned to this member"),
        ("orders:3-1", "the range ends before it begins; write orders:1-3"),
    ],
)
def test_names_that_mean_nothing_are_refused(named: str, said: str) -> None:
    bench = Bench()
    done = bench.actions.pause([named])
    assert (done.ok, done.said) == (False, said)


def test_what_cannot_be_paused_now_is_told_with_its_state() -> None:
    bench = Bench()
    bench.actions.pause([])
    done = bench.actions.pause([])
    assert (done.ok, done.said) == (False, "0 partitions paused; 2 are not, being paused")


async def test_a_worker_is_recycled_in_order_and_one_that_is_not_there_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    bench = Bench()
    assert bench.actions.recycle(0).ok
    await asyncio.sleep(0)
    assert bench.replaced == [(0, "request")]
    assert bench.actions.recycle(7).said == "there is no worker 7; there are 0, 1"
    assert bench.actions.recycle(None).ok is False
    assert bench.actions.recycle(1).said == "worker 1 has no process now, or is being replaced already"
    bench.fails = True
    assert bench.actions.recycle(0).ok
    await asyncio.sleep(0)
    assert "goes on although it was to be recycled (asked for by a person): no memory" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "ok", "said"),
    [
        (Outcome("completed", "all run revision 2", (), 0.0), True, "completed: all run revision 2"),
        (Outcome("failed", "no such module", (), 0.0), False, "failed: no such module"),
        (
            Outcome("completed", "all run revision 2", ("group.id", "http.port"), 0.0),
            True,
            "completed: all run revision 2; these take effect with the next start only: group.id, http.port",
        ),
        (
            Outcome("incomplete", "worker 1 runs the one before", (), 0.0),
            False,
            "incomplete: worker 1 runs the one before",
        ),
    ],
)
async def test_a_reload_says_what_came_of_it(outcome: Outcome, ok: bool, said: str) -> None:
    bench = Bench()
    bench.reloaded = outcome
    done = await bench.actions.reload()
    assert (done.ok, done.said) == (ok, said)


async def test_a_service_that_stops_reloads_nothing() -> None:
    bench = Bench()
    bench.actions.drain()
    done = await bench.actions.reload()
    assert (done.ok, done.said) == (False, "no reload: the service stops")


def test_a_service_is_drained_once() -> None:
    bench = Bench()
    assert bench.actions.drain().ok
    assert bench.actions.drain().said == "the service is stopping already"


def test_partitions_that_are_each_named_cost_one_look_at_the_table_and_one_message_to_their_worker() -> None:
    bench = Bench()
    numbers = range(2, 60)
    bench.stage.give(*numbers)
    bench.worker.told.clear()
    looks = 0

    def items(table: PartitionTable) -> Any:
        nonlocal looks
        looks += 1
        return dict.items(table)

    with mock.patch.object(PartitionTable, "items", items):
        done = bench.actions.pause([f"orders:{number}" for number in numbers])
    assert done.said.startswith("58 partitions paused")
    assert looks == 1
    (message,) = bench.worker.told
    assert isinstance(message, StopFetcher)
    assert len(message.grants) == 58


def test_partitions_are_meant_by_name_by_number_and_by_range_and_each_once() -> None:
    bench = Bench()
    bench.stage.give(2, 3)
    assert bench.actions.pause(["orders:2-900", "orders:3", "orders:1"]).said == (
        "3 partitions paused: orders-2, orders-3, orders-1"
    )
    assert bench.actions.resume(["orders"]).said.startswith("3 partitions resumed: orders-1, orders-2, orders-3; 1 are")
    assert bench.actions.pause(["orders:7"]).said == "'orders:7' is not assigned to this member"
