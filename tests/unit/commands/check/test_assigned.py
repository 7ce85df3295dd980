"""What `kunicorn check` says of [assign], which the service looks at when it knows the topics."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.commands.check.cluster import assigned
from kunicorn.errors import ConfigError, ExitCode
from kunicorn.kafka.metadata import Metadata, PartitionInfo, TopicInfo
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from kunicorn.settings.assign import AssignSettings, existing

ORDERS = Metadata(
    {}, {"orders": TopicInfo("orders", partitions={number: PartitionInfo(number) for number in range(3)})}
)


@pytest.mark.parametrize(
    ("assign", "said"),
    [
        (
            {"partitions": ["orders:2-3"]},
            "assign.partitions: orders:3 do not exist: correct the numbers; orders has 0-2",
        ),
        (
            {"partitions": ["ordres:0"]},
            "assign.partitions: ordres:0 do not exist: correct the numbers; ordres has no partition",
        ),
        (
            {"partitions": ["orders"], "start": {"orders:0": 12, "orders:1": 7}},
            "assign.start has no offset for orders:2: add it, no start offset is guessed",
        ),
        (
            {"partitions": ["orders"], "start": {f"orders:{number}": 0 for number in range(4)}},
            "assign.start: orders:3 do not exist: correct the numbers",
        ),
    ],
    ids=[
        "a partition that is not there",
        "one of a topic that is not there",
        "a partition without a start",
        "a start of none",
    ],
)
def test_what_would_end_the_service_is_found_and_told_as_the_service_would(assign: dict[str, Any], said: str) -> None:
    named = AssignSettings.model_validate(assign)
    with pytest.raises(ConfigError) as told:
        existing(named, [TopicPartition("orders", number) for number in range(3)])
    finding = assigned(named, ORDERS)
    assert str(told.value) == said
    assert (finding.failure, finding.text) == (ExitCode.CONFIGURATION, said)


@pytest.mark.parametrize(
    "assign",
    [
        {"partitions": ["orders"]},
        {"partitions": ["orders"], "start": {f"orders:{number}": 0 for number in range(3)}},
        {"partitions": ["orders:1"], "start": {"orders:1": 0}},
    ],
)
def test_partitions_that_are_there_and_have_their_starts_are_fine(assign: dict[str, Any]) -> None:
    assert assigned(AssignSettings.model_validate(assign), ORDERS).failure is None


@pytest.mark.parametrize(
    ("error", "passes"), [(ErrorCode.LEADER_NOT_AVAILABLE, True), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)]
)
def test_partitions_of_a_topic_that_is_just_made_are_waited_for(error: ErrorCode, passes: bool) -> None:
    metadata = Metadata({}, {"orders": TopicInfo("orders", error=error)})
    found = assigned(AssignSettings.model_validate({"partitions": ["orders:0"]}), metadata)
    assert (found.failure, found.passes) == (ExitCode.CONFIGURATION, passes)
