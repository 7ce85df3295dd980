"""Real Apache Kafka for tests: the judge of everything this project claims about the protocol."""

from tests.kafka.cluster import Broker, KafkaCluster

__all__ = ["Broker", "KafkaCluster"]
