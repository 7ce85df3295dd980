"""The dead-letter topic of a test's worker, and what is in it."""

from __future__ import annotations

from confluent_kafka import Message

from kunicorn.handler.config import DeadLetterTarget
from kunicorn.librdkafka.properties import letter_properties
from tests.kafka import KafkaCluster
from tests.system.producing import consumed


def letters_topic(topic: str) -> str:
    """Where the letters of a test go."""
    return f"{topic}.letters"[-249:]


def letter_target(kafka: KafkaCluster, topic: str, delivery_timeout_ms: int) -> DeadLetterTarget:
    """What a worker is told of it. The topic need not be there."""
    client = letter_properties(
        bootstrap_servers=[kafka.bootstrap],
        client_id="rig",
        security={},
        extra={},
        delivery_timeout_ms=delivery_timeout_ms,
    )
    return DeadLetterTarget(letters_topic(topic), "rig", client)


def letters(kafka: KafkaCluster, topic: str, count: int) -> list[Message]:
    """The dead letters there are, so many."""
    return consumed(kafka.bootstrap, letters_topic(topic), count)
