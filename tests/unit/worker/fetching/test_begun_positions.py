"""What librdkafka is told of where a partition begins: where it seeks it holds the leader epoch against the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.librdkafka import begin
from kunicorn.positions import Position, TopicPartition
from kunicorn.worker.fetching.client import Librdkafka

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Consumer:
    """Refuses the first of its seeks, with that code."""

    def __init__(self, refused: int = 0, code: int = KafkaError._STATE) -> None:
        self.assigned: set[TopicPartition] = set()
        self.sought: list[tuple[TopicPartition, int, int | None]] = []
        self._refused = refused
        self._code = code

    def incremental_assign(self, partitions: Sequence[ClientPartition]) -> None:
        self.assigned |= {TopicPartition(each.topic, each.partition) for each in partitions}

    def incremental_unassign(self, partitions: Sequence[ClientPartition]) -> None:
        self.assigned -= {TopicPartition(each.topic, each.partition) for each in partitions}

    def seek(self, partition: ClientPartition) -> None:
        if self._refused:
            self._refused -= 1
            raise KafkaException(KafkaError(self._code))
        self.sought.append(
            (TopicPartition(partition.topic, partition.partition), partition.offset, partition.leader_epoch)
        )


def librdkafka(consumer: Any) -> Librdkafka:
    return Librdkafka(consumer, consumer, consumer)


def test_where_the_epoch_of_a_position_is_known_the_client_holds_it_against_the_log() -> None:
    consumer = Consumer()
    librdkafka(consumer).assign({P0: Position(150, 3), P1: Position(7)})
    assert consumer.assigned == {P0, P1}
    assert consumer.sought == [(P0, 150, 3)]


def test_a_partition_that_has_not_begun_yet_is_sought_in_again() -> None:
    # Others that were unassigned just before have not ended yet.
    consumer = Consumer(refused=2)
    librdkafka(consumer).assign({P0: Position(150, 3)})
    assert consumer.sought == [(P0, 150, 3)]


@pytest.mark.parametrize("code", [KafkaError._STATE, KafkaError._FATAL], ids=["for too long", "at once"])
def test_none_is_taken_where_one_cannot_be_looked_at(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "_BEGUN_WITHIN", -1.0)
    consumer = Consumer(refused=1, code=code)
    with pytest.raises(KafkaException):
        librdkafka(consumer).assign({P0: Position(150, 3), P1: Position(7)})
    assert not consumer.assigned
