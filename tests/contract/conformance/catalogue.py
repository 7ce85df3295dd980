"""All scenarios, by name and by the client whose tests play them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.contract.conformance import fetching, java, librdkafka, peers
from tests.contract.conformance.scenario import Scenario

SUITES: Mapping[str, tuple[Scenario, ...]] = {
    "Kafka: Java consumer and group coordinator": java.SCENARIOS,
    "Kafka: Java consumer's fetching": fetching.JAVA,
    "librdkafka": (*librdkafka.SCENARIOS, *fetching.LIBRDKAFKA),
    "franz-go": (*peers.FRANZ_GO, *fetching.FRANZ_GO),
    "aiokafka": peers.AIOKAFKA,
    "Kafka: system and integration tests": peers.KAFKA_SYSTEM,
}

SCENARIOS: Mapping[str, Scenario] = {each.name: each for suite in SUITES.values() for each in suite}
