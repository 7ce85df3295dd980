"""Which of the cluster's topics `kunicorn check` takes for those of the service."""

from __future__ import annotations

import pytest

from kunicorn.commands.check.cluster import _topic, _written, consumed
from kunicorn.errors import ExitCode
from kunicorn.kafka.metadata import Metadata, PartitionInfo, TopicInfo
from kunicorn.kafka_errors import ErrorCode

OFFSETS = "__consumer_offsets"


def cluster() -> Metadata:
    partitions = {number: PartitionInfo(number) for number in range(3)}
    topics = (
        TopicInfo("orders", partitions=partitions),
        TopicInfo("refused", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partitions=partitions),
        TopicInfo("just-made", error=ErrorCode.LEADER_NOT_AVAILABLE),
        TopicInfo(OFFSETS, partitions=partitions, is_internal=True),
    )
    return Metadata({}, {topic.name: topic for topic in topics})


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["^.*"], {"orders": 3}),
        (["^.*", OFFSETS], {"orders": 3, OFFSETS: 3}),
        ([OFFSETS], {OFFSETS: 3}),
        (["orders", "nowhere"], {"orders": 3}),
    ],
)
def test_kafkas_own_topics_are_had_by_name_alone_as_the_service_has_them(
    wanted: list[str], found: dict[str, int]
) -> None:
    assert consumed(wanted, cluster()) == found


def test_a_pattern_does_not_say_that_it_matches_kafkas_own() -> None:
    assert _topic("^.*", cluster()).text == "^.* matches orders (3 partitions)"


@pytest.mark.parametrize(("topic", "passes"), [("just-made", True), ("refused", False), ("nowhere", False)])
def test_a_topic_that_is_just_made_is_waited_for_and_one_that_ends_a_start_is_not(topic: str, passes: bool) -> None:
    for finding in (_topic(topic, cluster()), _written(topic, cluster(), "", "dead_letters.topic")):
        assert (finding.failure, finding.passes) == (ExitCode.CONFIGURATION, passes)
