"""The whole of kunicorn.kafka against real brokers: Apache Kafka, and librdkafka's mock cluster that the demo runs on.

The mock speaks the lowest versions that we accept, Kafka the highest: together they hold both ends of the table. What
several members are to one another `tests/system/group` shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import uvloop
from confluent_kafka import Producer

from kunicorn.commands.demo.mock_cluster import mock_cluster_process
from kunicorn.group.protocol import JoinAnswer, LogOffset, Subscription, SyncAnswer
from kunicorn.kafka.admin import STALE_METADATA, IsolationLevel, epoch_ends, list_offsets
from kunicorn.kafka.auth import Security
from kunicorn.kafka.cluster import Cluster, Timeouts
from kunicorn.kafka.coordinator import Coordinator
from kunicorn.kafka.errors import CoordinatorUnavailable
from kunicorn.kafka.versions import OURS, VersionRange
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import EARLIEST, LATEST, NO_OFFSET, Position, TopicPartition
from tests.kafka import KafkaCluster

ASSIGNOR = "cooperative-sticky"
TIMEOUT = 60.0
PARTITIONS = 3
MOCK_TOPICS = [f"round-trip-{number}" for number in range(20)]


@dataclass(frozen=True)
class Brokers:
    """A cluster to speak to, with one topic of `PARTITIONS` partitions."""

    bootstrap: str
    topic: str

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]


@pytest.fixture(scope="module")
def mock() -> Iterator[Iterator[Brokers]]:
    """The mock cluster, with a topic for one test after the other: it is told all of them when it starts."""
    with mock_cluster_process([(topic, PARTITIONS) for topic in MOCK_TOPICS], brokers=1) as bootstrap:
        yield (Brokers(bootstrap, topic) for topic in MOCK_TOPICS)


@pytest.fixture(params=["kafka", "mock"])
def brokers(request: pytest.FixtureRequest, topic: str) -> Brokers:
    if request.param == "mock":
        unused: Iterator[Brokers] = request.getfixturevalue("mock")
        return next(unused)
    kafka: KafkaCluster = request.getfixturevalue("kafka")
    return Brokers(kafka.bootstrap, kafka.create_topic(topic, PARTITIONS))


only_kafka = pytest.mark.parametrize("brokers", ["kafka"], indirect=True)


@pytest.fixture
async def cluster(brokers: Brokers) -> AsyncIterator[Cluster]:
    cluster = open_cluster(brokers.bootstrap)
    await cluster.refresh([brokers.topic])
    yield cluster
    await cluster.close()


@pytest.fixture
async def coordinator(cluster: Cluster, topic: str) -> Coordinator:
    coordinator = Coordinator(cluster, f"group-of-{topic}")
    await find(coordinator)
    return coordinator


def open_cluster(bootstrap: str) -> Cluster:
    return Cluster(
        bootstrap.split(","),
        client_id="round-trip",
        security=Security(),
        timeouts=Timeouts(request=TIMEOUT, connect=TIMEOUT),
        rng=Random(1),
    )


async def find(coordinator: Coordinator) -> None:
    """Until the broker has loaded the group's part of its offsets topic."""
    async with asyncio.timeout(TIMEOUT):
        while coordinator.node is None:
            with suppress(CoordinatorUnavailable):
                await coordinator.find(TIMEOUT)


async def join(coordinator: Coordinator, topic: str) -> JoinAnswer:
    """JoinGroup, again with the id that the broker gives where it asks for one (KIP-394)."""
    asked: dict[str, Any] = {
        "instance_id": None,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocols": [(ASSIGNOR, Subscription((topic,)))],
        "reason": "x" * 300,
        "timeout": TIMEOUT,
    }
    answer = await coordinator.join(member_id="", **asked)
    if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await coordinator.join(member_id=answer.member_id, **asked)
    return answer


async def sync(coordinator: Coordinator, joined: JoinAnswer, partitions: list[TopicPartition]) -> SyncAnswer:
    return await coordinator.sync(
        generation=joined.generation,
        member_id=joined.member_id,
        instance_id=None,
        assignor=ASSIGNOR,
        plan={joined.member_id: partitions},
        timeout=TIMEOUT,
    )


async def ends(
    cluster: Cluster, brokers: Brokers, timestamp: int, *more: TopicPartition
) -> dict[TopicPartition, LogOffset]:
    """ListOffsets, again while a new topic's leader is not ready to lead."""
    queries = dict.fromkeys([*brokers.partitions, *more], timestamp)
    async with asyncio.timeout(TIMEOUT):
        while True:
            answers = await list_offsets(cluster, queries, IsolationLevel.READ_COMMITTED, TIMEOUT)
            if not any(answers[each].error in STALE_METADATA for each in brokers.partitions):
                return answers


def produce(brokers: Brokers, partition: int, records: int) -> None:
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    for number in range(records):
        producer.produce(brokers.topic, str(number).encode(), partition=partition)
    assert producer.flush(60) == 0


async def test_the_metadata_names_broker_partitions_and_leaders(brokers: Brokers, cluster: Cluster) -> None:
    topic = cluster.metadata.topics[brokers.topic]
    assert topic.error == ErrorCode.NONE
    assert sorted(topic.partitions) == list(range(PARTITIONS))
    assert {info.leader for info in topic.partitions.values()} <= set(cluster.metadata.brokers)
    assert brokers.topic in (await cluster.refresh(None)).topics


