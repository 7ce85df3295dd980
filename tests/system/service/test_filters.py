"""Filters, and an age, before each way of calling a handler, in a real service: what comes through is handled once, all
of it is committed, and what does not come through is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from kunicorn.commands.demo.judge import Audit
from kunicorn.positions import TopicPartition
from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.members import MemberProcess, Members
from tests.system.producing import committed_offsets, end_offsets

PARTITIONS, RECORDS = 2, 1000
LONG_AGO = 1_700_000_000_000
"""Milliseconds since 1970."""
WAYS: Mapping[str, dict[str, Any]] = {
    "records": {"entrypoint": "tests.system.handlers.audited:handle"},
    "batches": {"entrypoint": "tests.system.handlers.audited:handle_batch", "mode": "batch"},
    "threads": {"entrypoint": "tests.system.handlers.audited:handle", "concurrency": 8},
    "tasks": {"entrypoint": "tests.system.handlers.audited:handle_async"},
    "columns": {"entrypoint": "kunicorn.commands.demo.columnar:handle", "mode": "arrow"},
}
FILTERS = """
[[handler.filters]]
name = "wanted"
on = "header:type"
one_of = ["order"]
"""


IN_CI = {"records", "columns"}
"""The filter of a handler wraps its form: `tests/unit/handler/test_filter.py` has each."""


def counted(member: MemberProcess, by: str) -> float:
    """Records that the filter of that name has dropped, as /metrics says."""
    return member.metric("kunicorn_filtered_records_total", filter=by)


@pytest.mark.parametrize("way", rest_long(WAYS, IN_CI))
def test_what_comes_through_is_handled_once_and_the_rest_is_counted_and_committed(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], way: str
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    wanted: dict[TopicPartition, Collection[int]] = {}
    for partition in range(PARTITIONS):
        for number in range(RECORDS):
            kind = "order" if number % 3 == 0 else "refund"
            at = LONG_AGO if number % 15 == 0 else int(time.time() * 1000)
            producer.produce(topic, str(number), headers={"type": kind}, partition=partition, timestamp=at)
        # The last record of each partition does not come through: its offset is committed nevertheless.
        wanted[TopicPartition(topic, partition)] = set(range(0, RECORDS, 3)) - set(range(0, RECORDS, 15))
        producer.produce(topic, "last", partition=partition)
    assert producer.flush(60) == 0
    settings = {"handler": {**WAYS[way], "max_age_ms": 86_400_000}, "group": {"commit_interval_ms": 500}}
    members = members_of(kafka.bootstrap, topic, workers=2, settings=settings)
    member = members.start(more=FILTERS)
    too_old = PARTITIONS * len(range(0, RECORDS, 15))
    unwanted = PARTITIONS * (RECORDS + 1) - sum(map(len, wanted.values())) - too_old
    member.wait(lambda: counted(member, "wanted") == unwanted, "all filtered records counted")
    member.wait(lambda: counted(member, "max_age_ms") == too_old, "all that are too old counted")
    ends = end_offsets(kafka.bootstrap, topic, PARTITIONS)
    member.wait(lambda: committed_offsets(kafka.bootstrap, topic, topic, PARTITIONS) == ends, "the commits")
    assert member.stop() == 0
    report = Audit(members.audit).check(wanted, ())
    assert report.holds, report
    assert report.repeated == ()
