"""Records that wait as their handler says: no try counts, all else goes on, whatever happens to the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.system.members import MemberProcess
from tests.system.scene import Scene
from tests.waiting import wait_until

SceneMaker = Callable[..., Scene]
THREADS = {"concurrency": 4}
ONE_TRY: dict[str, Any] = {"max_attempts": 1, "on_failure": "halt"}


def waits(stage: Scene, member: MemberProcess) -> bool:
    return member.metric("kunicorn_partitions_waiting", group=stage.topic, waits_for="wait") == 1


@pytest.mark.parametrize(
    ("handler", "handling"),
    [
        pytest.param("marked:handle", {}, id="one in hand"),
        pytest.param("marked:handle_async", {}, id="tasks"),
        # What a wait does to a record is one function of all ways.
        pytest.param("marked:handle", THREADS, id="threads", marks=pytest.mark.long),
        pytest.param("marked:handle_batch", {"mode": "batch"}, id="batches", marks=pytest.mark.long),
        pytest.param("marked:handle_arrow", {"mode": "arrow"}, id="columns", marks=pytest.mark.long),
    ],
)
def test_a_record_waits_with_its_partition_and_counts_no_try_and_a_stop_does_not_wait(
    scene: SceneMaker, handler: str, handling: dict[str, Any]
) -> None:
    stage: Scene = scene(2, workers=1, handler=handler, settings={"handler": {**ONE_TRY, **handling}})
    member = stage.members.start()
    member.wait_running(2)
    stage.send(0, "fine")
    stage.wait_handled(0, 0, member)
    stage.send(0, "wait 0.1")
    member.wait(lambda: waits(stage, member), "the record to wait")
    stage.send(1, *["flows"] * 200)
    stage.wait_handled(1, 199, member)
    # None at the instants at which the handler has it in hand.
    told = member.wait(
        lambda: next((p["reason"] for p in member.partitions("running") if p["partition"] == 0), None), "a reason"
    )
    assert told.startswith("offset 1 waits until 20")
    assert told.endswith(": the shop is closed")
    member.wait(lambda: len(stage.begun(0, 1)) > 5, "it to come to the handler again and again")
    assert member.series("kunicorn_handler_failures_total", group=stage.topic, topic=stage.topic) == [0.0]
    assert member.stop() == 0
    assert stage.committed() == {0: 1, 1: 200}
    report = stage.judge(except_from=[(0, 1)])
    assert report.holds, report


def test_what_waits_for_an_hour_begins_anew_with_the_partitions_next_owner(scene: SceneMaker) -> None:
    stage: Scene = scene(2, workers=1, settings={"handler": ONE_TRY})
    first = stage.members.start()
    first.wait_running(2)
    for partition in (0, 1):
        stage.send(partition, "fine", "wait 3600", "behind it")
    first.wait(lambda: stage.begun(0, 1) and stage.begun(1, 1), "both partitions to wait")
    second = stage.members.start()
    second.wait(lambda: second.partitions("running"), "the second member to have a partition")
    (moved,) = second.partitions("running")
    at = int(moved["partition"])
    second.wait(lambda: len(stage.begun(at, 1)) == 2, "the record to come to its new owner")
    (stage.marks / "open").touch()
    assert first.stop() == 0
    assert second.stop() == 0
    last = stage.members.start()
    wait_until(lambda: stage.committed() == {0: 3, 1: 3}, "everything to be handled", every=0.2)
    assert last.stop() == 0
    for partition in (0, 1):
        assert stage.handled(partition) == [0, 1, 2], "in order, each once"
    report = stage.judge()
    assert report.holds, report


@pytest.mark.parametrize("handler", ["marked:handle", pytest.param("marked:handle_async", marks=pytest.mark.long)])
def test_a_wait_that_is_longer_than_a_call_may_take_is_no_call_that_takes_too_long(
    scene: SceneMaker, handler: str
) -> None:
    stage: Scene = scene(1, workers=1, handler=handler, settings={"handler": {**ONE_TRY, "handler_timeout_ms": 2000}})
    member = stage.members.start()
    member.wait_running(1)
    stage.send(0, "wait 2.5")
    member.wait(lambda: len(stage.begun(0, 0)) > 2, "it to come again twice")
    (stage.marks / "open").touch()
    stage.wait_all_committed()
    assert member.metric("kunicorn_handler_timeouts_total") == 0
    assert [worker["restarts"] for worker in member.workers()] == [0]
    assert member.stop() == 0
    report = stage.judge()
    assert report.holds, report
