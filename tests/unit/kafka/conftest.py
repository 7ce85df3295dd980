"""Brokers that follow a script."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

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
async def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The addresses of each name that there is, whatever this machine and its network know."""
    known: dict[str, list[str]] = {}

    async def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return known


@pytest.fixture
async def cluster(one: FakeBroker, two: FakeBroker) -> AsyncIterator[Cluster]:
    """It has asked `one` about topic t, and knows both. `two` is a fixture of each module: who leads is its own."""
    cluster = cluster_of(one)
    await cluster.refresh(["t"])
    yield cluster
    await cluster.close()
