"""Positions that the log does not hold (any more): said, counted, and gone on from by policy (invariant 9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.group.outside_the_log import resets, says_where_it_goes_on
from tests.system.members import Members
from tests.system.producing import committed_offsets, produce


def commit(kafka: KafkaCluster, topic: str, *offsets: int) -> None:
    """Make these the group's committed offsets, from partition 0 on; the group must be empty."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        positions = [Coordinates(topic, partition, offset) for partition, offset in enumerate(offsets)]
        consumer.commit(offsets=positions, asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize(("policy", "first"), [("earliest", 60), ("latest", 100)])
def test_a_position_below_the_logs_start_is_said_counted_and_replaced_by_policy(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], policy: str, first: int
) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 100)
    commit(kafka, topic, 10)
    kafka.delete_records(topic, {0: 60})
    members = members_of(kafka.bootstrap, topic, settings={"group": {"auto_offset_reset": policy}})
    member = members.start()
    member.wait(lambda: says_where_it_goes_on(member, 10, first), "a word about it")
    member.wait(lambda: (member.partitions("running") or [{}])[0].get("position", 0) >= first, "a new position")
    produce(kafka.bootstrap, topic, 20)
    member.wait(lambda: handled_up_to(member) == 120, "the end of the log")
    member.wait(lambda: resets(member) == 1, "the reset to be counted")
    assert member.stop() == 0
    report = Audit(members.audit).check({TopicPartition(topic, 0): range(first, 120)})
    assert report.holds, report


@pytest.mark.parametrize("policy", ["earliest", pytest.param("latest", marks=pytest.mark.long)])
def test_a_position_above_the_logs_end_goes_on_at_the_end_and_repeats_nothing(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], policy: str
) -> None:
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 100)
    commit(kafka, topic, 500)
    members = members_of(kafka.bootstrap, topic, settings={"group": {"auto_offset_reset": policy}})
    member = members.start()
    member.wait(lambda: says_where_it_goes_on(member, 500, 100), "a word about it")
    produce(kafka.bootstrap, topic, 20)
    member.wait(lambda: handled_up_to(member) == 120, "the end of the log")
    member.wait(lambda: resets(member) == 1, "the reset to be counted")
    assert member.stop() == 0
    assert committed_offsets(kafka.bootstrap, topic, topic, 1) == {TopicPartition(topic, 0): 120}
    report = Audit(members.audit).check({TopicPartition(topic, 0): range(100, 120)})
    assert report.holds, report


def test_without_a_policy_a_position_outside_the_log_halts_its_partition_alone_and_visibly(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    kafka.create_topic(topic, 2)
    commit(kafka, topic, 10, 0)
    for partition in range(2):
        produce(kafka.bootstrap, topic, 100, partition=partition)
    kafka.delete_records(topic, {0: 60})
    members = members_of(kafka.bootstrap, topic, settings={"group": {"auto_offset_reset": "none"}})
    member = members.start()
    member.wait(lambda: member.partitions("halted"), "a halted partition")
    (halted,) = member.partitions("halted")
    assert halted["partition"] == 0
    assert halted["reason"] == 'position 10 is not in the log (60-100) and auto_offset_reset is "none"'
    assert f"{topic}-0 is halted: position 10 is not in the log" in member.output()
    assert member.get("/livez")[0] == 200
    assert member.metric("kunicorn_partitions", group=topic, state="halted") == 1
    member.wait(lambda: handled_up_to(member) == 10 + 100, "the other partition's records")
    assert member.stop() == 0
    committed = committed_offsets(kafka.bootstrap, topic, topic, 2)
    assert committed == {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 100}
