"""Real Apache Kafka for tests: the judge of everything this project claims about the protocol."""

from tests.kafka.broker import AS_SHIPPED, SMALL, Broker
from tests.kafka.cluster import KafkaCluster
from tests.kafka.proxied import ProxiedCluster

__all__ = ["AS_SHIPPED", "SMALL", "Broker", "KafkaCluster", "ProxiedCluster"]
