"""Real brokers for tests, and the tools that judge image, chart and alerts. What cannot be had fails the test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import Tools
from tests.deploy.tools import tools as fetched
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import Templates, shared_templates
from tests.system.members import Members, group_settings, merged

_numbers = count(1)

SHORT_SESSIONS = {"group.consumer.min.session.timeout.ms": 6000, "group.consumer.session.timeout.ms": 6000}
"""With the consumer protocol the brokers decide after how long a silent member is missed; classic members say so."""

USUAL_SESSIONS = {"group.consumer.session.timeout.ms": 45_000}
"""Kafka's default, for tests that restart what a short session would not wait for."""


def asked_for(
    config: pytest.Config, overrides: Mapping[str, object] | None = None, version: str | None = None
) -> dict[str, Any]:
    """The brokers that the command line asks for, where a test does not."""
    consumer = config.getoption("--group-protocol") == "consumer"
    return {
        "version": version or config.getoption("--kafka-version"),
        "overrides": {**(SHORT_SESSIONS if consumer else {}), **(overrides or {})},
    }


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """One broker for all tests; whoever stops or freezes brokers asks `kafka_factory` for some of its own."""
    with KafkaCluster(**asked_for(pytestconfig)) as cluster:
        yield cluster


@pytest.fixture
def kafka_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., KafkaCluster]]:
    """Starts clusters that live until the test ends: `kafka_factory(brokers=3, overrides={...})`."""
    with ExitStack() as clusters:

        def make(
            brokers: int = 1, *, overrides: Mapping[str, object] | None = None, version: str | None = None
        ) -> KafkaCluster:
            return clusters.enter_context(KafkaCluster(brokers, **asked_for(pytestconfig, overrides, version)))

        yield make


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Helm 3 and 4, promtool, Prometheus, hadolint, jemalloc and the schemas of Kubernetes."""
    return fetched()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the test creates it, with the partitions it needs."""
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", request.node.name)[:100]
    return f"{name}-{next(_numbers)}"


@pytest.fixture
def members_with(tmp_path: Path) -> Iterator[Callable[..., Members]]:
    """Makes what starts members with the settings of all its parts: `members_with(*parts, env={...})`."""
    with ExitStack() as started:

        def make(*parts: Mapping[str, Mapping[str, Any]] | None, env: Mapping[str, str] | None = None) -> Members:
            members = Members(tmp_path, merged(*filter(None, parts)), env or {})
            started.callback(members.close)
            return members

        yield make


@pytest.fixture
def members_of(members_with: Callable[..., Members]) -> Callable[..., Members]:
    """Makes groups: `members_of(bootstrap, topic, workers=2, settings={...}, env={...})`; the topic names the group."""

    def make(
        bootstrap: str,
        topic: str,
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Members:
        return members_with(group_settings(bootstrap, [topic], topic, **more), settings, env=env)

    return make


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Templates]:
    """What the bare workers of a module's tests are forked from."""
    with shared_templates(tmp_path_factory.mktemp("templates")) as started:
        yield started
