"""One partition that gets as much as all others together, and what a member makes of it."""

from __future__ import annotations

from typing import Any

from kunicorn.commands.demo.judge import Report
from tests.system.members import MemberProcess
from tests.system.producing import produce
from tests.system.scene import Scene

PARTITIONS, WORKERS, HOT = 8, 2, 0
EACH = 2000
"""Of the hot one's, a member that is slow has fourteen seconds of work (1 ms a record in the mean): it cannot catch up
before it is alone."""
SLOW = {"KUNICORN_HANDLER_MS": "2"}
EAGER: dict[str, dict[str, Any]] = {"workers": {"sharing_interval_ms": 300}, "group": {"commit_interval_ms": 100}}


def heat(stage: Scene, each: int) -> None:
    """One partition gets as much as the seven others together."""
    for partition in range(PARTITIONS):
        count = each * (PARTITIONS - 1) if partition == HOT else each
        produce(stage.kafka.bootstrap, stage.topic, count, partition=partition, value=b"x")


def moves(member: MemberProcess, reason: str) -> int:
    """So many partitions went to another worker for that reason, as /metrics says."""
    return int(member.metric("kunicorn_partition_moves_total", reason=reason))


def finished(stage: Scene) -> Report:
    """Another member, which does not take its time, handles what is left; what the judge says then."""
    member = stage.members.start()
    stage.wait_all_committed()
    assert member.stop() == 0
    return stage.judge()
