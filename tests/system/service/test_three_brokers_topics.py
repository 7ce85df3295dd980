"""Topics of a running group change on three brokers under load: leaders move, partitions are added, a topic goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kunicorn.commands.demo.judge import Audit
from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.members import MemberProcess, Members
from tests.system.producing import Flow, committed_offsets, end_offsets, held, produce
from tests.system.service.under_load import BROKER_SETTINGS, PARTITIONS, SceneMaker, silence, under_load

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(brokers=3, overrides=BROKER_SETTINGS) as cluster:
        yield cluster


def runs(member: MemberProcess, topic: str) -> bool:
    """Whether the member runs its even share of the topic, and has nothing else."""
    partitions = member.partitions()
    return [(p["topic"], p["state"]) for p in partitions] == [(topic, "running")] * (PARTITIONS // 2)


@pytest.mark.scenario("0146 metadata")
def test_partitions_that_get_new_leaders_cost_no_rebalance(three: KafkaCluster, scene: SceneMaker) -> None:
    with under_load(scene, three) as group:
        for _ in range(2):
            with silence(group, "leaders moved", 15.0):
                three.lead_anew(group.stage.topic)
            group.wait_handled(400)
        group.assert_no_rebalance()


@pytest.mark.scenario("0113 k_add_partition")
def test_partitions_added_under_latest_are_handled_from_their_beginning(
    three: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    three.create_topic(topic, PARTITIONS)
    settings = {"group": {"auto_offset_reset": "latest"}, "kafka": {"metadata_max_age_ms": 1_000}}
    members = members_of(three.bootstrap, topic, settings=settings)
    both = [members.start(), members.start()]
    for member in both:
        member.wait_running(PARTITIONS // 2)
    grown = 2 * PARTITIONS
    with Flow(three.bootstrap, topic, 400):
        three.add_partitions(topic, grown)
        for partition in range(PARTITIONS, grown):
            produce(three.bootstrap, topic, 100, partition=partition)
        for member in both:
            member.wait_running(grown // 2)
        produce(three.bootstrap, topic, 1_000)
    ends = end_offsets(three.bootstrap, topic, grown)
    sent = sum(ends.values())
    both[0].wait(lambda: sum(map(handled_up_to, both)) == sent, f"{sent} handled records")
    assert [member.stop() for member in both] == [0, 0]
    report = Audit(members.audit).check(held(ends))
    assert report.holds, report
    assert not report.repeated, report
    assert committed_offsets(three.bootstrap, topic, topic, grown) == ends


@pytest.mark.scenario(
    "testRebalanceAfterTopicUnavailable*",
    "0113 h_delete_topic",
    "0113 i_delete_topic_2",
    "0113 e_change_subscription_remove_topic",
)
def test_a_deleted_topic_leaves_the_others_to_go_on(
    three: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    doomed = f"{topic}-doomed"
    for name in (topic, doomed):
        three.create_topic(name, PARTITIONS)
    settings = {"group": {"topics": [topic, doomed]}, "kafka": {"metadata_max_age_ms": 1_000}}
    members = members_of(three.bootstrap, topic, settings=settings)
    both = [members.start(), members.start()]
    for member in both:
        member.wait_running(PARTITIONS)
    with Flow(three.bootstrap, topic, 400):
        produce(three.bootstrap, doomed, 1_000)
        three.admin().delete_topics([doomed])[doomed].result(60)
        for member in both:
            member.wait(lambda member=member: runs(member, topic), "its share of the other topic")
        produce(three.bootstrap, topic, 1_000)
    ends = end_offsets(three.bootstrap, topic, PARTITIONS)
    both[0].wait(lambda: sum(map(handled_up_to, both)) == sum(ends.values()), "the end of the flow")
    assert all(member.get("/livez")[0] == 200 for member in both)
    assert [member.stop() for member in both] == [0, 0]
    report = Audit(members.audit).check(held(ends))
    assert {record.topic for record in report.unexpected} <= {doomed}, report
    assert report.faults().keys() <= {"unexpected"}, report
    assert not report.repeated, report
    assert committed_offsets(three.bootstrap, topic, topic, PARTITIONS) == ends
