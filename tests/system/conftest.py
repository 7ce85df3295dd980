"""Real brokers for tests. One that cannot be started fails the test: nothing is skipped silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.kafka import KafkaCluster

_numbers = count(1)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker for all tests; whoever stops or freezes brokers asks `kafka_factory` for some of its own."""
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture
def kafka_factory() -> Iterator[Callable[..., KafkaCluster]]:
    """Starts clusters that live until the test ends: `kafka_factory(brokers=3, overrides={...})`."""
    with ExitStack() as clusters:
        yield lambda *args, **kwargs: clusters.enter_context(KafkaCluster(*args, **kwargs))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the test creates it, with the partitions it needs."""
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", request.node.name)[:100]
    return f"{name}-{next(_numbers)}"
