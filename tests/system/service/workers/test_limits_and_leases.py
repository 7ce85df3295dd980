"""Records that wait, for their handler, its circuit breaker or its rate limit, while their member loses its session: it
calls nothing beyond its lease, and whoever has the partitions then goes by the same limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kunicorn.ipc import clock
from tests.system.members import MemberProcess, merged
from tests.system.scene import Scene
from tests.system.service.takeover import SESSION, begun_between, judge_takeover, short_sessions, wait_until_ns

SceneMaker = Callable[..., Scene]
BREAKER = {"exceptions": ["builtins.ConnectionError"], "min_calls": 2, "open_ms": 500}


class Limit(NamedTuple):
    """What has records wait."""

    waits_for: str
    handler: dict[str, Any]
    values: list[str]


LIMITS = (
    Limit("wait", {}, ["fine", "wait 0.2", "behind it"]),
    Limit("circuit_breaker", {"circuit_breaker": BREAKER}, ["fine", "refuse", "refuse", "behind it"]),
    Limit("rate_limit", {"rate_limit": {"per_second": 4, "burst": 1, "members": 1}}, ["fine"] * 60),
)


def waits(stage: Scene, member: MemberProcess, waits_for: str) -> bool:
    return member.metric("kunicorn_partitions_waiting", group=stage.topic, waits_for=waits_for) > 0


# The lease is looked at before any limit.
@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(each, id=each.waits_for, marks=() if each.waits_for == "circuit_breaker" else pytest.mark.long)
        for each in LIMITS
    ],
)
def test_what_waits_is_called_by_nobody_beyond_the_lease_and_goes_on_with_its_next_owner(
    scene: SceneMaker, limit: Limit
) -> None:
    handler = {"max_attempts": 100, "on_failure": "halt", **limit.handler}
    stage: Scene = scene(2, workers=1, settings=merged(short_sessions(), {"handler": handler}))
    frozen = stage.members.start()
    frozen.wait_running(2)
    for partition in (0, 1):
        stage.send(partition, *limit.values)
    frozen.wait(lambda: waits(stage, frozen, limit.waits_for), "records to wait")
    committed, stopped = stage.committed(), clock.now_ns()
    os.kill(frozen.pid, signal.SIGSTOP)
    lease = stopped + int(SESSION * clock.NANOSECONDS)
    heir = stage.members.start()
    heir.wait(lambda: len(heir.partitions("running")) == 2, "it to have both partitions", SESSION + 90)
    heir.wait(lambda: waits(stage, heir, limit.waits_for), "records to wait there, too")
    wait_until_ns(lease + int(SESSION * clock.NANOSECONDS))
    continued, audit = clock.now_ns(), stage.members.audit
    assert begun_between(audit, frozen.name, stopped, lease) > 0, "within the lease its worker goes on"
    # Between its last look at the lease and a call that is noted a busy machine may stand still.
    assert begun_between(audit, frozen.name, lease + 4 * clock.NANOSECONDS, continued) == 0, "then it calls nothing"
    (stage.marks / "open").touch()
    os.kill(frozen.pid, signal.SIGCONT)
    stage.wait_all_committed()
    assert [member.stop() for member in (frozen, heir)] == [0, 0]
    judge_takeover(stage.judge(), audit, frozen.name, committed)
    for partition in (0, 1):
        assert set(stage.handled(partition)) == set(range(len(limit.values)))
