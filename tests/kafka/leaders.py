"""Questions to the leaders of a topic's partitions, by a client that may have last heard of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.waiting import wait_until

T = TypeVar("T")

_MOVED = frozenset(
    {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
)


def answers_of_leaders(
    admin: AdminClient, topic: str, ask: Callable[[], Mapping[TopicPartition, Future[T]]]
) -> dict[int, T]:
    """By partition, what the leaders answer. The client asks those that it has last heard of, and brokers that were
    restarted get theirs back minutes later: it hears of them first, and is asked again where they have moved since.
    """

    def answered() -> dict[int, T] | None:
        admin.list_topics(topic, timeout=60)
        try:
            return {place.partition: answer.result(60) for place, answer in ask().items()}
        except KafkaException as error:
            if error.args[0].code() not in _MOVED:
                raise
            return None

    return wait_until(answered, f"an answer of the leaders of {topic}", 120, 0.5)
