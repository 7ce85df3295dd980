"""Brokers that follow a script."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kunicorn.kafka.cluster import Cluster
from tests.fakes.broker import FakeBroker, cluster_of


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def one() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(1) as broker:
        yield broker


@pytest.fixture
async def cluster(one: FakeBroker, two: FakeBroker) -> AsyncIterator[Cluster]:
    """It has asked `one` about topic t, and knows both. `two` is a fixture of each module: who leads is its own."""
    cluster = cluster_of(one)
    await cluster.refresh(["t"])
    yield cluster
    await cluster.close()
