"""Partitions that go from a busy worker to an idle one: the group sees nothing, and no record is handled twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.system.members import MemberProcess
from tests.system.producing import produce
from tests.system.workers.scene import Scene

SceneMaker = Callable[..., Scene]
PARTITIONS, WORKERS, HOT = 8, 2, 0
EACH = 1000
EAGER = {"workers": {"sharing_interval_ms": 300}, "group": {"commit_interval_ms": 100}}


def heat(stage: Scene, each: int) -> None:
    """One partition gets as much as the seven others together."""
    for partition in range(PARTITIONS):
        count = each * (PARTITIONS - 1) if partition == HOT else each
        produce(stage.kafka.bootstrap, stage.topic, count, partition=partition, value=b"x")


def beside(member: MemberProcess) -> list[int]:
    """The partitions that share the hot one's worker."""
    workers: dict[int, Any] = {p["partition"]: p["worker"] for p in member.partitions("running")}
    return [number for number, worker in workers.items() if number != HOT and worker == workers.get(HOT)]


def moves(member: MemberProcess, reason: str) -> int:
    """So many partitions went to another worker for that reason, as /metrics says."""
    name = f'kunicorn_partition_moves_total{{reason="{reason}"}} '
    found = [line for line in member.get("/metrics")[1].splitlines() if line.startswith(name)]
    return sum(int(float(line.removeprefix(name))) for line in found)


def share(stage: Scene, each: int = EACH) -> MemberProcess:
    """Have a hot partition until it is alone, and everything handled; then judge."""
    heat(stage, each)
    member = stage.members.start()
    member.wait_running(PARTITIONS)
    generation, rebalances = member.generation(), len(stage.rebalances())
    member.wait(lambda: member.partitions("running") and not beside(member), "the hot partition to be alone")
    loads = [worker["load"] for worker in member.workers()]
    stage.wait_all_committed()
    assert all(load > 0 for load in loads), loads
    made = moves(member, "load") + moves(member, "crowded")
    assert made >= 3
    assert moves(member, "count") == 0, "what loads have placed is not evened out by number"
    assert member.output().count(" moves from worker ") == made
    assert (member.generation(), len(stage.rebalances())) == (generation, rebalances)
    assert member.stop() == 0
    report = stage.judge()
    assert report.holds, report
    assert not report.repeated, report
    return member


def test_a_hot_partition_gets_a_worker_to_itself_without_a_rebalance_or_a_record_twice(scene: SceneMaker) -> None:
    share(
        scene(PARTITIONS, workers=WORKERS, handler="audited:handle", settings=EAGER, env={"KUNICORN_HANDLER_MS": "1"})
    )
