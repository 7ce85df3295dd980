"""Circuit breakers of real members: nothing is lost, given up or handled out of order, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.system.members import MemberProcess
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
BREAKER = {"exceptions": ["builtins.ConnectionError"], "min_calls": 2, "open_ms": 500}
HANDLER = {"max_attempts": 100, "on_failure": "dead_letter", "circuit_breaker": BREAKER}
HELD = ["fine", "refuse", *["behind it"] * 20]


def open_circuit(stage: Scene, member: MemberProcess) -> None:
    """Until the member's breaker is open."""
    of = {"group": stage.topic, "topic": stage.topic}
    member.wait(lambda: member.metric("kunicorn_circuit_breaker_open", **of) > 0, "an open breaker")


def closed(member: MemberProcess) -> bool:
    return "is closed again" in member.output()


def made(scene: SceneMaker, handling: dict[str, Any] | None = None, handler: str = "marked:handle") -> Scene:
    stage: Scene = scene(2, workers=1, handler=handler, settings={"handler": {**HANDLER, **(handling or {})}})
    stage.kafka.create_topic(f"{stage.topic}.dead-letters", 1)
    return stage


def assert_all_handled_in_order(stage: Scene) -> None:
    stage.wait_all_committed()
    for partition in (0, 1):
        assert stage.handled(partition) == list(range(len(HELD))), "in order, each once"
    report = stage.judge()
    assert report.holds, report


@pytest.mark.parametrize(
    ("handler", "handling"),
    [
        pytest.param("marked:handle", {}, id="one in hand"),
        pytest.param("marked:handle", {"concurrency": 4}, id="threads"),
        # What is between a record and its call knows no way of calling.
        pytest.param("marked:handle_async", {}, id="tasks", marks=pytest.mark.long),
        pytest.param("marked:handle_batch", {"mode": "batch"}, id="batches", marks=pytest.mark.long),
        pytest.param("marked:handle_arrow", {"mode": "arrow"}, id="columns", marks=pytest.mark.long),
    ],
)
def test_while_it_is_open_single_records_probe_and_a_stop_does_not_wait(
    scene: SceneMaker, handler: str, handling: dict[str, Any]
) -> None:
    stage = made(scene, handling, handler)
    member = stage.members.start()
    member.wait_running(2)
    for partition in (0, 1):
        stage.send(partition, *HELD)
    open_circuit(stage, member)
    probed = len(stage.begun(0, 1)) + len(stage.begun(1, 1))
    member.wait(lambda: len(stage.begun(0, 1)) + len(stage.begun(1, 1)) > probed + 3, "probes")
    member.wait(lambda: any("circuit breaker" in (p["reason"] or "") for p in member.partitions("running")), "a reason")
    if not handling.get("mode"):
        assert not any(stage.begun(partition, offset) for partition in (0, 1) for offset in range(3, len(HELD)))
    assert member.stop() == 0
    assert "the circuit breaker of" in member.output()
    (stage.marks / "open").touch()
    last = stage.members.start()
    assert_all_handled_in_order(stage)
    assert last.stop() == 0


def test_a_rebalance_while_it_is_open_moves_what_waits_and_each_owner_has_its_own(scene: SceneMaker) -> None:
    stage = made(scene)
    first = stage.members.start()
    first.wait_running(2)
    for partition in (0, 1):
        stage.send(partition, *HELD)
    open_circuit(stage, first)
    second = stage.members.start()
    second.wait(lambda: second.partitions("running"), "the second member to have a partition")
    open_circuit(stage, second)
    (stage.marks / "open").touch()
    assert_all_handled_in_order(stage)
    for member in (first, second):
        member.wait(partial(closed, member), "it to close")
        assert member.stop() == 0
    for partition in (0, 1):
        begun = stage.begun(partition, 1)
        assert sum(later - earlier < 400_000_000 for earlier, later in pairwise(begun)) <= 4, "probes, not calls"