# The mock creates every topic that it is asked for.
@only_kafka
async def test_an_unknown_topic_is_told_and_not_created(cluster: Cluster, brokers: Brokers) -> None:
    for _ in range(2):
        await cluster.refresh(["there-is-no-such-topic"])
        unknown = cluster.metadata.topics["there-is-no-such-topic"]
        assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert brokers.topic in cluster.metadata.topics


@pytest.mark.scenario("testJoinGroupRequestWithMemberIdRequired")
async def test_a_member_joins_commits_fetches_and_leaves(brokers: Brokers, coordinator: Coordinator) -> None:
    joined = await join(coordinator, brokers.topic)
    assert joined.error == ErrorCode.NONE
    assert joined.leader == joined.member_id
    assert joined.assignor == ASSIGNOR
    assert [member.subscription.topics for member in joined.members] == [(brokers.topic,)]

    synced = await sync(coordinator, joined, brokers.partitions)
    assert (synced.error, set(synced.partitions)) == (ErrorCode.NONE, set(brokers.partitions))

    member: dict[str, Any] = {"generation": joined.generation, "member_id": joined.member_id, "instance_id": None}
    assert await coordinator.heartbeat(**member, timeout=TIMEOUT) == ErrorCode.NONE

    offsets = {brokers.partitions[0]: Position(7, 0), brokers.partitions[2]: Position(9)}
    commit = await coordinator.commit(**member, offsets=offsets, metadata="m", timeout=TIMEOUT)
    assert commit.errors == dict.fromkeys(offsets, ErrorCode.NONE)

    fetched = await coordinator.fetch_offsets(partitions=brokers.partitions, require_stable=True, timeout=TIMEOUT)
    assert fetched.error == ErrorCode.NONE
    assert {each: answer.offset for each, answer in fetched.partitions.items()} == {
        brokers.partitions[0]: 7,
        brokers.partitions[1]: NO_OFFSET,
        brokers.partitions[2]: 9,
    }
    assert fetched.partitions[brokers.partitions[0]].metadata == "m"

    left = await coordinator.leave(member_id=joined.member_id, instance_id=None, reason="done", timeout=TIMEOUT)
    assert left == ErrorCode.NONE
    assert await coordinator.heartbeat(**member, timeout=TIMEOUT) == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_group_that_committed_nothing_has_no_offsets(brokers: Brokers, coordinator: Coordinator) -> None:
    fetched = await coordinator.fetch_offsets(partitions=brokers.partitions, require_stable=True, timeout=TIMEOUT)
    assert fetched.error == ErrorCode.NONE
    assert {answer.offset for answer in fetched.partitions.values()} == {NO_OFFSET}


async def test_the_ends_of_the_logs_are_where_the_records_end(brokers: Brokers, cluster: Cluster) -> None:
    produce(brokers, partition=1, records=5)
    latest = await ends(cluster, brokers, LATEST)
    assert {each.partition: (answer.error, answer.offset) for each, answer in latest.items()} == {
        0: (0, 0),
        1: (0, 5),
        2: (0, 0),
    }
    earliest = await ends(cluster, brokers, EARLIEST)
    assert {answer.offset for answer in earliest.values()} == {0}


async def test_an_epoch_ends_where_its_log_ends(brokers: Brokers, cluster: Cluster) -> None:
    produce(brokers, partition=0, records=4)
    partition = brokers.partitions[0]
    _, epoch = cluster.metadata.leader(partition)
    answer = (await epoch_ends(cluster, {partition: epoch}, TIMEOUT))[partition]
    assert (answer.error, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, epoch, 4)


async def test_questions_about_unknown_partitions_have_answers_too(brokers: Brokers, cluster: Cluster) -> None:
    unknown = TopicPartition(brokers.topic, 99)
    answers = await ends(cluster, brokers, LATEST, unknown)
    assert answers[unknown].error == ErrorCode.LEADER_NOT_AVAILABLE
    assert answers[brokers.partitions[0]].error == ErrorCode.NONE


@only_kafka
async def test_kafka_negotiates_our_newest_versions(cluster: Cluster) -> None:
    connection = await cluster.connection(next(iter(cluster.metadata.brokers)), "versions")
    assert {api: connection.version(api) for api in OURS} == {api: ours.high for api, ours in OURS.items()}


@only_kafka
@pytest.mark.parametrize("step", range(max(ours.high - ours.low for ours in OURS.values())))
async def test_every_version_does_a_whole_round(brokers: Brokers, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for api, ours in list(OURS.items()):
        monkeypatch.setitem(OURS, api, VersionRange(ours.low, min(ours.low + step, ours.high)))
    cluster = open_cluster(brokers.bootstrap)
    await cluster.refresh([brokers.topic])
    coordinator = Coordinator(cluster, f"group-of-{brokers.topic}")
    await find(coordinator)
    await test_a_member_joins_commits_fetches_and_leaves(brokers, coordinator)
    await test_an_epoch_ends_where_its_log_ends(brokers, cluster)
    await ends(cluster, brokers, EARLIEST)
    await cluster.close()


@only_kafka
def test_a_whole_round_goes_as_well_on_uvloop(brokers: Brokers) -> None:
    async def whole_round() -> None:
        cluster = open_cluster(brokers.bootstrap)
        await cluster.refresh([brokers.topic])
        coordinator = Coordinator(cluster, f"group-of-{brokers.topic}")
        await find(coordinator)
        await test_a_member_joins_commits_fetches_and_leaves(brokers, coordinator)
        await cluster.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole_round())
