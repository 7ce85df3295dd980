"""One scenario from its namespace to its figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.kafka.artifacts import KafkaUnavailable
from tests.kubernetes.brokers import Brokers, SecuredBrokers
from tests.kubernetes.cluster import Refused
from tests.kubernetes.needs import missing
from tests.kubernetes.scenarios import SCENARIOS, Scenario
from tests.kubernetes.scene import Given, Scene
from tests.kubernetes.verdict import Figures, judge

Tell = Callable[[str], None]


def run(given: Given, name: str, directory: Path, tell: Tell) -> Figures:
    """Blocks for minutes. What breaks is in the figures and in what is told; nothing is raised for it."""
    scenario = SCENARIOS[name]
    tell(f"{name}: {scenario.title}")
    if lacking := missing(scenario.needs, given):
        return Figures(name, not_run=", ".join(need.value for need in lacking))
    if not scenario.secured:
        return _played(given, name, scenario, directory, tell)
    assert isinstance(given.brokers, Brokers)
    workdir = directory / f"brokers-{name}"
    workdir.mkdir()
    with SecuredBrokers(workdir, given.brokers.host) as brokers:
        return _played(replace(given, brokers=brokers), name, scenario, directory, tell)


def _played(given: Given, name: str, scenario: Scenario, directory: Path, tell: Tell) -> Figures:
    began = time.monotonic()
    with Scene(given, name, directory, scenario.labels) as scene:
        try:
            scenario.play(scene)
            _end(scene, scenario)
            return judge(scene, name, scenario.repeats, time.monotonic() - began)
        except (AssertionError, Refused, RuntimeError, KafkaUnavailable) as error:
            for release in scene.releases:
                tell(release.told())
            return Figures(name, broken=(str(error) or repr(error),), notes=tuple(scene.notes))


def _end(scene: Scene, scenario: Scenario) -> None:
    """All is handled; then every release goes, and has committed all of it."""
    scene.load.stop()
    if scenario.group:
        scene.wait_whole()
    for release in scene.releases:
        release.uninstall()
    if scenario.group:
        scene.wait_committed()
