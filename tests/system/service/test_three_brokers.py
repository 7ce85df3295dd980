"""One of three brokers dies or is restarted under load: nobody rebalances, nothing is lost or handled twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka import KafkaCluster
from tests.system.service.under_load import (
    BROKER_SETTINGS,
    FENCED,
    PROTOCOLS,
    SceneMaker,
    Settings,
    silence,
    under_load,
)


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(brokers=3, overrides=BROKER_SETTINGS) as cluster:
        yield cluster


@pytest.mark.long
@PROTOCOLS
@pytest.mark.scenario("test_broker_failure", "0143 test_heartbeat_find_coordinator", "0147 retriable")
def test_a_killed_coordinator_costs_no_rebalance(three: KafkaCluster, scene: SceneMaker, protocol: Settings) -> None:
    with under_load(scene, three, protocol) as group:
        victim = group.coordinator()
        with silence(group, "coordinator killed", FENCED):
            victim.kill()
            group.wait_coordinator(other_than=victim)
        victim.start()
        group.wait_handled(200)
        group.assert_no_rebalance()


@pytest.mark.long
@PROTOCOLS
@pytest.mark.scenario("test_broker_rolling_bounce")
def test_brokers_restarted_one_by_one_cost_no_rebalance(
    three: KafkaCluster, scene: SceneMaker, protocol: Settings
) -> None:
    with under_load(scene, three, protocol) as group:
        for broker in three.brokers:
            with silence(group, f"broker {broker.id} restarted", 15.0):
                broker.stop()
                broker.start()
                three.wait_until_whole()
        group.assert_no_rebalance()
