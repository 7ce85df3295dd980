"""A group on three brokers that is hurt while records flow, and what the hurt may not do to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kafka import Broker, KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.members import MemberProcess, merged
from tests.system.producing import Flow
from tests.system.scene import Scene
from tests.waiting import PATIENCE

PARTITIONS = 6
RATE = 400
BROKER_SETTINGS = {"min.insync.replicas": 2}
"""Two of three replicas have to have a record, or an offset, before it counts."""

PROTOCOLS = pytest.mark.parametrize(
    "protocol",
    [
        pytest.param({"group": {"partition_assignment_strategy": ["cooperative-sticky"]}}, id="cooperative-sticky"),
        pytest.param(
            {"group": {"group_protocol": "consumer"}}, id="consumer", marks=[pytest.mark.long, pytest.mark.consumer]
        ),
    ],
)
FENCED = 30.0
"""Seconds: a dead broker stays the coordinator until its controller session ends (9 s), longer if it was the active
controller itself."""

Settings = Mapping[str, Mapping[str, Any]]
SceneMaker = Callable[..., Scene]


class UnderLoad:
    """Two members that share a topic into which records flow. Made by `under_load`."""

    def __init__(self, stage: Scene, members: list[MemberProcess]) -> None:
        self.stage = stage
        self.members = members
        self._generations = self._now()
        self._rebalances = len(stage.rebalances())

    def coordinator(self) -> Broker:
        """The broker that coordinates the group, as the first member says."""
        first = self.members[0]
        where = first.wait(lambda: first.status()["group"]["coordinator"], "a coordinator")
        return self.stage.kafka.broker(int(where.split()[0]))

    def wait_coordinator(self, other_than: Broker, within: float = PATIENCE) -> None:
        """Until every member's heartbeats are answered by another broker than that one."""
        for member in self.members:
            member.wait(lambda member=member: _heard_of(member, other_than), "another coordinator's answer", within)

    def wait_handled(self, more: int, within: float = PATIENCE) -> None:
        """Until so many more records are handled, in all partitions together."""
        goal = self._handled() + more
        self.members[0].wait(lambda: self._handled() >= goal, f"{more} more handled records", within)

    def assert_no_rebalance(self) -> None:
        """The members are of the generation they were of, and no coordinator has told of a rebalance."""
        assert self._now() == self._generations, "a lost coordinator costs no generation"
        assert len(self.stage.rebalances()) == self._rebalances, self.stage.rebalances()

    def _now(self) -> list[tuple[int, str]]:
        groups = [member.status()["group"] for member in self.members]
        return [(group["generation"], group["member_id"]) for group in groups]

    def _handled(self) -> int:
        return sum(handled_up_to(member) for member in self.members)


def _heard_of(member: MemberProcess, other_than: Broker) -> bool:
    group = member.status()["group"]
    where = group["coordinator"]
    return where is not None and int(where.split()[0]) != other_than.id and group["heartbeat_age"] < 1.0


@contextmanager
def under_load(
    scene: SceneMaker, kafka: KafkaCluster, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[UnderLoad]:
    """Load for the block; at its end each record was handled once, is committed, and both members stop cleanly."""
    kafka.wait_until_whole()
    often = {"group": {"commit_interval_ms": 500}}
    stage = scene(PARTITIONS, kafka=kafka, settings=merged(often, settings or {}), env={"KUNICORN_HANDLER_MS": "4"})
    members = [stage.members.start(), stage.members.start()]
    with Flow(kafka.bootstrap, stage.topic, RATE):
        for member in members:
            member.wait_running(PARTITIONS // 2)
        group = UnderLoad(stage, members)
        group.wait_handled(200)
        yield group
        group.wait_handled(200)
    for member in members:
        member.wait(lambda member=member: member.lag() == 0, "everything to be committed")
    assert [member.stop() for member in members] == [0, 0]
    stage.wait_all_committed()
    report = stage.judge()
    assert report.holds, report
    assert not report.repeated, report


@contextmanager
def silence(group: UnderLoad, what: str, at_most: float) -> Iterator[None]:
    """Measure and print the longest time that a member had no heartbeat answered; fail above `at_most` seconds."""
    longest = 0.0
    over = threading.Event()

    def watch() -> None:
        nonlocal longest
        while not over.wait(0.1):
            ages = [status["group"]["heartbeat_age"] for member in group.members if (status := member.status())]
            longest = max([longest, *ages])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(60)
    print(f"{what}: no heartbeat answered for {longest:.2f} s")
    assert longest <= at_most, f"{what}: {longest:.2f} s without a heartbeat"
