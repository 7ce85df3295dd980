"""Topics that are deleted and created anew."""

from __future__ import annotations

from tests.kafka import KafkaCluster
from tests.system.producing import produce
from tests.waiting import wait_until


def recreate(kafka: KafkaCluster, topic: str, records: int) -> None:
    """Another topic by that name, with so many records on its one partition."""
    kafka.admin().delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in kafka.admin().list_topics(timeout=60).topics, "the topic to be gone")
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, records, value=b"new")
