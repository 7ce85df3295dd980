"""Real Apache Kafka for tests: the judge of everything this project claims about the protocol."""

from tests.kafka.broker import Broker
from tests.kafka.cluster import KafkaCluster

__all__ = ["Broker", "KafkaCluster"]
