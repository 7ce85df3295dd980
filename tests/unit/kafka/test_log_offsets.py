"""Questions to leaders: whoever leads now is asked, and every partition has an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from kunicorn.group.protocol import EpochEnd, LogOffset
from kunicorn.kafka.admin import IsolationLevel, epoch_ends, list_offsets
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import LATEST, TopicPartition
from tests.fakes.broker import Asked, FakeBroker, HangUp, Reply, Script
from tests.fakes.messages import blank, blank_response, nested

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
async def two(one: FakeBroker) -> AsyncIterator[FakeBroker]:
    async with FakeBroker(2) as broker:
        lead(one, broker, {0: (1, 5), 1: (2, 6), 2: (2, 7)})
        yield broker


def lead(one: FakeBroker, two: FakeBroker, leaders: dict[int, tuple[int, int]]) -> None:
    for broker in (one, two):
        broker.lead([one, two], {"t": leaders})


def ends(offsets: Mapping[int, int], errors: Mapping[int, int] | None = None) -> Script:
    """ListOffsets: these offsets and errors by partition, last partition first."""

    def answer(asked: Asked) -> Reply:
        topic = nested(RESPONSES[asked.api, asked.version], "topics")
        partition = nested(topic, "partitions")
        rows = tuple(
            blank(
                partition,
                partition_index=number,
                offset=offsets.get(number, -1),
                leader_epoch=4,
                timestamp=9,
                error_code=(errors or {}).get(number, 0),
            )
            for number in sorted({*offsets, *(errors or {})}, reverse=True)
        )
        return blank_response(asked.api, asked.version, topics=(topic(name="t", partitions=rows),))

    return answer


async def latest(cluster: Cluster, *partitions: TopicPartition) -> dict[TopicPartition, LogOffset]:
    return await list_offsets(cluster, dict.fromkeys(partitions, LATEST), IsolationLevel.READ_COMMITTED, 10.0)


@pytest.mark.parametrize("version", range(OURS[Api.LIST_OFFSETS].low, OURS[Api.LIST_OFFSETS].high + 1))
async def test_each_leader_is_asked_once_for_all_its_partitions(
    one: FakeBroker, two: FakeBroker, cluster: Cluster, version: int
) -> None:
    for broker in (one, two):
        broker.versions[Api.LIST_OFFSETS] = (0, version)
    one.script[Api.LIST_OFFSETS] = ends({0: 10})
    two.script[Api.LIST_OFFSETS] = ends({1: 11, 2: 12})
    answers = await latest(cluster, T0, T1, T2)
    assert answers == {T0: LogOffset(0, 10, 4, 9), T1: LogOffset(0, 11, 4, 9), T2: LogOffset(0, 12, 4, 9)}
    assert (one.apis().count(Api.LIST_OFFSETS), two.apis().count(Api.LIST_OFFSETS)) == (1, 1)
    asked = two.asked[-1].message
    assert (asked.replica_id, asked.isolation_level) == (-1, 1)
    assert [(each.partition_index, each.current_leader_epoch) for each in asked.topics[0].partitions] == [
        (1, 6),
        (2, 7),
    ]


async def test_a_partition_that_moved_is_asked_of_its_new_leader(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    one.script[Api.LIST_OFFSETS] = ends({}, {0: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    two.script[Api.LIST_OFFSETS] = ends({0: 10})
    lead(one, two, {0: (2, 6)})
    assert (await latest(cluster, T0))[T0].offset == 10


async def test_a_leader_that_does_not_answer_costs_only_its_own_partitions(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    one.script[Api.LIST_OFFSETS] = ends({0: 10})
    two.script[Api.LIST_OFFSETS] = lambda _: HangUp
    answers = await latest(cluster, T0, T1)
    assert answers[T0].offset == 10
    assert answers[T1] == LogOffset(ErrorCode.NETWORK_EXCEPTION)


async def test_an_unknown_leader_is_looked_up(one: FakeBroker, two: FakeBroker, cluster: Cluster) -> None:
    unknown = TopicPartition("t", 3)
    lead(one, two, {3: (2, 1)})
    two.script[Api.LIST_OFFSETS] = ends({3: 30})
    assert (await latest(cluster, unknown))[unknown].offset == 30


async def test_a_partition_without_a_leader_says_so(cluster: Cluster) -> None:
    nowhere = TopicPartition("no-such-topic", 0)
    assert (await latest(cluster, nowhere))[nowhere] == LogOffset(ErrorCode.LEADER_NOT_AVAILABLE)


async def test_a_partition_that_the_broker_leaves_out_has_an_error(two: FakeBroker, cluster: Cluster) -> None:
    two.script[Api.LIST_OFFSETS] = ends({2: 12})
    answers = await latest(cluster, T1, T2)
    assert answers == {T1: LogOffset(ErrorCode.UNKNOWN_SERVER_ERROR), T2: LogOffset(0, 12, 4, 9)}


async def test_an_error_that_fresh_metadata_cannot_cure_is_told_at_once(two: FakeBroker, cluster: Cluster) -> None:
    two.script[Api.LIST_OFFSETS] = ends({}, {1: ErrorCode.TOPIC_AUTHORIZATION_FAILED})
    assert (await latest(cluster, T1))[T1].error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert two.apis().count(Api.LIST_OFFSETS) == 1


async def test_when_no_broker_is_left_every_partition_has_an_error(
    one: FakeBroker, two: FakeBroker, cluster: Cluster
) -> None:
    await one.stop()
    await two.stop()
    answers = await latest(cluster, T0, T1)
    assert {answer.error for answer in answers.values()} == {ErrorCode.NETWORK_EXCEPTION}


async def test_no_question_needs_no_answer(cluster: Cluster) -> None:
    assert await latest(cluster) == {}


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_end_of_an_epoch_is_asked_of_the_leader(two: FakeBroker, cluster: Cluster, version: int) -> None:
    def answer(asked: Asked) -> Reply:
        topic = nested(RESPONSES[asked.api, asked.version], "topics")
        rows = (blank(nested(topic, "partitions"), partition=1, leader_epoch=3, end_offset=44),)
        return blank_response(asked.api, asked.version, topics=(topic(topic="t", partitions=rows),))

    two.versions[Api.OFFSET_FOR_LEADER_EPOCH] = (2, version)
    two.script[Api.OFFSET_FOR_LEADER_EPOCH] = answer
    assert await epoch_ends(cluster, {T1: 3}, 10.0) == {T1: EpochEnd(0, 3, 44)}
    asked = two.asked[-1].message.topics[0].partitions[0]
    assert (asked.partition, asked.current_leader_epoch, asked.leader_epoch) == (1, 6, 3)
    assert getattr(two.asked[-1].message, "replica_id", -1) == -1


async def test_a_leader_that_does_not_offer_the_api_is_not_one_that_is_away(cluster: Cluster, two: FakeBroker) -> None:
    del two.versions[Api.OFFSET_FOR_LEADER_EPOCH]
    assert await epoch_ends(cluster, {T1: 3}, 10.0) == {T1: EpochEnd(ErrorCode.UNSUPPORTED_VERSION)}
