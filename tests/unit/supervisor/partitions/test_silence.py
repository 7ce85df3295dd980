"""A partition that its worker's client has lost is taken from it and given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import InHand, Parked, Pong
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.partitions.lag import INTERVAL
from kunicorn.supervisor.partitions.silence import Silences, watch
from kunicorn.supervisor.workers.process import WorkerProcess
from tests.fakes.stage import PlayedTopics, Stage
from tests.fakes.virtual_loop import virtual_time

P0 = TopicPartition("orders", 0)
MINUTE = 6
"""Looks."""


class Watched:
    """One partition that a worker fetches; its log ends at `end`."""

    def __init__(self, end: int = 200, batch_ms: int = 0, created_anew: bool = False) -> None:
        self.stage = Stage(topics=PlayedTopics(created_anew=lambda _: created_anew))
        self.stage.give(0)
        self.worker = self.stage.workers[0]
        self.end = end
        self.batch_ms = batch_ms
        self.consumed(100)
        self.idle()
        self.silences = Silences()

    @property
    def partition(self) -> Any:
        return self.stage.assignment.table[P0]

    def consumed(self, offset: int, in_hand: int = 0) -> None:
        self.worker.consume(self.stage.start_of(0), offset, in_hand=in_hand)
        self.partition.end_seen(self.end, 0)

    def idle(self, **otherwise: Any) -> None:
        told = {"in_hand": None, "paused_by_lease": False, **otherwise}
        self.worker.pong = Pong(0, 0, 0, rss_bytes=0, logs_dropped=0, **told)

    def looks(self, times: int) -> int:
        """In how many of so many looks the partition was to be fetched anew, or its worker to be replaced."""
        table = self.stage.assignment.table
        found = [self.silences.look(table.values(), lambda _: self.batch_ms, table.created_anew) for _ in range(times)]
        return sum(bool(silent.fetch_anew or silent.lost) for silent in found)


def test_a_partition_of_which_nothing_comes_for_a_minute_is_fetched_anew_where_it_was() -> None:
    watched = Watched()
    assert watched.looks(MINUTE - 1) == 0
    assert watched.looks(1) == 1
    before = watched.stage.start_of(0)
    watched.stage.assignment.distribution.fetch_anew([watched.partition])
    assert watched.worker.asked_to_stop() == [before.grant]
    watched.stage.stopped(before, 100)
    again = watched.stage.start_of(0)
    assert (again.offset, again.leader_epoch) == (100, 3)
    assert again.grant != before.grant


def test_of_a_topic_that_was_created_anew_the_worker_is_replaced_after_two_looks_and_the_next_one_later() -> None:
    watched = Watched(created_anew=True)
    table = watched.stage.assignment.table
    assert watched.looks(1) == 0
    silent = watched.silences.look(table.values(), lambda _: 0, table.created_anew)
    assert (silent.fetch_anew, silent.lost) == ([], [watched.partition]), "a new fetch would not help its client"
    assert [watched.looks(1) for _ in range(6)] == [0, 1, 0, 0, 0, 1]


def test_what_another_member_is_given_meanwhile_is_not_taken_up_again() -> None:
    watched = Watched()
    before = watched.stage.start_of(0)
    watched.stage.assignment.distribution.fetch_anew([watched.partition])
    watched.stage.assignment._stop([watched.partition], 1.0, lost=False, why="revoked")
    watched.stage.stopped(before, 100)
    assert watched.stage.state(0) is PartitionState.RELEASED
    assert watched.stage.start_of(0) == before


def test_one_that_moves_on_is_let_be_and_so_is_one_with_nothing_to_come() -> None:
    watched = Watched()
    for offset in range(100, 130):
        watched.consumed(offset)
        assert watched.looks(1) == 0
    watched.consumed(200)
    assert watched.looks(10 * MINUTE) == 0


def test_one_whose_log_end_nobody_tells_is_let_be() -> None:
    watched = Watched()
    watched.partition.end_seen(None, 0)
    assert watched.looks(10 * MINUTE) == 0


def test_one_that_ends_before_the_log_does_is_let_be_at_its_end() -> None:
    watched = Watched()
    watched.partition.end_at(100)
    assert watched.looks(10 * MINUTE) == 0


@pytest.mark.parametrize(
    "otherwise",
    [
        {"in_hand": InHand("orders", 9, 5, 1, 0.1)},
        {"in_flight": 3},
        {"parked_count": {"retry": 1}},
        {"parked": [Parked(9, "delay", "")], "parked_count": {"delay": 2}},
        {"parked": [Parked(9, "rate_limit", "")], "parked_count": {"rate_limit": 1}},
        {"paused_by_lease": True},
    ],
)
def test_looks_at_a_worker_that_has_something_else_to_do_do_not_count(otherwise: dict[str, Any]) -> None:
    watched = Watched()
    watched.looks(MINUTE - 1)
    watched.idle(**otherwise)
    assert watched.looks(10 * MINUTE) == 0
    watched.idle()
    assert watched.looks(1) == 1


def test_a_record_of_another_partition_that_waits_for_its_time_hides_no_silence() -> None:
    watched = Watched()
    waits = [Parked(watched.partition.grant + 1, "delay", "its time comes in an hour")]
    watched.idle(parked=waits, parked_count={"delay": 1})
    assert watched.looks(MINUTE) == 1


def test_a_partition_whose_own_record_waits_is_not_silent() -> None:
    watched = Watched()
    watched.idle(parked=[Parked(watched.partition.grant, "retry", "")], parked_count={"retry": 1})
    assert watched.looks(10 * MINUTE) == 0


def test_looks_at_a_worker_that_does_not_answer_do_not_count() -> None:
    watched = Watched()
    watched.worker.unanswered = 1
    assert watched.looks(10 * MINUTE) == 0


def test_a_record_in_hand_is_no_silence() -> None:
    watched = Watched()
    watched.consumed(100, in_hand=1)
    assert watched.looks(10 * MINUTE) == 0


def test_records_may_wait_for_a_fuller_batch_for_as_long_as_they_were_told_to() -> None:
    watched = Watched(batch_ms=50_000)
    assert watched.looks(MINUTE + 4) == 0
    assert watched.looks(1) == 1


def test_where_another_client_does_not_help_the_next_try_comes_after_twice_the_time_up_to_a_quarter_of_an_hour() -> (
    None
):
    watched = Watched()
    pauses: list[int] = []
    since = 0
    while len(pauses) < 7:
        since += 1
        if watched.looks(1):
            pauses.append(since)
            since = 0
    assert pauses == [MINUTE, MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE, 15 * MINUTE, 15 * MINUTE]


@virtual_time(sockets=False)
async def test_where_a_new_fetch_does_not_help_the_worker_is_replaced_and_so_its_client() -> None:
    """One that has lost all brokers looks for none any more (confluentinc/librdkafka 5301)."""
    watched = Watched()
    stage: Any = watched.stage
    replaced: list[WorkerProcess] = []

    async def replace(worker: WorkerProcess) -> None:
        replaced.append(worker)

    watching = asyncio.create_task(watch(stage.assignment, stage.in_force, Metrics(), lambda: True, replace))
    await asyncio.sleep((MINUTE + 0.5) * INTERVAL)
    before = watched.stage.start_of(0)
    assert (watched.worker.asked_to_stop(), replaced) == ([before.grant], [])
    watched.stage.stopped(before, 100)
    watched.consumed(100)
    await asyncio.sleep((MINUTE - 1) * INTERVAL)
    assert replaced == []
    await asyncio.sleep(2 * INTERVAL)
    assert [worker.number for worker in replaced] == [0]
    assert watched.worker.asked_to_stop() == [before.grant], "the one that hands over has them stopped"
    watching.cancel()


@virtual_time(sockets=False)
async def test_a_look_in_the_middle_of_a_rebalance_does_not_count_as_fetched_anew() -> None:
    watched = Watched()
    steady, worker = [False] * (MINUTE + 1), watched.worker
    stage: Any = watched.stage
    is_steady = lambda: steady.pop() if steady else True  # noqa: E731
    untouched: Any = None
    watching = asyncio.create_task(watch(stage.assignment, stage.in_force, Metrics(), is_steady, untouched))
    await asyncio.sleep((MINUTE + 1.5) * INTERVAL)
    assert worker.asked_to_stop() == []
    await asyncio.sleep(MINUTE * INTERVAL)
    assert worker.asked_to_stop() != [], "a minute after it, not two"
    watching.cancel()
