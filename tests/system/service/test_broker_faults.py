"""The only broker goes away and comes back, or freezes: membership survives by itself, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kunicorn.ipc import clock
from tests.kafka import KafkaCluster
from tests.system.conftest import USUAL_SESSIONS
from tests.system.members import MemberProcess
from tests.system.producing import Flow
from tests.system.scene import Scene

PARTITIONS = 6
SceneMaker = Callable[..., Scene]
ClusterMaker = Callable[..., KafkaCluster]


def finish(stage: Scene, members: list[MemberProcess]) -> None:
    """Everything handled, committed, stopped, and each record once. A client may have lost its only broker for good:
    after two minutes its worker is replaced."""
    for member in members:
        member.wait(lambda member=member: member.lag() == 0, "everything to be committed", 240)
    assert [member.stop() for member in members] == [0, 0]
    report = stage.judge()
    assert report.holds, report
    assert not report.repeated, report


@pytest.mark.parametrize("end", ["stop", pytest.param("kill", marks=pytest.mark.long)])
@pytest.mark.scenario("ConsumerBounceTest")
def test_a_restarted_broker_finds_the_same_members_and_every_record_is_handled_once(
    scene: SceneMaker, kafka_factory: ClusterMaker, end: str
) -> None:
    kafka = kafka_factory(overrides=USUAL_SESSIONS)
    stage = scene(PARTITIONS, kafka=kafka, env={"KUNICORN_HANDLER_MS": "4"})
    members = [stage.members.start(), stage.members.start()]
    with Flow(kafka.bootstrap, stage.topic, 400):
        for member in members:
            member.wait_running(PARTITIONS // 2)
        generations = [member.generation() for member in members]
        before = len(stage.handled(0))
        if end == "stop":
            kafka.broker(1).stop()
        else:
            kafka.broker(1).kill()
        for member in members:
            member.wait(lambda member=member: kafka.bootstrap in (member.status()["outage"] or ""), "the outage")
            member.wait(lambda member=member: member.metric("kunicorn_brokers_reached") == 0, "no broker in /metrics")
            assert member.get("/readyz")[0] == 200
        kafka.broker(1).start()
        kafka.wait_until_ready()
        for member in members:
            member.wait(lambda member=member: member.status()["outage"] is None, "the broker")
            member.wait(lambda member=member: member.metric("kunicorn_brokers_reached") == 1, "it in /metrics")
        members[0].wait(lambda: len(stage.handled(0)) > before + 200, "new records to be handled")
        assert [member.generation() for member in members] == generations, "a lost coordinator costs nothing"
    finish(stage, members)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [4.0, pytest.param(8.0, marks=pytest.mark.long)])
def test_a_broker_frozen_for_less_than_a_session_causes_no_rebalance(
    scene: SceneMaker, kafka_factory: ClusterMaker, seconds: float
) -> None:
    kafka = kafka_factory(overrides=USUAL_SESSIONS)
    settings = {"group": {"session_timeout_ms": int((seconds + 8) * 1000)}}
    stage = scene(PARTITIONS, kafka=kafka, settings=settings, env={"KUNICORN_HANDLER_MS": "4"})
    members = [stage.members.start(), stage.members.start()]
    with Flow(kafka.bootstrap, stage.topic, 400):
        for member in members:
            member.wait_running(PARTITIONS // 2)
        generations, rebalances = [member.generation() for member in members], len(stage.rebalances())
        kafka.broker(1).freeze()
        frozen_at, never = clock.now(), threading.Event()
        never.wait(seconds - (clock.now() - frozen_at))
        handled = len(stage.handled(0))
        kafka.broker(1).thaw()
        members[0].wait(lambda: len(stage.handled(0)) > handled + 100, "new records to be handled")
        for member in members:
            member.wait(lambda member=member: member.status()["group"]["heartbeat_age"] < 2.0, "heartbeats again")
        assert [member.generation() for member in members] == generations
        assert len(stage.rebalances()) == rebalances
    finish(stage, members)
