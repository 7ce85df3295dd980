"""What a Metadata answer changes in what we knew."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from kunicorn.kafka.auth import Address
from kunicorn.kafka.metadata import Broker, Metadata, PartitionInfo, TopicInfo, merge, metadata_from
from kunicorn.kafka.versions import OURS, RESPONSES, Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes.messages import blank, blank_response, nested

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
BROKERS = {1: Broker(1, "a", 9092), 2: Broker(2, "b", 9092, "rack")}


def topic(epoch: int, leader: int = 1, topic_id: uuid.UUID | None = ONE, error: int = 0) -> TopicInfo:
    return TopicInfo("t", topic_id, error, {0: PartitionInfo(leader, epoch)})


def snapshot(*topics: TopicInfo) -> Metadata:
    return Metadata(BROKERS, {each.name: each for each in topics}, "cluster")


@pytest.mark.parametrize("version", range(OURS[Api.METADATA].low, OURS[Api.METADATA].high + 1))
def test_an_answer_of_every_version_is_understood(version: int) -> None:
    schema = RESPONSES[Api.METADATA, version]
    rows = nested(schema, "topics")
    partition = blank(nested(rows, "partitions"), partition_index=3, leader_id=2, leader_epoch=7, error_code=9)
    partition = replace(partition, replica_nodes=(2, 1))
    ids = {"topic_id": ONE} if version >= 10 else {}
    message = blank_response(
        Api.METADATA,
        version,
        brokers=(blank(nested(schema, "brokers"), node_id=2, host="b", port=9092, rack="rack"),),
        cluster_id="cluster",
        topics=(blank(rows, name="t", error_code=5, partitions=(partition,), **ids),),
    )
    metadata = metadata_from(message)
    assert metadata.brokers == {2: BROKERS[2]}
    assert metadata.topics == {"t": TopicInfo("t", ids.get("topic_id"), 5, {3: PartitionInfo(2, 7, 9, (2, 1))})}
    assert metadata.cluster_id == "cluster"
    assert metadata.leader(TopicPartition("t", 3)) == (2, 7)


def test_nulls_and_topics_without_a_name_are_no_trouble() -> None:
    nameless = blank(nested(RESPONSES[Api.METADATA, 12], "topics"), name=None, partitions=None)
    message = blank_response(Api.METADATA, 12, brokers=None, topics=(nameless,))
    assert metadata_from(message) == Metadata()


@pytest.mark.parametrize("host", ["", None])
def test_a_broker_without_a_host_is_not_this_machine(host: str | None) -> None:
    row = nested(RESPONSES[Api.METADATA, 12], "brokers")
    message = blank_response(Api.METADATA, 12, brokers=(row(node_id=1, host=host, port=9092),))
    assert metadata_from(message).brokers == {}


def test_unknown_partitions_have_no_leader() -> None:
    assert snapshot(topic(1)).leader(TopicPartition("t", 9)) == (-1, -1)
    assert snapshot().leader(TopicPartition("t", 0)) == (-1, -1)


@pytest.mark.scenario("0146 metadata")
def test_a_broker_that_lags_behind_does_not_bring_back_an_old_leader() -> None:
    assert merge(snapshot(topic(5, leader=2)), snapshot(topic(4, leader=1)), ["t"]).topics["t"] == topic(5, leader=2)


def test_a_newer_or_equal_epoch_is_taken() -> None:
    assert merge(snapshot(topic(5)), snapshot(topic(6, leader=2)), ["t"]).topics["t"] == topic(6, leader=2)
    assert merge(snapshot(topic(5)), snapshot(topic(5, leader=-1)), ["t"]).topics["t"] == topic(5, leader=-1)


def test_an_unknown_epoch_is_taken() -> None:
    assert merge(snapshot(topic(5)), snapshot(topic(-1, leader=2)), ["t"]).topics["t"] == topic(-1, leader=2)


def test_a_topic_made_anew_starts_over_with_its_epochs() -> None:
    assert merge(snapshot(topic(5)), snapshot(topic(0, topic_id=TWO)), ["t"]).topics["t"] == topic(0, topic_id=TWO)


@pytest.mark.scenario("0146 metadata")
def test_an_empty_list_of_brokers_is_ignored() -> None:
    assert merge(snapshot(), Metadata(), None).brokers == BROKERS


@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_deleted_topic_stays_as_an_error_without_partitions(error: int) -> None:
    merged = merge(snapshot(topic(5)), snapshot(TopicInfo("t", None, error)), ["t"])
    assert merged.topics["t"] == TopicInfo("t", None, error, {})


def test_a_topic_in_trouble_keeps_its_partitions() -> None:
    trouble = TopicInfo("t", None, ErrorCode.LEADER_NOT_AVAILABLE)
    merged = merge(snapshot(topic(5)), snapshot(trouble), ["t"]).topics["t"]
    assert merged == replace(topic(5), error=ErrorCode.LEADER_NOT_AVAILABLE)


def test_topics_that_were_not_asked_for_stay() -> None:
    other = replace(topic(1), name="other")
    assert set(merge(snapshot(topic(5), other), snapshot(topic(6)), ["t"]).topics) == {"t", "other"}


def test_after_asking_for_all_topics_the_missing_ones_are_gone() -> None:
    other = replace(topic(1), name="other")
    assert set(merge(snapshot(topic(5), other), snapshot(topic(6)), None).topics) == {"t"}


def test_partitions_added_to_a_topic_appear() -> None:
    grown = TopicInfo("t", ONE, 0, {0: PartitionInfo(1, 5), 1: PartitionInfo(2, 0)})
    assert set(merge(snapshot(topic(5)), snapshot(grown), ["t"]).topics["t"].partitions) == {0, 1}


def test_an_address_prints_as_it_is_written() -> None:
    assert str(Broker(1, "a", 9092).address) == "a:9092"
    assert str(Address("::1", 9092)) == "[::1]:9092"


def test_the_racks_of_a_partition_are_those_of_the_brokers_that_hold_it() -> None:
    brokers = {**BROKERS, 3: Broker(3, "c", 9092, "other")}
    partitions = {
        0: PartitionInfo(1, 1, 0, (1, 2)),
        1: PartitionInfo(2, 1, 0, (2, 3)),
        2: PartitionInfo(1, 1, 0, (1, 9)),
    }
    metadata = Metadata(brokers, {"t": TopicInfo("t", ONE, 0, partitions)})
    assert metadata.racks(["t", "unknown"]) == {
        TopicPartition("t", 0): frozenset({"rack"}),
        TopicPartition("t", 1): frozenset({"rack", "other"}),
        TopicPartition("t", 2): frozenset(),
    }


def test_a_broker_that_is_down_has_its_replicas_in_the_rack_that_it_told_last() -> None:
    partitions = {0: PartitionInfo(2, 1, 0, (2, 3))}
    there = TopicInfo("t", ONE, 0, partitions)
    two, three = BROKERS[2], Broker(3, "c", 9092, "other")
    told = merge(Metadata(), Metadata({2: two, 3: three}, {"t": there}), ["t"])
    down = merge(told, Metadata({2: two}, {"t": there}), ["t"])
    assert set(down.brokers) == {2}, "nobody is to connect to it"
    assert down.racks(["t"]) == told.racks(["t"])
    moved = Metadata({2: two, 3: replace(three, rack="third")}, {"t": there})
    assert merge(down, moved, ["t"]).racks(["t"]) != told.racks(["t"]), "it came back elsewhere"
    without = Metadata({2: two, 3: replace(three, rack=None)}, {"t": there})
    assert merge(down, without, ["t"]).racks(["t"]) == {TopicPartition("t", 0): frozenset({"rack"})}


def test_without_racks_there_is_nothing_to_plan_by() -> None:
    metadata = Metadata({1: BROKERS[1]}, {"t": TopicInfo("t", ONE, 0, {0: PartitionInfo(1, 1, 0, (1,))})})
    assert metadata.racks(["t"]) == {}


def test_kafkas_own_topics_are_told_from_others() -> None:
    row = blank(nested(RESPONSES[Api.METADATA, 12], "topics"), name="__consumer_offsets", is_internal=True)
    assert metadata_from(blank_response(Api.METADATA, 12, topics=(row,))).topics["__consumer_offsets"].is_internal
