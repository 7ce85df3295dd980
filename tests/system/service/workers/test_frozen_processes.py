"""What an operator is shown while a process stands still: lag that grows, partitions that somebody takes up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.scene import Scene

pytestmark = pytest.mark.long

SceneMaker = Callable[..., Scene]


def lag(member: MemberProcess, partition: int) -> float:
    """In records, as `/metrics` has it."""
    (lag,) = member.series("kafka_consumer_records_lag", partition=str(partition)) or [-1.0]
    return lag


def template_of(member: MemberProcess) -> int:
    """Its pid."""
    (template,) = [child.pid for child in procfs.children(member.pid) if child.name == "kunicorn-tmpl"]
    return template


def test_the_lag_of_a_worker_that_is_stopped_goes_on_growing_and_no_probe_turns_red(scene: SceneMaker) -> None:
    """A worker's own idea of the log's end freezes with it; the supervisor asks the brokers."""
    stage = scene(2, workers=2)
    member = stage.members.start()
    member.wait_running(2)
    for partition in range(2):
        stage.send(partition, "handled")
        stage.wait_handled(partition, 0, member)
    (stopped,) = [p["worker"] for p in member.partitions() if p["partition"] == 0]
    (pid,) = [worker["pid"] for worker in member.workers() if worker["worker"] == stopped]
    os.kill(pid, signal.SIGSTOP)
    try:
        for sent in (5, 10):
            stage.send(0, *["waits"] * 5)
            member.wait(lambda sent=sent: lag(member, 0) == sent, f"a lag of {sent}")
        stage.send(1, "handled by the other worker")
        stage.wait_handled(1, 1, member)
        assert member.get("/livez")[0] == member.get("/readyz")[0] == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    member.wait(lambda: lag(member, 0) == 0, "the lag to be worked off")
    assert member.stop() == 0
    report = stage.judge()
    assert report.holds, report


def test_a_template_that_does_not_answer_is_replaced_and_the_partitions_of_a_dead_worker_go_on(
    scene: SceneMaker,
) -> None:
    stage = scene(2, workers=1)
    member = stage.members.start()
    member.wait_running(2)
    template = template_of(member)
    os.kill(template, signal.SIGSTOP)
    (worker,) = [worker["pid"] for worker in member.workers()]
    os.kill(worker, signal.SIGKILL)
    stage.send(0, "handled by a worker of the next template")
    stage.wait_handled(0, 0, member)
    member.wait_said(f"the template (pid {template}) did not fork within 10 s")
    assert template_of(member) != template
    assert member.stop() == 0
    assert stage.judge({worker}).holds
