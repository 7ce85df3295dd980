"""Topics that are deleted and created anew."""

from __future__ import annotations

from tests.kafka import KafkaCluster
from tests.system.producing import produce


def recreate(kafka: KafkaCluster, topic: str, records: int) -> None:
    """Another topic by that name, with so many records on its one partition."""
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, records, value=b"new")
