"""The broker that all are measured beside: as most people run it, or as the tests do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.kafka import AS_SHIPPED, SMALL, KafkaCluster
from tests.kafka.properties import AS_KAFKA_SHIPS


class Kind(NamedTuple):
    """How a broker is started, the section that figures beside it go to, and what that says of it."""

    flags: Sequence[str]
    settings: Mapping[str, object]
    title: str
    told: str

    def cluster(self) -> KafkaCluster:
        """One such broker, not started."""
        return KafkaCluster(jvm=self.flags, overrides=self.settings)


SHIPPED, LITTLE = "shipped", "small"
KINDS = {
    SHIPPED: Kind(
        AS_SHIPPED, AS_KAFKA_SHIPS, "Beside every peer", "the settings and JVM flags that Kafka ships (C2, G1, 1 GB)"
    ),
    LITTLE: Kind(
        SMALL, {}, "Beside every peer, the broker with a small JVM", "a small JVM (C1, serial collector, 512 MB)"
    ),
}
