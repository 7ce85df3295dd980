"""Handlers that do not finish within the drain budget when their partition is revoked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from kunicorn.commands.demo.judge import RecordAt
from tests.system.members import MemberProcess
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
# Eager: a member that joins takes everything away from everybody.
SETTINGS = {
    "group": {"partition_assignment_strategy": ["range"], "drain_timeout_ms": 1500, "commit_interval_ms": 60_000},
}


def overrun(stage: Scene, how: str) -> tuple[MemberProcess, MemberProcess, int]:
    """Partition 0 has handled one record and has the next in hand for a minute when a member joins. Returns both
    members, once both have a partition, and the pid of the worker that had the record in hand."""
    first = stage.members.start()
    first.wait_running(2)
    for partition in range(2):
        stage.send(partition, "committed by the revoke and by nothing else")
    stage.wait_handled(1, 0, first)
    stage.send(0, f"{how} 60 once", "after it")
    stage.wait_marked("0@1 sleeps", first)
    (worker,) = {w["pid"] for w in first.workers() if w["partitions"]}
    second = stage.members.start()
    second.wait_running(1)
    first.wait_running(1)
    return first, second, worker


def judge_overrun(stage: Scene, first: MemberProcess, second: MemberProcess, killed: set[int]) -> None:
    """The record in hand is repeated, by whoever has the partition now, and nothing else is."""
    stage.wait_handled(0, 2, second)
    assert (first.stop(), second.stop()) == (0, 0)
    assert stage.committed() == {0: 3, 1: 1}
    report = stage.judge(killed)
    assert report.holds, report
    assert report.repeated == (RecordAt(stage.topic, 0, 1),), report


@pytest.mark.classic
@pytest.mark.parametrize("handler", ["marked:handle", pytest.param("marked:handle_async", marks=pytest.mark.long)])
@pytest.mark.scenario("0113 t_max_poll_interval_exceeded", "PlaintextConsumerPollTest")
def test_a_handler_beyond_the_drain_budget_is_interrupted_and_its_finally_blocks_run(
    scene: SceneMaker, handler: str
) -> None:
    stage = scene(2, workers=1, handler=handler, settings=SETTINGS)
    first, second, worker = overrun(stage, "sleep")
    stage.wait_marked("0@1 leaves", first)
    assert [w["pid"] for w in first.workers()] == [worker], "the worker goes on"
    first.wait_said("interrupting its handler")
    judge_overrun(stage, first, second, set())


@pytest.mark.classic
@pytest.mark.parametrize("how", [pytest.param("cling", marks=pytest.mark.long), "block"])
def test_a_handler_that_cannot_be_interrupted_loses_its_worker_and_not_its_committed_work(
    scene: SceneMaker, how: str
) -> None:
    stage = scene(2, workers=1, settings=SETTINGS)
    first, second, worker = overrun(stage, how)
    (successor,) = [w["pid"] for w in first.workers()]
    assert successor != worker
    assert stage.marked("0@1 clings") == (how == "cling")
    first.wait_said("aborting it, its stacks follow on stderr")
    assert f"in _{how}" in first.stacks(), "the stack of the handler that had to be aborted"
    assert "had " in str(first.workers()[0]["last_exit"]), "why it was ended stays visible"
    judge_overrun(stage, first, second, {worker})


def drained_for_another(stage: Scene, how: str) -> tuple[MemberProcess, MemberProcess, int, int]:
    """Both partitions have a record in hand, each in a worker of its own, when a member joins with the consumer
    protocol, whose coordinator takes one of them away. Returns both members, that partition and its worker's pid."""
    first = stage.members.start()
    first.wait_running(2)
    for partition in range(2):
        stage.send(partition, "handled", f"{how} 30 once", "after it")
        stage.wait_marked(f"{partition}@1 sleeps", first)
    second = stage.members.start()
    (leaving,) = first.wait(lambda: first.partitions("stopping"), "the drain")
    (worker,) = [w["pid"] for w in first.workers() if w["worker"] == leaving["worker"]]
    return first, second, leaving["partition"], worker


def judge_drained(stage: Scene, first: MemberProcess, second: MemberProcess, moved: int, killed: set[int]) -> None:
    """The record that the moved partition had in hand is repeated; the other partition was left in peace."""
    stage.wait_handled(moved, 2, second)
    stage.wait_handled(1 - moved, 2, first)
    assert (first.stop(), second.stop()) == (0, 0)
    assert stage.committed() == {0: 3, 1: 3}
    report = stage.judge(killed)
    assert report.holds, report
    assert report.repeated == (RecordAt(stage.topic, moved, 1),), report


CONSUMER = {"group": {"group_protocol": "consumer", "drain_timeout_ms": 6000, "commit_interval_ms": 60_000}}


@pytest.mark.long
@pytest.mark.consumer
@pytest.mark.parametrize("how", ["sleep", pytest.param("block", marks=pytest.mark.long)])
def test_with_the_consumer_protocol_only_the_partition_that_leaves_is_interrupted(scene: SceneMaker, how: str) -> None:
    stage = scene(2, workers=2, settings=CONSUMER)
    first, second, moved, worker = drained_for_another(stage, how)
    second.wait_running(1)
    judge_drained(stage, first, second, moved, {worker} if how == "block" else set())


@pytest.mark.long
@pytest.mark.consumer
def test_with_the_consumer_protocol_a_worker_killed_while_it_drains_repeats_its_record_in_hand_and_no_other(
    scene: SceneMaker,
) -> None:
    stage = scene(2, workers=2, settings=CONSUMER)
    first, second, moved, worker = drained_for_another(stage, "sleep")
    os.kill(worker, signal.SIGKILL)
    second.wait_running(1)
    judge_drained(stage, first, second, moved, {worker})
