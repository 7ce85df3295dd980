"""`client_rack` on brokers in racks: partitions go to members that have a replica near (KIP-881), whose workers fetch
from it and not from the leader (KIP-392)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to, own
from tests.system.members import Members
from tests.system.producing import produce

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
PARTITIONS = 3
_FETCH = re.compile(r"\[thrd:[^\]]*/(\d+)\]: \S+: Fetch topic (\S+) \[(\d+)\]")
"""librdkafka's own account of every fetch: node, topic, partition (its `debug` property)."""


@pytest.fixture(scope="module")
def racks() -> Iterator[KafkaCluster]:
    """Three brokers, each in a rack of its own."""
    with KafkaCluster(brokers=3, overrides={"broker.rack": "rack-{id}", "replica.selector.class": SELECTOR}) as cluster:
        yield cluster


@pytest.mark.long
def test_records_are_fetched_from_the_replica_in_our_rack(
    racks: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    kafka = racks
    kafka.create_topic(topic, PARTITIONS)
    leaders = kafka.admin().list_topics(topic, timeout=60).topics[topic].partitions
    assert {each.leader for each in leaders.values()} == {1, 2, 3}, "two partitions have their leader elsewhere"
    servers = kafka.bootstrap.split(",")
    near = {"bootstrap_servers": servers, "client_rack": "rack-2", "librdkafka": {"debug": "fetch"}}
    members = members_of(kafka.bootstrap, topic, workers=1, settings={"kafka": near})
    member = members.start()
    member.wait_running(PARTITIONS)
    for partition in range(PARTITIONS):
        produce(kafka.bootstrap, topic, 2_000, partition=partition)
    member.wait(lambda: handled_up_to(member) == PARTITIONS * 2_000, "everything handled")
    assert member.stop() == 0
    report = Audit(members.audit).check({TopicPartition(topic, number): range(2_000) for number in range(PARTITIONS)})
    assert report.holds, report

    fetches: dict[int, list[int]] = {}
    for node, name, partition in _FETCH.findall(member.output()):
        if name == topic:
            fetches.setdefault(int(partition), []).append(int(node))
    for partition, nodes in fetches.items():
        assert nodes[0] == leaders[partition].leader, "the leader tells which replica is near"
        assert nodes[-1] == 2, f"partition {partition} was last fetched from node {nodes[-1]}: {Counter(nodes)}"
    assert len(fetches) == PARTITIONS


@pytest.mark.long
@pytest.mark.classic
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.scenario("testRackAwareConsumerRebalance*", "0045 subscribe_update")
def test_members_in_different_racks_get_the_partitions_that_lie_near_them(
    racks: KafkaCluster, topic: str, members_of: Callable[..., Members], assignor: str
) -> None:
    """One replica each, so that a partition is near to one member or to none. In the consumer protocol the coordinator
    plans, and its assignors know no racks."""
    count = 4 * PARTITIONS
    racks.create_topic(topic, count, replication=1)
    partitions = racks.admin().list_topics(topic, timeout=60).topics[topic].partitions
    members = members_of(
        racks.bootstrap, topic, workers=1, settings={"group": {"partition_assignment_strategy": [assignor]}}
    )
    both = [members.start({"kafka": {"client_rack": f"rack-{number}"}}) for number in (1, 2)]
    for member in both:
        member.wait_running(count // 2)
    for broker, member in enumerate(both, 1):
        near = {number for number, partition in partitions.items() if partition.leader == broker}
        assert near, partitions
        assert near <= {each.partition for each in own(member)}, "what lies in its rack is its own"
    assert [member.stop() for member in both] == [0, 0]
