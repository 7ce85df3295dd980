"""The core of what a group promises, on brokers older than the one that all other tests stand on (classic protocol): in
CI a restart on 3.9.1, and what becomes of a group that asks for the consumer protocol; the rest at length.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.kafka import KafkaCluster
from tests.system.commands.desk import Desk
from tests.system.group.journal import handled_up_to, judgement
from tests.system.members import Members
from tests.system.producing import Flow, produce

PARTITIONS = 6
MembersOf = Callable[..., Members]


@pytest.fixture(
    scope="module",
    params=["3.9.1", *(pytest.param(version, marks=pytest.mark.long) for version in ("3.3.2", "2.8.2"))],
)
def older(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One broker of that version."""
    with KafkaCluster(version=request.param) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_come_and_go_and_every_record_is_handled_once(
    older: KafkaCluster, topic: str, members_of: MembersOf, strategy: str
) -> None:
    """Invariants 1 to 4 and 8."""
    older.create_topic(topic, PARTITIONS)
    members = members_of(older.bootstrap, topic, settings={"group": {"partition_assignment_strategy": [strategy]}})
    first = members.start()
    first.wait_running(PARTITIONS)
    with Flow(older.bootstrap, topic, 500) as flow:
        second = members.start()
        for member in (first, second):
            member.wait_running(PARTITIONS // 2)
        second.wait(lambda: sum(worker["handled"] for worker in second.workers()) > 50, "its share of the flow")
        assert second.stop() == 0
        first.wait_running(PARTITIONS)
    first.wait(lambda: handled_up_to(first) == flow.sent, "the end of the flow", 180)
    assert first.stop() == 0
    report = judgement(older, members, topic, PARTITIONS)
    assert (report.handled, report.repeated) == (flow.sent, ())


@pytest.mark.long
def test_a_killed_worker_costs_no_rebalance(older: KafkaCluster, topic: str, members_of: MembersOf) -> None:
    """Invariant 6."""
    older.create_topic(topic, PARTITIONS)
    members = members_of(older.bootstrap, topic, env={"KUNICORN_HANDLER_MS": "2"})
    member = members.start()
    member.wait_running(PARTITIONS)
    with Flow(older.bootstrap, topic, 200) as flow:
        member.wait(lambda: all(worker["handled"] > 20 for worker in member.workers()), "both workers at work")
        victim, generation = member.workers()[0]["pid"], member.generation()
        os.kill(victim, signal.SIGKILL)
        member.wait(lambda: victim not in [worker["pid"] for worker in member.workers()], "the death to be noticed")
        member.wait_running(PARTITIONS)
        assert member.generation() == generation
    member.wait(lambda: handled_up_to(member) == flow.sent, "the end of the flow", 180)
    assert member.stop() == 0
    report = judgement(older, members, topic, PARTITIONS, killed=[victim])
    assert report.handled == flow.sent
    assert len(report.repeated) <= 1


@pytest.mark.scenario("test_consumer_bounce")
def test_a_restart_goes_on_where_the_last_run_ended(older: KafkaCluster, topic: str, members_of: MembersOf) -> None:
    """Invariants 8 and 9."""
    older.create_topic(topic, PARTITIONS)
    members = members_of(older.bootstrap, topic, settings={"group": {"auto_offset_reset": "latest"}})
    produce(older.bootstrap, topic, 100)
    first = members.start()
    first.wait(lambda: handled_up_to(first) == 100, "start offsets at the end")
    produce(older.bootstrap, topic, 500)
    first.wait(lambda: handled_up_to(first) == 600, "500 handled records")
    assert first.stop() == 0
    produce(older.bootstrap, topic, 500)
    second = members.start()
    second.wait(lambda: handled_up_to(second) == 1_100, "what came meanwhile")
    assert second.stop() == 0


@pytest.mark.consumer
def test_brokers_without_the_protocol_get_a_classic_member(
    older: KafkaCluster, topic: str, members_of: MembersOf
) -> None:
    older.create_topic(topic, PARTITIONS)
    produce(older.bootstrap, topic, 1_000)
    unheard = {"group_protocol": "consumer", "allow_protocol_upgrade": False}
    members = members_of(older.bootstrap, topic, settings={"group": unheard})
    member = members.start()
    member.wait(lambda: handled_up_to(member) == 1_000, "everything handled")
    assert member.status()["group"]["protocol"] == "classic"
    assert 'group_protocol = "classic"' in member.output()
    assert "1 now; this member would get 3 of 6 partitions" in Desk(member.config).said("check")
    second = members.start()
    second.wait_running(PARTITIONS // 2)
    assert [member.stop(), second.stop()] == [0, 0]
    again = members.start()
    again.wait_running(PARTITIONS)
    assert again.stop() == 0
    assert judgement(older, members, topic, PARTITIONS).repeated == ()
