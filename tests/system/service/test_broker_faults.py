"""The only broker goes away and comes back, or freezes: membership survives by itself, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kunicorn.errors import ExitCode
from kunicorn.ipc import clock
from tests.kafka import KafkaCluster
from tests.system.conftest import USUAL_SESSIONS, asked_for
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


@pytest.fixture(scope="module")
def only(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    with KafkaCluster(**asked_for(pytestconfig, USUAL_SESSIONS)) as cluster:
        yield cluster


@pytest.fixture
def broken(only: KafkaCluster) -> KafkaCluster:
    """The broker that tests of this file stop, started again where the one before has left it dead."""
    if not only.broker(1).alive:
        only.broker(1).start()
        only.wait_until_ready()
    return only


@pytest.mark.parametrize("end", ["stop", pytest.param("kill", marks=pytest.mark.long)])
@pytest.mark.scenario("ConsumerBounceTest", "testFetchDisconnected")
def test_a_restarted_broker_finds_the_same_members_and_every_record_is_handled_once(
    scene: SceneMaker, broken: KafkaCluster, end: str
) -> None:
    """Whoever fetches: each member has another fetcher."""
    kafka = broken
    stage = scene(PARTITIONS, kafka=kafka, env={"KUNICORN_HANDLER_MS": "4"})
    members = [stage.members.start({"kafka": {"fetcher": fetcher}}) for fetcher in ("librdkafka", "own")]
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


def test_it_joins_by_itself_as_soon_as_the_broker_is_up(scene: SceneMaker, broken: KafkaCluster) -> None:
    stage = scene(2, kafka=broken)
    stage.send(0, *["x"] * 20)
    broken.broker(1).stop()
    member = stage.members.start()
    member.wait(lambda: broken.bootstrap in str(member.status().get("problem")), "the problem in /status")
    assert (member.get("/livez")[0], member.get("/readyz")[0]) == (200, 503)
    broken.broker(1).start()
    broken.wait_until_ready()
    member.wait(lambda: member.get("/readyz")[0] == 200, "ready")
    assert member.status()["problem"] is None
    stage.wait_handled(0, 19, member)
    assert member.stop() == 0
    assert stage.judge().holds


@pytest.mark.scenario("testCloseCoordinatorNotKnownWithCommits")
def test_what_cannot_be_committed_is_said_and_told_by_the_exit_code(scene: SceneMaker, broken: KafkaCluster) -> None:
    """It leaves the broker dead, and comes last."""
    stage = scene(2, kafka=broken, settings={"group": {"commit_timeout_ms": 1000, "commit_interval_ms": 60_000}})
    member = stage.members.start()
    member.wait_running(2)
    stage.send(0, *["x"] * 20)
    stage.wait_handled(0, 19, member)
    broken.broker(1).kill()
    assert member.stop() == ExitCode.NOT_ALL_COMMITTED
    assert f"{stage.topic}-0@20" in member.output(), "what it is about"
    assert "will be handled again" in member.output()
    assert "Traceback" not in member.output()
