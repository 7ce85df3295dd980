"""Offsets that no handler ever sees: transaction markers, aborted records, compacted ones. None may remain as lag."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.demo.check import Audit
from kunicorn.topics import TopicPartition
from tests.kafka import KafkaCluster
from tests.system.members import Members
from tests.system.producing import committed_offsets, end_offsets, produce
from tests.waiting import wait_until

OFTEN = {"commit_interval_ms": 200}


def transaction(bootstrap: str, topic: str, records: int, *, commit: bool) -> None:
    """So many records to partition 0 in one transaction, and its end."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, b"x", key=b"%d" % number, partition=0)
    producer.flush(30)
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


@pytest.mark.parametrize(
    ("isolation", "handled"),
    [
        # 50 committed and their marker, 30 aborted and theirs.
        ("read_committed", range(50)),
        ("read_uncommitted", [*range(50), *range(51, 81)]),
    ],
)
def test_behind_an_aborted_transaction_at_the_tail_the_lag_reaches_zero(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members], isolation: str, handled: list[int]
) -> None:
    kafka.create_topic(topic)
    transaction(kafka.bootstrap, topic, 50, commit=True)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    assert end_offsets(kafka.bootstrap, topic, 1) == {TopicPartition(topic, 0): 82}
    members = members_of(kafka.bootstrap, topic, settings={"kafka": {"isolation_level": isolation}, "group": OFTEN})
    member = members.start()
    member.wait(lambda: member.lag() == 0, "lag 0")
    assert [p["position"] for p in member.partitions()] == [82]
    assert member.stop() == 0
    assert committed_offsets(kafka.bootstrap, topic, topic, 1) == {TopicPartition(topic, 0): 82}
    report = Audit(members.audit).check({TopicPartition(topic, 0): handled})
    assert report.holds, report


def test_an_open_transaction_is_not_lag_until_it_ends(
    kafka: KafkaCluster, topic: str, members_of: Callable[..., Members]
) -> None:
    """The log's end is the last stable offset to a reader of committed records only."""
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, 10)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    members = members_of(kafka.bootstrap, topic, settings={"kafka": {"isolation_level": "read_committed"}, "group": OFTEN})
    member = members.start()
    member.wait(lambda: member.lag() == 0, "lag 0")
    assert [(p["position"], p["log_end"]) for p in member.partitions()] == [(10, 10)]
    producer.commit_transaction(30)
    member.wait(lambda: [p["position"] for p in member.partitions()] == [12], "the record and its marker")
    assert member.stop() == 0
    report = Audit(members.audit).check({TopicPartition(topic, 0): range(11)})
    assert report.holds, report


def test_a_compacted_log_is_handled_to_its_end(
    kafka_factory: Callable[..., KafkaCluster], topic: str, members_of: Callable[..., Members]
) -> None:
    kafka = kafka_factory(overrides={"log.cleaner.backoff.ms": 100})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    kafka.create_topic(topic, config=config)
    produce(kafka.bootstrap, topic, 20_000)
    end = end_offsets(kafka.bootstrap, topic, 1)[TopicPartition(topic, 0)]
    left = wait_until(lambda: offsets_left(kafka.bootstrap, topic, end), "a compacted log", 30, every=0.5)
    members = members_of(kafka.bootstrap, topic, settings={"group": OFTEN})
    member = members.start()
    member.wait(lambda: member.lag() == 0, "lag 0")
    assert member.stop() == 0
    assert committed_offsets(kafka.bootstrap, topic, topic, 1) == {TopicPartition(topic, 0): end}
    report = Audit(members.audit).check({TopicPartition(topic, 0): left})
    assert report.holds, report


def offsets_left(bootstrap: str, topic: str, end: int) -> list[int]:
    """What another consumer still finds of partition 0; empty while nothing has been compacted away."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "left", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([Coordinates(topic, 0, 0)])
    found: list[int] = []
    try:
        while not found or found[-1] < end - 1:
            found += [offset for message in consumer.consume(1_000, 1) if (offset := message.offset()) is not None]
    finally:
        consumer.close()
    return found if len(found) < end else []
