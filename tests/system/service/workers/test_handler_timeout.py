"""Handler calls that never end: the ladder of `handler_timeout_ms` ends them, and the record is blamed, nobody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kunicorn.commands.demo.judge import Audit
from kunicorn.ipc import clock
from tests.kafka import KafkaCluster
from tests.system.members import MemberProcess, Members
from tests.system.producing import end_offsets, held, produce
from tests.system.scene import Scene

SceneMaker = Callable[..., Scene]
TIMEOUT: dict[str, dict[str, Any]] = {"handler": {"handler_timeout_ms": 3000}}


def with_a_record(
    scene: SceneMaker, value: str, handler: str = "marked:handle", settings: dict[str, dict[str, Any]] = TIMEOUT
) -> tuple[Scene, MemberProcess]:
    """Offset 1 of partition 0 takes too long; one worker has both partitions."""
    stage = scene(2, workers=1, handler=handler, settings=settings)
    member = stage.members.start()
    member.wait_running(2)
    stage.send(0, "fine")
    stage.wait_handled(0, 0, member)
    stage.send(0, value, "after it")
    return stage, member


def timeouts(stage: Scene, member: MemberProcess) -> int:
    """How many calls were ended, as /metrics says."""
    return int(member.metric("kunicorn_handler_timeouts_total", group=stage.topic, topic=stage.topic))


def assert_all_is_handled(stage: Scene, member: MemberProcess, killed: int | None = None) -> None:
    """Only the record that took too long was begun twice."""
    stage.wait_handled(0, 2, member)
    assert timeouts(stage, member) == 1
    member.wait_said(f"has had {stage.topic}-0@1 in hand for ")
    assert member.stop() == 0
    assert stage.committed()[0] == 3
    assert len(stage.begun(0, 1)) == 2
    report = stage.judge({killed} if killed is not None else set())
    assert report.holds, report


@pytest.mark.parametrize("handler", ["marked:handle", pytest.param("marked:handle_async", marks=pytest.mark.long)])
def test_a_handler_that_waits_for_too_long_is_interrupted_and_asked_again(scene: SceneMaker, handler: str) -> None:
    stage, member = with_a_record(scene, "sleep 600 once", handler)
    stage.wait_marked("0@1 leaves", member)
    assert member.workers()[0]["restarts"] == 0, "the worker lives on"
    assert_all_is_handled(stage, member)


def test_a_record_that_takes_too_long_on_every_try_halts_its_partition_alone(scene: SceneMaker) -> None:
    stage, member = with_a_record(scene, "sleep 600")
    (partition,) = member.wait(lambda: member.partitions("halted"), "a halted partition")
    assert "TimeoutError: in hand for longer than handler_timeout_ms" in partition["reason"]
    assert len(stage.begun(0, 1)) == timeouts(stage, member) == 3
    stage.send(1, "still handled")
    stage.wait_handled(1, 0, member)
    assert member.get("/livez")[0] == 200
    assert member.workers()[0]["restarts"] == 0
    assert member.stop() == 0


@pytest.mark.parametrize("how", [pytest.param("cling", marks=pytest.mark.long), "block"])
def test_a_handler_that_cannot_be_interrupted_is_aborted_with_its_stacks_and_its_record_handled_by_the_next_worker(
    scene: SceneMaker, how: str
) -> None:
    """`block` is in C code and holds the GIL: nothing of Python runs in that worker any more."""
    stage, member = with_a_record(scene, f"{how} 600 once")
    (worker,) = [worker["pid"] for worker in member.workers()]
    member.wait(lambda: [worker["restarts"] for worker in member.workers()] == [1], "the worker to be replaced")
    assert "SIGABRT: has had " in str(member.workers()[0]["last_exit"])
    stacks = member.stacks()
    assert "Fatal Python error: " in stacks
    assert f"in _{how}" in stacks
    assert_all_is_handled(stage, member, worker)


@pytest.mark.long
def test_a_stopped_worker_is_killed_when_its_record_is_overdue(scene: SceneMaker) -> None:
    stage, member = with_a_record(scene, "sleep 600 once", settings={"handler": {"handler_timeout_ms": 3000}})
    stage.wait_marked("0@1 sleeps", member)
    (worker,) = [worker["pid"] for worker in member.workers()]
    os.kill(worker, signal.SIGSTOP)
    member.wait(lambda: [worker["restarts"] for worker in member.workers()] == [1], "the worker to be replaced")
    assert "SIGKILL: has had " in str(member.workers()[0]["last_exit"])
    assert_all_is_handled(stage, member, worker)


@pytest.mark.long
def test_the_second_worker_that_has_to_be_killed_for_the_same_record_halts_that_partition_alone(
    scene: SceneMaker,
) -> None:
    stage, member = with_a_record(scene, "cling 600")
    (partition,) = member.wait(lambda: member.partitions("halted"), "a halted partition")
    assert partition["reason"] == "2 workers died (SIGABRT) with offset 1 in hand"
    stage.send(1, "still handled")
    stage.wait_handled(1, 0, member)
    assert member.stop() == 0


@pytest.mark.long
def test_many_records_that_are_fast_enough_each_are_not_overdue_together(scene: SceneMaker) -> None:
    stage = scene(1, workers=1, settings=TIMEOUT)
    stage.send(0, *["quick"] * 300, *["sleep 0.5"] * 12)
    member = stage.members.start()
    stage.wait_handled(0, 311, member)
    assert timeouts(stage, member) == 0
    assert member.stop() == 0


@pytest.mark.long
def test_a_worker_that_is_stopped_for_long_is_replaced_before_the_probe_turns_red(scene: SceneMaker) -> None:
    stage, member = with_a_record(scene, "sleep 600 once", settings={})
    stage.wait_marked("0@1 sleeps", member)
    (worker,) = [worker["pid"] for worker in member.workers()]
    os.kill(worker, signal.SIGSTOP)
    member.wait(
        lambda: member.get("/livez")[0] == 200 and [w["restarts"] for w in member.workers()] == [1],
        "the worker to be replaced",
    )
    assert f"has not answered for 45 s with {stage.topic}-0@1 in hand" in member.output()
    stage.wait_handled(0, 2, member)
    assert member.stop() == 0


def test_a_record_that_is_timed_out_beside_another_handlers_long_call_costs_no_worker(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], tmp_path: Path
) -> None:
    late, long = f"{topic}.late", f"{topic}.long"
    tables = "".join(
        f'[[handlers]]\ntopics = ["{name}"]\nentrypoint = "tests.system.handlers.marked:{handler}"\n{more}'
        for name, handler, more in (
            (late, "handle_async", "handler_timeout_ms = 2000\n"),
            (long, "handle_batch", 'mode = "batch"\n'),
        )
    )
    for name in (late, long):
        kafka.create_topic(name, 1)
    produce(kafka.bootstrap, late, 1, partition=0, value=b"sleep 600 once")
    members = members_of(
        kafka.bootstrap,
        topic,
        workers=1,
        entrypoint="tests.system.handlers.marked:handle_async",
        settings={"group": {"topics": [late, long]}, "handler": {"handler_timeout_ms": 2000}},
        env={"MARKS_DIRECTORY": str(tmp_path)},
    )
    member = members.start(more=tables)
    # The long call would keep a record that comes behind it from being begun at all.
    member.wait((tmp_path / "0@0 sleeps").exists, "the record to be in hand")
    produce(kafka.bootstrap, long, 1, partition=0, value=b"hold 600")
    member.wait_said(f"has had {late}-0@0 in hand for ")
    # A second after that its worker would be aborted, were the record still taken to be in hand.
    due = clock.now() + 2
    member.wait(lambda: clock.now() > due, "the ladder's next rung to be due")
    (tmp_path / "open").touch()
    produced = held(end_offsets(kafka.bootstrap, late, 1) | end_offsets(kafka.bootstrap, long, 1))
    member.wait(lambda: not Audit(members.audit).check(produced).lost, "both to be handled")
    assert member.workers()[0]["restarts"] == 0
    assert member.stop() == 0
