"""SIGSTOP to the supervisor, as a paused virtual machine or a starved container does it: its workers pause at the lease
(invariant 4), another member takes over, and the frozen one comes back by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from kunicorn.commands.demo.audit import Kind
from kunicorn.ipc import clock
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.system.service.takeover import (
    SESSION,
    begun_between,
    entries_of,
    judge_takeover,
    short_sessions,
    wait_until_ns,
)

WORKERS = 2
SceneMaker = Callable[..., Scene]


def freeze(stage: Scene, session: float, seconds: float) -> None:
    """The whole story of a member that is frozen for so long, and for longer than its session."""
    frozen, heir = stage.members.start(), stage.members.start()
    with Flow(stage.kafka.bootstrap, stage.topic, 300):
        for member in (frozen, heir):
            member.wait_running(3)
        heir.wait(lambda: len(stage.handled(0)) > 100, "some load")
        before, workers = frozen.generation(), [worker["pid"] for worker in frozen.workers()]
        heir.wait(lambda: min(stage.committed().values()) > 0, "commits of every partition")
        committed, stopped = stage.committed(), clock.now_ns()
        os.kill(frozen.pid, signal.SIGSTOP)
        lease = stopped + int(session * clock.NANOSECONDS)
        heir.wait_running(6, within=session + 60)
        wait_until_ns(stopped + int(seconds * clock.NANOSECONDS))
        continued = clock.now_ns()
        os.kill(frozen.pid, signal.SIGCONT)
        frozen.wait(lambda: frozen.generation() > before, "it to have joined again")
        for member in (frozen, heir):
            member.wait_running(3)
        assert [worker["pid"] for worker in frozen.workers()] == workers, "no worker was lost on the way (invariant 6)"
    heir.wait(lambda: all(member.lag() == 0 for member in (frozen, heir)), "everything to be committed")
    assert [member.stop() for member in (frozen, heir)] == [0, 0]

    audit = stage.members.audit
    half = stopped + (lease - stopped) // 2
    assert begun_between(audit, frozen.name, stopped, half) > 0, "within the lease its workers go on"
    slack = max(in_hand_ns(stage, frozen.name), clock.NANOSECONDS)
    assert begun_between(audit, frozen.name, lease + slack, continued) == 0, "then they pause"
    judge_takeover(stage.judge(), audit, frozen.name, committed, overlaps=WORKERS)


def in_hand_ns(stage: Scene, member: str) -> int:
    """How long the slowest of the member's records took: so much, or what a busy machine takes, may pass between a look
    at the lease and a begin."""
    begun: dict[tuple[object, int], int] = {}
    longest = 0
    for tp, entry in entries_of(stage.members.audit, member):
        if entry.kind == Kind.BEGIN:
            begun[tp, entry.offset] = entry.time_ns
        else:
            longest = max(longest, entry.time_ns - begun[tp, entry.offset])
    return longest


@pytest.mark.scenario("0106 do_test_session_timeout")
def test_workers_of_a_frozen_supervisor_pause_at_the_lease_and_it_comes_back_by_itself(scene: SceneMaker) -> None:
    stage = scene(6, workers=WORKERS, settings=short_sessions(), env={"KUNICORN_HANDLER_MS": "6"})
    freeze(stage, SESSION, 1.5 * SESSION)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_supervisor_frozen_for_twenty_seconds_of_slow_records_comes_back_by_itself(
    scene: SceneMaker, strategy: str
) -> None:
    settings = short_sessions(10.0)
    settings["group"]["partition_assignment_strategy"] = [strategy]
    freeze(scene(6, workers=WORKERS, settings=settings, env={"KUNICORN_HANDLER_MS": "30"}), 10.0, 20.0)
