"""Topics of many partitions: partitions have a leader long before they have a log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TopicPartition as Coordinates
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

MOST_AT_ONCE = 5_000
"""Partitions; the controller refuses an operation of more than 10,000 records (`QuorumController.java`)."""


def create(admin: AdminClient, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Make the topic on one broker, and wait until it has all its logs."""
    new = NewTopic(topic, min(partitions, MOST_AT_ONCE), 1, config=dict(config or {}))
    admin.create_topics([new])[topic].result(60)
    for count in range(2 * MOST_AT_ONCE, partitions + MOST_AT_ONCE, MOST_AT_ONCE):
        grown = NewPartitions(topic, min(count, partitions))
        admin.create_partitions([grown])[topic].result(60)
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    queries = {Coordinates(topic, number): latest for number in range(partitions)}
    while queries:
        answers = admin.list_offsets(queries, request_timeout=10)
        queries = {each: queries[each] for each, answer in answers.items() if answer.exception(30)}
        time.sleep(1.0 if queries else 0.0)
