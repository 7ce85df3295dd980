"""What handlers start and leave alone: no zombie stays, neither as an ordinary process nor as PID 1."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.system.members import MemberProcess
from tests.system.workers import procfs
from tests.system.workers.scene import Scene
from tests.waiting import wait_until

SceneMaker = Callable[..., Scene]
NEW_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


def handle_orphans(stage: Scene, member: MemberProcess) -> None:
    """Twenty double forks and twenty children that nobody waits for, then a worker dies with children of its own."""
    member.wait_running(2)
    for _ in range(20):
        stage.send(0, "orphan 0.1")
        stage.send(1, "spawn")
    stage.wait_handled(0, 19, member)
    stage.wait_handled(1, 19, member)


def test_children_that_a_handler_leaves_behind_do_not_stay_zombies(scene: SceneMaker) -> None:
    stage = scene(2, workers=1)
    member = stage.members.start()
    handle_orphans(stage, member)
    member.wait(lambda: not procfs.zombies_of(member.pid), "the orphans of double forks to be reaped", 5)
    (worker,) = [w["pid"] for w in member.workers()]
    # Children that live are their parent's to reap; they are ours as soon as it is dead.
    os.kill(worker, signal.SIGKILL)
    member.wait(lambda: [w for w in member.workers() if w["pid"] != worker], "a successor", 10)
    member.wait(lambda: not [p for p in procfs.in_session(member.pid) if p.state == "Z"], "no zombie at all", 5)
    stage.send(0, "and on")
    stage.wait_handled(0, 20, member)
    assert member.output().count("died: SIGKILL") == 1, "no worker's status was reaped as a stranger's"
    assert member.stop() == 0
    assert stage.judge({worker}).holds


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")
def test_as_pid_1_the_supervisor_reaps_orphans_and_stops_in_order(scene: SceneMaker) -> None:
    stage = scene(2, workers=1)
    member = stage.members.start(within=NEW_PID_NAMESPACE)
    handle_orphans(stage, member)
    assert member.status()["pid"] == 1
    (supervisor,) = procfs.children(member.pid)
    member.wait(lambda: not procfs.zombies_of(supervisor.pid), "the orphans of double forks to be reaped", 5)
    (worker,) = [p for p in procfs.children(supervisor.pid) if p.name == "kunicorn-w0"]
    os.kill(worker.pid, signal.SIGKILL)
    stage.send(0, "and on")
    stage.wait_handled(0, 20, member)
    member.wait(lambda: not [p for p in procfs.descendants(member.pid) if p.state == "Z"], "no zombie at all", 5)
    os.kill(supervisor.pid, signal.SIGTERM)
    assert member.exit_code() == 0
    wait_until(lambda: not procfs.living_in_session(member.pid), "everything to be gone", 2)
    assert stage.committed() == {0: 21, 1: 20}
