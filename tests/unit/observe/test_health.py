"""Red only for what a restart cures; everything else has another way to be told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kunicorn.group.states import PartitionState
from kunicorn.observe.health import live, ready
from kunicorn.observe.status import Status
from tests.unit.observe.snapshots import assigned, group, partition, status, worker


def test_a_service_that_works_is_live_and_ready() -> None:
    assert live(status()).ok
    assert ready(status()).ok


def test_a_loop_that_runs_late_is_red() -> None:
    (reason,) = live(status(loop_lag=5.1)).reasons
    assert "event loop ran 5.1 s late" in reason


def test_a_worker_that_does_not_answer_is_red() -> None:
    (reason,) = live(status(workers=(worker(0), worker(1, pong_age=61.0)))).reasons
    assert reason == "worker 1 (pid 1001) has not answered for 61 s"


def test_a_predecessor_that_does_not_answer_is_red_beside_a_successor_that_does() -> None:
    (reason,) = live(status(workers=(worker(0, predecessor=900, predecessor_pong_age=61.0),))).reasons
    assert reason.startswith("worker 0's predecessor (pid 900) has partitions to hand over")
    assert live(status(workers=(worker(0, predecessor=900, predecessor_pong_age=1.0),))).ok


def test_a_runner_that_stands_still_with_nothing_in_hand_is_red() -> None:
    (reason,) = live(status(workers=(worker(runner_age=61.0),))).reasons
    assert "2 partitions and nothing in hand" in reason


@pytest.mark.parametrize(
    "changes",
    [
        {"in_hand": "orders-0@90", "in_hand_age": 3600.0},
        {"partitions": 0},
        {"paused_by_lease": True},
        {"pid": None},
        {"runner_age": None},
    ],
    ids=["busy with a long record", "without partitions", "paused by the lease", "not running", "just started"],
)
def test_a_runner_with_a_reason_to_stand_still_is_not_red(changes: dict[str, Any]) -> None:
    assert live(status(workers=(worker(**{"runner_age": 3600.0, **changes}),))).ok


def test_every_reason_is_told() -> None:
    workers = (worker(0, pong_age=100.0), worker(1, runner_age=100.0))
    assert len(live(status(loop_lag=9.0, workers=workers)).reasons) == 3


@pytest.mark.parametrize("state", list(PartitionState))
def test_no_state_of_a_partition_makes_the_service_red(state: PartitionState) -> None:
    snapshot = status(partitions=(partition(0, state=state.value, reason="for a reason", since=1e6, lag=10**9),))
    assert live(snapshot).ok
    assert ready(snapshot).ok


def test_an_outage_of_the_brokers_is_no_reason_to_restart() -> None:
    silent = group(heartbeat_age=900.0, lease_left=-855.0)
    outage = status(brokers_reached=False, problem="no broker answers", group=silent)
    assert live(outage).ok
    assert ready(outage).reasons == ("no broker answers",)


def test_an_outage_leaves_a_member_ready_as_it_goes_on_by_itself() -> None:
    """Where every pod of every group became unready at once, rollouts would stop, and page people for each."""
    outage = status(outage="no broker answered: one:9092 (node 1): refused", group=group(heartbeat_age=900.0))
    assert live(outage).ok
    assert ready(outage).ok


@pytest.mark.parametrize("state", ["joining", "syncing", "unjoined"])
def test_a_rebalance_is_neither_red_nor_unready(state: str) -> None:
    rebalancing = status(group=group(state=state))
    assert live(rebalancing).ok
    assert ready(rebalancing).ok


def test_a_member_without_partitions_is_ready() -> None:
    assert ready(status(partitions=(), workers=())).ok


def test_a_member_that_never_joined_is_not_ready() -> None:
    (reason,) = ready(status(group=group(joined=False, state="joining"))).reasons
    assert reason == "not yet a stable member of group 'shop': joining"


def test_partitions_assigned_by_name_are_ready_when_all_were_fetched_once() -> None:
    snapshot = assigned()
    assert snapshot.assign is not None
    assert ready(snapshot).ok
    waiting = (partition(0), partition(1, state="resolving"), partition(2, state="halted"))
    (reason,) = ready(replace(snapshot, assign=replace(snapshot.assign, fetched=False), partitions=waiting)).reasons
    assert reason == "not yet fetched: orders-1 (resolving), orders-2 (halted)"


def test_a_service_that_stops_is_live_but_not_ready() -> None:
    stopping = status(stopping=True)
    assert live(stopping).ok
    assert not ready(stopping).ok


def test_a_verdict_never_depends_on_lag() -> None:
    def behind(snapshot: Status) -> Status:
        return replace(snapshot, partitions=tuple(replace(p, lag=10**12, lag_seconds=1e9) for p in snapshot.partitions))

    assert live(behind(status())) == live(status())
    assert ready(behind(status())) == ready(status())


def test_a_member_none_of_whose_workers_has_got_ready_for_a_while_is_not_ready_but_live() -> None:
    hangs = {"state": "starting", "pong_age": None, "runner_age": None}
    both = (worker(0, starting=32.0, **hangs), worker(1, starting=31.0, **hangs))
    (reason,) = ready(status(workers=both)).reasons
    assert reason.startswith("no worker is ready: worker 0 (pid 1000) has been starting for 32 s, worker 1")
    assert live(status(workers=both)).ok, "the supervisor replaces them"


def test_a_member_that_cannot_start_a_worker_is_not_ready() -> None:
    gone = {"pid": None, "pong_age": None, "runner_age": None}
    workers = (worker(0, state="backing-off", **gone), worker(1, state="idle", **gone))
    assert "worker 0 cannot be started" in ready(status(workers=workers)).reasons[0]
    assert ready(status(workers=(worker(0), worker(1, state="backing-off", **gone)))).ok


@pytest.mark.parametrize("other", [{"starting": 4.0, "restarts": 1}, {}])
def test_one_worker_that_takes_long_does_not_make_a_member_unready(other: dict[str, Any]) -> None:
    late = worker(0, starting=32.0)
    assert ready(status(workers=(late, worker(1, **other)))).ok
