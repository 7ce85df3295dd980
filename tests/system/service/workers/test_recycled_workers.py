"""Workers that are replaced in order: no rebalance, no record twice, none lost (invariant 6)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kunicorn.ipc import clock
from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.waiting import PATIENCE

SceneMaker = Callable[..., Scene]
PARTITIONS, WORKERS, RATE = 8, 2, 500
SOON = 40.0
"""Seconds: a busy machine's pause may be long; a session, or a worker's start limit, is longer."""


def recycled(member: MemberProcess, reason: str) -> int:
    """How many workers were replaced for that reason, as /metrics says."""
    return int(member.metric("kunicorn_worker_recycles_total", reason=reason))


def longest_pause(stage: Scene) -> float:
    """Seconds between two records of one partition that were handled, the longest; meaningful under a steady load."""
    times = [sorted(e.time_ns for e in stage.ended(number)) for number in range(stage.partitions)]
    gaps = [after - before for one in times for before, after in pairwise(one)]
    return max(gaps) / clock.NANOSECONDS


def recycle_under_load(stage: Scene, reason: str, times: int, within: float = PATIENCE) -> MemberProcess:
    """Have workers replaced so many times while records come in; then stop and judge."""
    member = stage.members.start()
    member.wait_running(PARTITIONS)
    generation, rebalances = member.generation(), len(stage.rebalances())
    with Flow(stage.kafka.bootstrap, stage.topic, RATE):
        member.wait(lambda: recycled(member, reason) >= times, f"{times} workers recycled by {reason}", within)
    stage.wait_all_committed()
    assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
    # A template, the workers, and for a moment the successor of one.
    assert len(procfs.children(member.pid)) <= 1 + WORKERS + 2
    status = member.status()
    assert [worker["restarts"] for worker in status["workers"]] == [0] * WORKERS, "leaving in order is no death"
    assert any((worker["last_exit"] or "").startswith("recycled: ") for worker in status["workers"])
    assert member.stop() == 0
    report = stage.judge()
    assert report.holds, report
    assert not report.repeated, report
    return member


def test_workers_that_have_handled_max_records_are_replaced_without_a_rebalance_or_a_record_twice(
    scene: SceneMaker,
) -> None:
    stage = scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings={"workers": {"max_records": 500}})
    member = recycle_under_load(stage, "records", 6)
    assert "records (max_records = 500)" in member.output()
    assert longest_pause(stage) < SOON


@pytest.mark.long
def test_workers_of_max_age_are_replaced_one_at_a_time(scene: SceneMaker) -> None:
    stage = scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings={"workers": {"max_age_s": 2}})
    member = recycle_under_load(stage, "age", 4)
    handing_over = 0
    for line in member.output().splitlines():
        handing_over += ("hands over to its successor" in line) - ("has left, recycled" in line)
        assert handing_over <= 1, line


@pytest.mark.long
def test_workers_whose_memory_grows_above_max_rss_are_replaced(scene: SceneMaker) -> None:
    workers: dict[str, Any] = {"max_rss_mb": 150, "memory_per_worker_mb": 64}
    stage = scene(PARTITIONS, workers=WORKERS, handler="leaking:handle", settings={"workers": workers})
    recycle_under_load(stage, "rss", 3)


def test_a_worker_with_a_slow_record_hands_over_the_other_partitions_at_once(scene: SceneMaker) -> None:
    stage = scene(2, workers=1, settings={"workers": {"max_records": 1}})
    # Together, as the worker is to have the second one in hand when it is seen that it has handled the first.
    stage.send(0, "quick", "hold 600", "after it")
    member = stage.members.start()
    stage.wait_marked("0@1 sleeps", member)
    stage.send(1, "handled by the successor")
    stage.wait_handled(1, 0, member)
    assert not stage.marked("0@1 leaves"), "the other partition was handed over only behind the slow record"
    (stage.marks / "open").touch()
    stage.wait_handled(0, 2, member)
    member.wait(lambda: recycled(member, "records") >= 1, "the worker to be replaced")
    assert member.stop() == 0
    report = stage.judge()
    assert report.holds, report
    assert not report.repeated, report


def test_a_successor_that_cannot_serve_leaves_the_worker_at_work(scene: SceneMaker) -> None:
    stage = scene(2, workers=1, handler="fragile:handle", settings={"workers": {"max_records": 3}})
    member = stage.members.start()
    member.wait_running(2)
    before = [worker["pid"] for worker in member.workers()]
    (stage.marks / "refuse setup").touch()
    stage.send(0, *["record"] * 5)
    member.wait(lambda: "goes on although it was to be recycled" in member.output(), "the refusal to be told")
    stage.send(1, "still handled")
    stage.wait_handled(1, 0, member)
    assert [worker["pid"] for worker in member.workers()] == before
    assert member.stop() == 0
    assert stage.judge().holds
