"""The consumer in memory and confluent-kafka's own, whose place it takes: one behaviour, for what workers use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Message, Producer, TopicPartition

from kunicorn.commands.demo.mock_cluster import mock_cluster_process
from kunicorn.testing import record
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, message_of, placed
from tests.waiting import wait_until

VALUES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with mock_cluster_process([("orders", 2)]) as address:
        producer = Producer({"bootstrap.servers": address, "log_level": 0})
        for partition in range(2):
            for value in VALUES:
                producer.produce("orders", value.encode(), partition=partition)
        assert producer.flush(60) == 0
        yield address


@pytest.fixture(params=["memory", "confluent"])
def consumer(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        records = placed([record(v, partition=p) for p in range(2) for v in VALUES], "orders")
        yield MemoryConsumer(MemoryLog(map(message_of, records)), lambda seconds: None)
        return
    address = request.getfixturevalue("bootstrap")
    own = {"auto.offset.reset": "error", "enable.auto.commit": False, "log_level": 0}
    made = Consumer({"bootstrap.servers": address, "group.id": "contract", **own})
    yield made
    made.close()


def fetch(consumer: Any, count: int) -> list[tuple[int | None, int | None]]:
    """So many records' partitions and offsets, sorted."""
    found: list[Message] = []

    def enough() -> bool:
        found.extend(consumer.consume(count - len(found), 0.2))
        return len(found) == count

    wait_until(enough, f"{count} records")
    return sorted((message.partition(), message.offset()) for message in found)


def position(consumer: Any, partition: int) -> int:
    (found,) = consumer.position([TopicPartition("orders", partition)])
    offset: int = found.offset
    return offset


def test_an_assignment_fetches_from_its_offset_on_and_the_position_follows(consumer: Any) -> None:
    consumer.incremental_assign([TopicPartition("orders", 0, 1)])
    assert position(consumer, 0) == OFFSET_INVALID
    assert fetch(consumer, 2) == [(0, 1), (0, 2)]
    assert position(consumer, 0) == 3
    assert consumer.poll(0.01) is None


def test_what_is_unassigned_is_not_fetched_and_an_assignment_further_back_repeats(consumer: Any) -> None:
    consumer.incremental_assign([TopicPartition("orders", 0, 0), TopicPartition("orders", 1, 0)])
    assert len(fetch(consumer, 6)) == 6
    consumer.incremental_unassign([TopicPartition("orders", 0)])
    wait_until(lambda: position(consumer, 0) == OFFSET_INVALID, "its position to be forgotten")
    consumer.incremental_assign([TopicPartition("orders", 0, 1)])
    assert position(consumer, 0) == OFFSET_INVALID
    assert fetch(consumer, 2) == [(0, 1), (0, 2)]


def test_what_is_assigned_is_not_assigned_again_nor_unassigned_twice(consumer: Any) -> None:
    consumer.incremental_assign([TopicPartition("orders", 0, 0)])
    with pytest.raises(KafkaException):
        consumer.incremental_assign([TopicPartition("orders", 0, 0)])
    consumer.incremental_unassign([TopicPartition("orders", 0)])
    with pytest.raises(KafkaException):
        consumer.incremental_unassign([TopicPartition("orders", 0)])


def test_messages_tell_the_same(consumer: Any) -> None:
    consumer.incremental_assign([TopicPartition("orders", 0, 0)])
    message = wait_until(lambda: consumer.poll(0.2), "a record")
    told = (message.topic(), message.partition(), message.offset(), message.value(), message.key(), message.error())
    assert told == ("orders", 0, 0, b"a", None, None)
    assert not message.headers()


def test_a_partition_that_is_paused_goes_on_behind_its_last_record_when_it_is_resumed(consumer: Any) -> None:
    consumer.incremental_assign([TopicPartition("orders", 0, 0)])
    assert fetch(consumer, 1) == [(0, 0)]
    consumer.pause([TopicPartition("orders", 0)])
    consumer.incremental_assign([TopicPartition("orders", 1, 0)])
    assert fetch(consumer, 3) == [(1, 0), (1, 1), (1, 2)], "what the client had fetched of the other is thrown away"
    assert consumer.consume(1, 0.2) == []
    consumer.resume([TopicPartition("orders", 0)])
    assert fetch(consumer, 2) == [(0, 1), (0, 2)]
