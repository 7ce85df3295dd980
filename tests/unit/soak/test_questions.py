"""What a leg asks of brokers that have just come back."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Coordinates

from kunicorn.positions import TopicPartition
from tests.system import producing


@dataclass
class Coordinator:
    """Leaves the first question unanswered."""

    asked: int = field(default=0, init=False)

    def list_consumer_group_offsets(
        self, wanted: list[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """As `AdminClient` has it."""
        self.asked += 1
        answer: Future[ConsumerGroupTopicPartitions] = Future()
        if self.asked == 1:
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        else:
            answer.set_result(ConsumerGroupTopicPartitions("g", [Coordinates("t", 0, 7)]))
        return {"g": answer}


def test_a_coordinator_that_leaves_a_question_unanswered_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # A leg over the consumer protocol ended so, behind a restart of its brokers.
    coordinator = Coordinator()
    monkeypatch.setattr(producing, "_admin", lambda _: coordinator)
    assert producing.committed_offsets("brokers", "g", "t", 1) == {TopicPartition("t", 0): 7}
    assert coordinator.asked == 2
