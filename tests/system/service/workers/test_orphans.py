"""What handlers start and leave alone: no zombie stays, neither as an ordinary process nor as PID 1."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.scene import Scene
from tests.waiting import runs, wait_until

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
    member.wait(lambda: not procfs.zombies_of(member.pid), "the orphans of double forks to be reaped")
    (worker,) = [w["pid"] for w in member.workers()]
    # Children that live are their parent's to reap; they are ours as soon as it is dead.
    os.kill(worker, signal.SIGKILL)
    member.wait(lambda: [w for w in member.workers() if w["pid"] != worker], "a successor")
    member.wait(lambda: not [p for p in procfs.in_session(member.pid) if p.state == "Z"], "no zombie at all")
    stage.send(0, "and on")
    stage.wait_handled(0, 20, member)
    assert member.output().count("died: SIGKILL") == 1, "no worker's status was reaped as a stranger's"
    assert member.stop() == 0
    assert stage.judge({worker}).holds


def left_behind(stage: Scene, member: MemberProcess, how: str) -> int:
    """The process that a handler has left behind in that way."""
    stage.send(0, how.rstrip("s"))
    (mark,) = member.wait(lambda: list(stage.marks.glob(f"0@* {how} as *")), f"a child that {how}")
    return int(mark.name.rpartition(" ")[2])


def end_worker(stage: Scene, member: MemberProcess, by: str) -> None:
    """Have the only worker end in that way, and wait for its successor."""
    (worker,) = [w["pid"] for w in member.workers()]
    if by == "recycling":
        stage.send(0, *["and on"] * 20)
    elif by == "os._exit":
        stage.send(0, "die once")
    else:
        os.kill(worker, signal.Signals[by])
    member.wait(lambda: [w for w in member.workers() if w["pid"] not in (None, worker)], "a successor")


# Of a death only the pidfd tells, whatever it was of.
@pytest.mark.parametrize(
    "by",
    ["SIGKILL", *(pytest.param(by, marks=pytest.mark.long) for by in ("SIGSEGV", "SIGABRT", "os._exit")), "recycling"],
)
def test_what_a_handler_started_dies_with_its_worker_however_that_ends(scene: SceneMaker, by: str) -> None:
    recycling = {"max_records": 10} if by == "recycling" else {}
    stage = scene(1, workers=1, settings={"workers": recycling})
    member = stage.members.start()
    member.wait_running(1)
    child = left_behind(stage, member, "lingers")
    assert runs(child)
    end_worker(stage, member, by)
    member.wait(lambda: not runs(child), "the child's end")
    member.wait(lambda: not procfs.zombies_of(member.pid), "its corpse to be reaped")
    assert member.stop() == 0


def test_a_child_in_a_session_of_its_own_outlives_its_worker_and_the_service(scene: SceneMaker) -> None:
    stage = scene(1, workers=1)
    member = stage.members.start()
    member.wait_running(1)
    child = left_behind(stage, member, "escapes")
    try:
        end_worker(stage, member, "SIGKILL")
        escaped = procfs.info(child)
        assert escaped is not None
        assert (escaped.parent, escaped.state != "Z") == (member.pid, True), "adopted, and left alone"
        assert member.stop() == 0
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")
def test_as_pid_1_the_supervisor_reaps_orphans_and_stops_in_order(scene: SceneMaker) -> None:
    stage = scene(2, workers=1)
    member = stage.members.start(within=NEW_PID_NAMESPACE)
    handle_orphans(stage, member)
    assert member.status()["pid"] == 1
    (supervisor,) = procfs.children(member.pid)
    member.wait(lambda: not procfs.zombies_of(supervisor.pid), "the orphans of double forks to be reaped")
    (worker,) = [p for p in procfs.children(supervisor.pid) if p.name == "kunicorn-w0"]
    os.kill(worker.pid, signal.SIGKILL)
    stage.send(0, "and on")
    stage.wait_handled(0, 20, member)
    member.wait(lambda: not [p for p in procfs.descendants(member.pid) if p.state == "Z"], "no zombie at all")
    os.kill(supervisor.pid, signal.SIGTERM)
    assert member.exit_code() == 0
    wait_until(lambda: not procfs.living_in_session(member.pid), "everything to be gone")
    assert stage.committed() == {0: 21, 1: 20}
