"""SIGKILL to the supervisor: no orphan handles on beside the new owner (invariant 4), nothing is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from kunicorn.ipc import clock
from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.system.service.takeover import SESSION, begun_between, judge_takeover, short_sessions
from tests.waiting import wait_until

SceneMaker = Callable[..., Scene]


def wait_gone(member: MemberProcess) -> None:
    """Until nothing of what the member started lives any more."""
    wait_until(lambda: not procfs.living_in_session(member.pid), "the end of all the member's processes")


@pytest.mark.scenario("test_consumer_failure")
def test_a_killed_supervisor_takes_its_workers_along_and_the_group_loses_nothing(scene: SceneMaker) -> None:
    stage = scene(6, settings=short_sessions(), env={"KUNICORN_HANDLER_MS": "4"})
    victim, heir = stage.members.start(), stage.members.start()
    with Flow(stage.kafka.bootstrap, stage.topic, 500):
        for member in (victim, heir):
            member.wait_running(3)
        heir.wait(lambda: len(stage.handled(0)) > 200, "some load")
        assert len(procfs.living_in_session(victim.pid)) == 4, "supervisor, template, two workers"
        workers = {worker["pid"] for worker in victim.workers()}
        heir.wait(lambda: min(stage.committed().values()) > 0, "commits of every partition")
        committed = stage.committed()
        victim.kill()
        wait_gone(victim)
        heir.wait_running(6, within=SESSION + 60)
    heir.wait(lambda: heir.lag() == 0, "everything to be committed")
    assert heir.stop() == 0
    report = stage.judge(workers)
    judge_takeover(report, stage.members.audit, victim.name, committed)


# It is the kernel that kills it, whatever it does.
@pytest.mark.parametrize("behaviour", ["block", pytest.param("backtrack", marks=pytest.mark.long)])
def test_a_worker_that_holds_the_gil_dies_with_its_supervisor_all_the_same(scene: SceneMaker, behaviour: str) -> None:
    stage = scene(1, workers=1, handler="stuck:handle")
    stage.send(0, behaviour, *["next"] * 20)
    member = stage.members.start()
    member.wait(lambda: stage.begun(0, 0), "the record to be in hand")
    assert len(procfs.living_in_session(member.pid)) == 3, "supervisor, template, worker"
    at = clock.now_ns()
    member.kill()
    wait_gone(member)
    assert begun_between(stage.members.audit, member.name, at, clock.now_ns()) == 0, "no further record is started"


@pytest.mark.long
@pytest.mark.parametrize("handler", ["audited:handle", pytest.param("threaded:handle", marks=pytest.mark.long)])
def test_a_supervisor_killed_while_it_starts_leaves_no_process(scene: SceneMaker, handler: str) -> None:
    kill_starting(scene(8, handler=handler, workers=4), 4)


@pytest.mark.long
@pytest.mark.parametrize("handler", ["audited:handle", "slow_import:handle", "threaded:handle"])
def test_supervisors_killed_at_forty_instants_of_their_start_leave_no_process(scene: SceneMaker, handler: str) -> None:
    kill_starting(scene(8, handler=handler, workers=4), 40)


def kill_starting(stage: Scene, times: int) -> None:
    """Kill members between their template's first breath and their workers' first records."""
    rng, never = random.Random(10), threading.Event()
    for _ in range(times):
        member = stage.members.start()
        member.wait(lambda member=member: len(procfs.living_in_session(member.pid)) > 1, "a template")
        if rng.random() < 0.7:
            member.wait(lambda member=member: "template ready" in member.output(), "a template to fork from")
        never.wait(rng.uniform(0, 0.3))
        member.kill()
        wait_gone(member)
