"""One of three brokers is frozen under load, its connections open: what waits for it must not cost the membership."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from threading import Event
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.service.under_load import BROKER_SETTINGS, FENCED, PROTOCOLS, SceneMaker, silence, under_load

Settings = Mapping[str, Mapping[str, Any]]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    with KafkaCluster(brokers=3, overrides=BROKER_SETTINGS) as cluster:
        yield cluster
        # A frozen process cannot be asked to end.
        for broker in cluster.brokers:
            broker.thaw()


@PROTOCOLS
def test_a_coordinator_frozen_until_it_is_fenced_and_continued_costs_no_rebalance(
    three: KafkaCluster, scene: SceneMaker, protocol: Settings
) -> None:
    """The frozen node stays in everybody's metadata until it is fenced: whoever asks it waits in vain."""
    with under_load(scene, three, protocol) as group:
        victim = group.coordinator()
        with silence(group, "coordinator frozen", FENCED):
            victim.freeze()
            group.wait_coordinator(other_than=victim)
        group.wait_handled(200)
        with silence(group, "former coordinator continued", 15.0):
            victim.thaw()
            three.wait_until_whole()
        group.assert_no_rebalance()


@PROTOCOLS
@pytest.mark.parametrize("seconds", [6.0, 20.0])
def test_a_frozen_follower_of_the_offsets_holds_up_commits_and_nothing_else(
    three: KafkaCluster, scene: SceneMaker, protocol: Settings, seconds: float
) -> None:
    """The coordinator holds commits until all replicas in sync have them; heartbeats meet error 15 meanwhile."""
    with under_load(scene, three, protocol) as group:
        victim = next(broker for broker in three.brokers if broker is not group.coordinator())
        with silence(group, f"follower frozen for {seconds:g} s", 20.0):
            victim.freeze()
            Event().wait(seconds)
            victim.thaw()
            three.wait_until_whole()
        group.assert_no_rebalance()
