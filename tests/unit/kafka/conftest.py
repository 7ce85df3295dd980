"""Brokers that follow a script."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.broker import FakeBroker


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def one() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(1) as broker:
        yield broker
