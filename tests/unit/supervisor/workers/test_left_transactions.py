"""Transactions that a dead worker has left open: who ends them."""

from __future__ import annotations

from unittest import mock

import pytest

from kunicorn.ipc import clock
from kunicorn.ipc.messages import EndTransactions
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.pool import Arbiter, Blueprint, Pool, PoolListener, WorkerSlot
from kunicorn.supervisor.workers.process import FENCED
from kunicorn.supervisor.workers.rolling import Replacer
from tests.fakes.played_workers import PlayedWorker


class HandOver:
    """A slot whose successor has taken over, and whose predecessor has not left yet."""

    def __init__(self, *, in_transactions: bool = True) -> None:
        listener = mock.Mock(spec=PoolListener)
        listener.worker_died.return_value = True
        named = (lambda number, turn: f"orders-{number}-{turn % 2}") if in_transactions else (lambda number, turn: "")
        blueprint = Blueprint(1, mock.AsyncMock(), mock.Mock(), 60.0, named)
        self.arbiter = Arbiter(Pool(1), blueprint, listener, ServiceTasks(), Metrics())
        self.slot = self.arbiter.pool.slots[0]
        self.slot.inherits = False
        self.before, self.after = self.slot.process, self.slot.successor = ready(0), ready(1)

    def dies(self, process: PlayedWorker, how: str) -> None:
        self.arbiter._on_exit(self.slot, process, how)


def ready(turn: int) -> PlayedWorker:
    worker = PlayedWorker(0)
    worker.turn, worker.ready_at = turn, clock.now()
    return worker


async def test_what_is_left_open_by_one_that_is_killed_while_it_hands_over_its_successor_ends() -> None:
    slot = HandOver()
    slot.slot.promote()
    slot.dies(slot.before, "SIGKILL")
    assert slot.after.told == [EndTransactions("orders-0-0")]
    assert slot.slot.inherits, "whoever comes after it ends them, too"


async def test_likewise_by_one_that_dies_while_its_successor_starts() -> None:
    slot = HandOver()
    slot.after.ready_at = None
    slot.dies(slot.before, "SIGSEGV")
    assert slot.after.told == [EndTransactions("orders-0-0")]


async def test_without_a_successor_the_next_one_has_the_same_id_and_is_told_nothing() -> None:
    slot = HandOver()
    slot.slot.remove(slot.after)
    slot.dies(slot.before, "SIGKILL")
    assert (slot.slot.turn, slot.slot.inherits) == (0, False)


async def test_where_the_successor_has_died_first_the_next_one_ends_what_its_predecessor_has_left_open() -> None:
    slot = HandOver()
    slot.slot.promote()
    slot.dies(slot.after, "SIGKILL")
    assert not slot.slot.inherits
    slot.dies(slot.before, "SIGKILL")
    assert slot.slot.inherits


async def test_nothing_is_left_by_one_that_exits_in_order() -> None:
    slot = HandOver()
    slot.slot.promote()
    slot.dies(slot.before, "exit 0")
    assert (slot.after.told, slot.slot.inherits) == ([], False)


@pytest.mark.parametrize("has_taken_over", [True, False])
async def test_what_one_that_was_fenced_has_left_open_is_ended_where_its_successor_has_another_id(
    *, has_taken_over: bool
) -> None:
    """The brokers have ended the transaction of one of its producers, and another one's is open."""
    slot = HandOver()
    if has_taken_over:
        slot.slot.promote()
    slot.dies(slot.before, FENCED)
    assert slot.after.told == [EndTransactions("orders-0-0")]
    assert slot.slot.inherits


@pytest.mark.parametrize("how", ["SIGKILL", FENCED])
async def test_one_that_dies_on_trial_has_had_no_partition_and_left_nothing_open(how: str) -> None:
    slot = HandOver()
    slot.after.on_trial = True
    slot.dies(slot.after, how)
    assert (slot.before.told, slot.slot.inherits) == ([], False)


async def test_without_transactions_nobody_is_told_anything() -> None:
    slot = HandOver(in_transactions=False)
    slot.slot.promote()
    slot.dies(slot.before, "SIGKILL")
    assert slot.after.told == []


async def test_what_dead_ones_have_left_open_is_ended_by_one_that_a_reload_has_put_into_the_empty_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = HandOver()
    successor, slot.slot.successor = slot.after, None
    slot.dies(slot.before, "SIGKILL")

    async def spawn(into: WorkerSlot, blueprint: Blueprint, *, on_trial: bool) -> PlayedWorker:
        into.successor = successor
        return successor

    monkeypatch.setattr(slot.arbiter, "spawn", spawn)
    assert await Replacer(slot.arbiter, Metrics(), 1.0).replace(slot.slot, "", "reload", slot.arbiter.blueprint)
    assert slot.slot.process is successor
    assert successor.told == [EndTransactions("orders-0-0")]
