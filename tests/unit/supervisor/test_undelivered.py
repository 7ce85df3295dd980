"""Workers that die with records handled whose outputs are not delivered: the loop ends, and with the right record."""

from __future__ import annotations

import pytest

from kunicorn.group.states import PartitionState
from kunicorn.ipc.ledger import HAND_END, HAND_OFFSET
from kunicorn.ipc.messages import FetcherStart
from tests.fakes.stage import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage(poison_halts=False)


def handle(stage: Stage, number: int, delivered: int, handled: int, in_hand: int = 0) -> None:
    """The worker's ledger says so, of one partition; what is in hand comes behind what is handled."""
    worker, start = stage.workers[0], stage.start_of(number)
    worker.ledger.use_runs(start.slot, delivered=True)
    worker.consume(start, delivered, in_hand=in_hand)
    worker.ledger.cells[worker.ledger.index(start.slot) + HAND_OFFSET] = handled
    worker.ledger.cells[worker.ledger.busy_index(start.slot) + HAND_END] = handled + in_hand


def next_life(stage: Stage, number: int = 0) -> FetcherStart:
    stage.die_and_revive()
    return stage.start_of(number)


def die_with(stage: Stage, delivered: int, handled: int, in_hand: int = 0, times: int = 2) -> FetcherStart:
    for _ in range(times):
        handle(stage, 0, delivered, handled, in_hand)
        next_life(stage)
    return stage.start_of(0)


def test_what_was_not_delivered_at_two_deaths_is_handled_one_at_a_time(stage: Stage) -> None:
    stage.give(0)
    assert die_with(stage, 100, 150, times=1).singly_until == -1
    start = die_with(stage, 110, 140, times=1)
    assert (start.offset, start.singly_until, start.poison) == (110, 150, "")


def test_of_those_one_that_kills_alone_is_poison(stage: Stage) -> None:
    stage.give(0)
    die_with(stage, 100, 150)
    assert die_with(stage, 120, 121, times=1).poison == ""
    start = die_with(stage, 120, 121, times=1)
    assert start.poison == "2 workers died (SIGKILL) with offset 120 handled and its outputs not delivered"
    assert (start.offset, start.poison_offset, start.singly_until) == (120, 120, 150), "the others stay suspects"


def test_the_record_in_hand_is_not_blamed_for_what_was_on_its_way(stage: Stage) -> None:
    stage.give(0)
    start = die_with(stage, 100, 110, in_hand=1, times=3)
    assert (start.poison, start.singly_until) == ("", 111)


def test_a_record_in_hand_with_nothing_on_its_way_is_blamed_at_once(stage: Stage) -> None:
    stage.give(0)
    assert die_with(stage, 110, 110, in_hand=700).poison == "2 workers died (SIGKILL) with offset 110 in hand"


def test_records_of_every_partition_share_the_death_and_go_on_alone(stage: Stage) -> None:
    stage.give(0, 1)
    for _ in range(2):
        handle(stage, 0, 100, 101)
        handle(stage, 1, 100, 100, in_hand=1)
        next_life(stage)
    assert [stage.start_of(number).singly_until for number in (0, 1)] == [101, 101]
    assert [stage.start_of(number).poison for number in (0, 1)] == ["", ""]


def test_one_death_in_each_batch_that_moves_on_makes_nobody_wait(stage: Stage) -> None:
    stage.give(0)
    for delivered in (100, 150, 200, 250):
        assert die_with(stage, delivered, delivered + 50, times=1).singly_until == -1


def test_in_transactions_the_brokers_say_where_to_go_on_and_what_is_suspected_stays_so(stage: Stage) -> None:
    stage.assignment.table.workers_commit = True
    stage.give(0)
    for _ in range(2):
        handle(stage, 0, 100, 150)
        stage.die()
        stage.resolve(0)
        stage.revive()
    assert (stage.start_of(0).offset, stage.start_of(0).singly_until) == (100, 150)
    for _ in range(2):
        handle(stage, 0, 120, 121)
        stage.die()
        stage.resolve(0)
        stage.revive()
    start = stage.start_of(0)
    assert (start.offset, start.poison_offset, start.poison_deaths) == (100, 120, 2)


def test_a_dead_letter_that_kills_workers_too_halts_its_partition(stage: Stage) -> None:
    stage.give(0)
    assert die_with(stage, 120, 120, in_hand=1).poison
    handle(stage, 0, 120, 121)
    stage.die()
    assert stage.state(0) is not PartitionState.HALTED
    stage.revive()
    handle(stage, 0, 120, 121)
    stage.die()
    assert stage.state(0) is PartitionState.HALTED


def test_batches_share_their_deaths_among_their_records(stage: Stage) -> None:
    stage = Stage(poison_halts=False, batches=True)
    stage.give(0)
    start = die_with(stage, 100, 150, in_hand=20)
    assert (start.singly_until, start.poison) == (170, "")
