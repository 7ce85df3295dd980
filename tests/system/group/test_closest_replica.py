"""`client_rack` on brokers in racks (KIP-392): the workers fetch from the replica next to them, not from the leader."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from kunicorn.demo.check import Audit
from kunicorn.topics import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.group.journal import handled_up_to
from tests.system.members import Members
from tests.system.producing import produce

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
PARTITIONS = 3
_FETCH = re.compile(r"\[thrd:[^\]]*/(\d+)\]: \S+: Fetch topic (\S+) \[(\d+)\]")
"""librdkafka's own account of every fetch: node, topic, partition (its `debug` property)."""


def test_records_are_fetched_from_the_replica_in_our_rack(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members]
) -> None:
    kafka = kafka_factory(3, overrides={"broker.rack": "rack-{id}", "replica.selector.class": SELECTOR})
    kafka.create_topic(topic, PARTITIONS)
    leaders = kafka.admin().list_topics(topic, timeout=10).topics[topic].partitions
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
