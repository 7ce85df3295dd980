"""Stopping when something does not let itself be stopped: the ladder, the second signal."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from kunicorn.errors import ExitCode
from kunicorn.ipc import clock
from tests.system import procfs
from tests.system.members import MemberProcess
from tests.system.scene import Scene
from tests.waiting import wait_until

SceneMaker = Callable[..., Scene]
DRAIN_SECONDS = 1.5


def hanging(scene: SceneMaker, behaviour: str, drain_seconds: float = 200.0) -> tuple[Scene, MemberProcess]:
    """A member with two records handled and the third, that hangs, in hand; the other partition is idle."""
    settings = {"group": {"drain_timeout_ms": int(drain_seconds * 1000), "commit_interval_ms": 60_000}}
    stage = scene(2, handler="stuck:handle", settings=settings)
    stage.send(0, "x", "x", behaviour, "x")
    member = stage.members.start()
    member.wait_running(2)
    member.wait(lambda: stage.begun(0, 2), "the record to be in hand")
    return stage, member


# At once is SIGKILL, whatever is in hand.
@pytest.mark.parametrize(
    "behaviour", [*(pytest.param(each, marks=pytest.mark.long) for each in ("hang", "cling")), "block"]
)
def test_a_second_signal_stops_at_once_and_says_that_not_all_is_committed(scene: SceneMaker, behaviour: str) -> None:
    _, member = hanging(scene, behaviour)
    member.process.send_signal(signal.SIGTERM)
    member.wait(lambda: member.status().get("stopping"), "the first signal to be taken")
    assert member.get("/readyz")[0] == 503
    assert member.stop() == ExitCode.NOT_ALL_COMMITTED, "at once, not when the time for draining is over"
    assert "SIGTERM again: stopping at once" in member.output()
    wait_until(lambda: not procfs.living_in_session(member.pid), "what it killed to be gone")


LADDER = {
    "hang": ["interrupting its handler"],
    "cling": ["interrupting its handler", "aborting it"],
    "block": ["interrupting its handler", "aborting it"],
}


@pytest.mark.parametrize("behaviour", ["hang", "cling", pytest.param("block", marks=pytest.mark.long)])
@pytest.mark.scenario("0113 t_max_poll_interval_exceeded")
def test_a_record_that_outlasts_the_drain_budget_meets_the_ladder_and_is_left_to_the_next_owner(
    scene: SceneMaker, behaviour: str
) -> None:
    stage, member = hanging(scene, behaviour, DRAIN_SECONDS)
    began = clock.now()
    assert member.stop() == ExitCode.CLEAN, "all that was handled is committed (invariant 8)"
    assert clock.now() - began > DRAIN_SECONDS
    said = f"still had {stage.topic}-0 in hand when the drain budget was over"
    for rung in LADDER[behaviour]:
        assert f"{said}: {rung}" in member.output()
    if "killing it" not in member.output():  # Killed while it says them, it may not have come to it.
        assert ("Current thread" in member.stacks()) == ("aborting it" in member.output()), "all stacks, before it dies"
    assert stage.committed()[0] == 2, "invariant 1: the record that hung is not passed"
    wait_until(lambda: not procfs.living_in_session(member.pid), "what it killed to be gone")
    audited = {"handler": {"entrypoint": "tests.system.handlers.audited:handle"}}
    heir = stage.members.start(settings=audited)
    stage.wait_handled(0, 3, heir)
    assert heir.stop() == ExitCode.CLEAN
    assert stage.judge().holds
