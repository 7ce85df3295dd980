"""Records that take their time: they delay nobody else and cost no membership."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.members import MemberProcess
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
PARTITIONS = 4


def partition_numbers(member: MemberProcess, *states: str) -> set[int]:
    """Partitions of the member in these states."""
    return {p["partition"] for p in member.partitions(*states)}


LONG_DRAIN = {"group": {"drain_timeout_ms": 240_000, "max_poll_interval_ms": 300_000}}


def a_slow_record_and_a_second_member(stage: Scene, slow: int, value: str) -> None:
    """One worker has a slow record of partition `slow` in hand when a member joins that is to get half of them.
    `value`: of that record."""
    first = stage.members.start()
    first.wait_running(PARTITIONS)
    for partition in range(PARTITIONS):
        stage.send(partition, "quick")
    stage.send(slow, value, "after it")
    stage.wait_marked(f"{slow}@1 sleeps", first)
    second = stage.members.start()
    second.wait(lambda: second.status().get("group", {}).get("joined"), "the second member to have joined")
    # Two of four are due; with the slow one among them, the other comes at once all the same.
    got = second.wait(lambda: partition_numbers(second, "running") - {slow}, "quick partitions")
    assert not stage.marked(f"{slow}@1 leaves"), "they came only when the slow record was handled"
    for partition in got:
        stage.send(partition, "handled by the second member while the first is busy")
        stage.wait_handled(partition, 1, second)
    assert not stage.marked(f"{slow}@1 leaves"), "they were handled only after the slow record"
    (stage.marks / "open").touch()
    stage.wait_handled(slow, 2, first)
    first.wait(
        lambda: len(partition_numbers(first, "running")) == len(partition_numbers(second, "running")) == 2,
        "each member to have two partitions",
    )
    assert (first.stop(), second.stop()) == (0, 0)
    report = stage.judge()
    assert report.holds, report
    assert not report.repeated


# The coordinator of the consumer protocol gives nothing away before all that it takes is let go of (KIP-848).
@pytest.mark.classic
@pytest.mark.parametrize("slow", [pytest.param(0, marks=pytest.mark.long), PARTITIONS - 1])
def test_a_slow_record_does_not_delay_the_hand_over_of_another_partition_of_its_worker(
    scene: SceneMaker, slow: int
) -> None:
    a_slow_record_and_a_second_member(scene(PARTITIONS, workers=1, settings=LONG_DRAIN), slow, "hold 600 once")


@pytest.mark.classic
@pytest.mark.long
@pytest.mark.parametrize("slow", range(PARTITIONS))
def test_a_record_of_a_minute_does_not_delay_the_hand_over_of_another_partition_of_its_worker(
    scene: SceneMaker, slow: int
) -> None:
    a_slow_record_and_a_second_member(scene(PARTITIONS, workers=1, settings=LONG_DRAIN), slow, "sleep 60 once")


@pytest.mark.parametrize("how", ["sleep", pytest.param("block", marks=pytest.mark.long)])
@pytest.mark.scenario("0089 max_poll_interval")
def test_a_handler_that_takes_two_session_timeouts_causes_no_rebalance(scene: SceneMaker, how: str) -> None:
    """`block` holds the GIL of its worker all the while: heartbeats are the supervisor's (invariant 5)."""
    session = {"session_timeout_ms": 6000, "allow_short_session_timeout": True, "heartbeat_interval_ms": 500}
    stage = scene(2, workers=1, settings={"group": session})
    member = stage.members.start()
    member.wait_running(2)
    generation, rebalances = member.generation(), len(stage.rebalances())
    stage.send(0, f"{how} 12 once")
    stage.wait_handled(0, 0, member)
    stage.send(0, "next")
    stage.wait_handled(0, 1, member)
    assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
    assert member.workers()[0]["restarts"] == 0
    assert member.stop() == 0
    assert stage.judge().holds
