"""Real brokers for tests. One that cannot be started fails the test: nothing is skipped silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import KafkaCluster
from tests.system.members import Members, group_settings

_numbers = count(1)


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[KafkaCluster]:
    """One broker for all tests; whoever stops or freezes brokers asks `kafka_factory` for some of its own."""
    with KafkaCluster(version=pytestconfig.getoption("--kafka-version")) as cluster:
        yield cluster


@pytest.fixture
def kafka_factory(pytestconfig: pytest.Config) -> Iterator[Callable[..., KafkaCluster]]:
    """Starts clusters that live until the test ends: `kafka_factory(brokers=3, overrides={...})`."""
    with ExitStack() as clusters:
        version = {"version": pytestconfig.getoption("--kafka-version")}
        yield lambda *args, **kwargs: clusters.enter_context(KafkaCluster(*args, **(version | kwargs)))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the test creates it, with the partitions it needs."""
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", request.node.name)[:100]
    return f"{name}-{next(_numbers)}"


@pytest.fixture
def members_of(tmp_path: Path) -> Iterator[Callable[..., Members]]:
    """Makes groups: `members_of(bootstrap, topic, workers=2, settings={...}, env={...})`; the topic names the group."""
    with ExitStack() as groups:

        def make(
            bootstrap: str,
            topic: str,
            *,
            settings: Mapping[str, Mapping[str, Any]] | None = None,
            env: Mapping[str, str] | None = None,
            **more: Any,
        ) -> Members:
            own = group_settings(bootstrap, [topic], topic, **more)
            for section, values in (settings or {}).items():
                own.setdefault(section, {}).update(values)
            members = Members(tmp_path, own, env or {})
            groups.callback(members.close)
            return members

        yield make
