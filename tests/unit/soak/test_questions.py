"""What a leg asks of brokers that have just come back."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.positions import TopicPartition
from tests.system import producing


class Client:
    """The first one is never answered, as one that knew a coordinator before its restart."""

    made = 0

    def __init__(self, _: dict[str, Any]) -> None:
        Client.made += 1
        self.is_stale = Client.made == 1

    def list_consumer_group_offsets(
        self, wanted: list[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """As `AdminClient` has it."""
        answer: Future[ConsumerGroupTopicPartitions] = Future()
        if self.is_stale:
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            answer.set_result(ConsumerGroupTopicPartitions("g", [Coordinates("t", 0, 7)]))
        return {"g": answer}


def test_another_client_asks_where_one_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two legs in transactions ended so, each behind a restart of its brokers.
    monkeypatch.setattr(producing, "AdminClient", Client)
    assert producing.committed_offsets("brokers of this test", "g", "t", 1) == {TopicPartition("t", 0): 7}
    assert Client.made == 2
