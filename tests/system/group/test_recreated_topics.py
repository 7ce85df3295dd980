"""A topic that is deleted and created again is another topic: nothing of the old one may count for the new one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from uuid import UUID

import pytest

from kunicorn.ipc.clock import now_ns
from kunicorn.positions import Position, TopicPartition
from kunicorn.text import topic_id_text
from tests.kafka import KafkaCluster
from tests.system.audits import ended
from tests.system.columns.fetching import topic_id
from tests.system.group.journal import handled_up_to
from tests.system.group.one_client import own_client, taken
from tests.system.members import MemberProcess, Members
from tests.system.producing import committed_offsets, end_offsets, produce

PARTITIONS = 3
BOTH = pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.consumer)])


@BOTH
@pytest.mark.parametrize("policy", [pytest.param("earliest", marks=pytest.mark.long), "latest"])
def test_a_topic_created_anew_is_consumed_from_its_beginning_whatever_was_committed_on_the_old_one(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], protocol: str, policy: str
) -> None:
    """Invariant 9. The new topic is longer than the old one was: no position is out of range to give it away."""
    recreate(kafka, topic, members_of, protocol, policy)


@BOTH
@pytest.mark.long
def test_on_three_brokers_that_learn_of_it_one_after_the_other_nothing_of_the_old_topic_counts_either(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members], protocol: str
) -> None:
    recreate(kafka_factory(3), topic, members_of, protocol, "latest")


@pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=[pytest.mark.consumer, pytest.mark.long])]
)
def test_where_all_was_committed_before_a_topic_is_created_anew_nobody_waits_for_metadata_to_be_due(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], protocol: str
) -> None:
    """No commit is refused: what the client hears of its position, or where the logs end, has to do."""
    kafka.create_topic(topic, 1)
    group = {"group_protocol": protocol, "commit_interval_ms": 500}
    members = members_of(kafka.bootstrap, topic, settings={"group": group})
    member = members.start()
    produce(kafka.bootstrap, topic, 300)
    member.wait(lambda: committed_offsets(kafka.bootstrap, topic, topic, 1).popitem()[1] == 300, "all to be committed")
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 1)
    began = now_ns()
    produce(kafka.bootstrap, topic, 100)
    # By default metadata is asked for every five minutes, the ends of logs every ten seconds.
    member.wait(lambda: len(ended(members.audit, since=began)) == 100, "the new topic", 120)
    assert member.stop() == 0


def test_a_worker_with_an_offset_of_the_old_topic_that_has_fetched_nothing_yet_passes_over_nothing_of_the_new_one(
    kafka: KafkaCluster, topic: str
) -> None:
    """With our own fetcher: it is told of which topic the offset is."""
    kafka.create_topic(topic, 1)
    old = topic_id_text(UUID(bytes=topic_id(kafka, topic)))
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, 200)
    place = TopicPartition(topic, 0)
    with own_client(kafka, topic) as client:
        client.assign({place: Position(100, 0)}, {place: old})
        found = taken(client)
    ((at_fault, _, error),) = found.faults
    assert (list(found.runs), at_fault) == ([], place)
    assert "created anew" in error


@pytest.mark.long
def test_a_client_that_has_seen_later_leaders_under_the_name_is_replaced_where_the_new_topic_is_silent(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members]
) -> None:
    """librdkafka takes no leader of a lower epoch. It forgets the epochs if it hears that the topic is gone: a worker
    that was frozen meanwhile has not."""
    kafka, partitions = kafka_factory(3), 12
    kafka.create_topic(topic, partitions)
    members = members_of(kafka.bootstrap, topic, workers=1)
    member = members.start()
    for _ in range(2):
        kafka.lead_anew(topic)
        produce(kafka.bootstrap, topic, 300)
    member.wait(lambda: member.lag() == 0 and handled_up_to(member) == 600, "the old topic", 120)
    (worker,) = member.workers()
    os.kill(worker["pid"], signal.SIGSTOP)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions)
    began = now_ns()
    produce(kafka.bootstrap, topic, 600)
    os.kill(worker["pid"], signal.SIGCONT)
    member.wait(lambda: len(ended(members.audit, since=began)) == 600, "all of the new topic")
    assert "or their topic was created anew" in member.output(), "its client was not at a loss: this shows nothing"
    assert member.stop() == 0


def recreate(kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], protocol: str, policy: str) -> None:
    """A member consumes the topic, then the one that takes its name, and handles every record of both."""
    kafka.create_topic(topic, PARTITIONS)
    members = members_of(
        kafka.bootstrap,
        topic,
        settings={
            "kafka": {"metadata_max_age_ms": 2000},
            "group": {"group_protocol": protocol, "auto_offset_reset": policy, "commit_interval_ms": 500},
        },
    )
    member = members.start()
    member.wait_running(PARTITIONS)
    produce(kafka.bootstrap, topic, 300)
    member.wait(lambda: handled_up_to(member) == 300, "the old topic")
    kafka.delete_topic(topic)
    kafka.create_topic(topic, PARTITIONS)
    began = now_ns()
    produce(kafka.bootstrap, topic, 900)
    member.wait(lambda: "created anew" in member.output() or adopted(member) > 1, "the new topic to be noticed")
    member.wait(lambda: len(member.partitions("running")) == PARTITIONS and handled_up_to(member) == 900, "the new")
    assert member.stop() == 0
    ends = end_offsets(kafka.bootstrap, topic, PARTITIONS)
    assert sum(ends.values()) == 900
    assert committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS) == ends
    every = {(tp.partition, offset) for tp, end in ends.items() for offset in range(end)}
    assert ended(members.audit, since=began).keys() == every


def adopted(member: MemberProcess) -> int:
    """How many times all partitions were given to it: twice where the deletion was noticed before the creation."""
    return member.output().count(f"adds {PARTITIONS} partitions")
