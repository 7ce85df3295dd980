"""The fetcher's thread beside a broker that the test plays: what it asks, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from kunicorn.columns import reference
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.properties import fetcher_of
from kunicorn.fetch.queue import Fetched, FetchQueue
from kunicorn.fetch.requests import Limits
from kunicorn.fetch.table import Fetching, News
from kunicorn.kafka import codec
from kunicorn.kafka.auth import Security
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes import fetched
from tests.fakes.broker import Asked, FakeBroker, cluster_of

BY_NAME = 12
"""The played broker's topics have no ids."""
LIMITS = Limits(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, read_committed=True, rack="")


@asynccontextmanager
async def fetching(broker: FakeBroker) -> AsyncIterator[FetchQueue]:
    """`orders-0` is fetched from that broker; what comes of it."""
    table, queue = Fetching(1 << 20, lambda: 0.5), FetchQueue(1 << 20)
    table.place(TopicPartition("orders", 0), 1, 0, -1)
    decoder = reference.Decoder(read_committed=True, max_unpacked=1 << 20)
    fetcher = Fetcher(lambda: cluster_of(broker), table, decoder, LIMITS, queue)
    running = asyncio.create_task(fetcher.run())
    try:
        yield queue
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await fetcher._disconnect()


@asynccontextmanager
async def leader(**of_partition: Any) -> AsyncIterator[tuple[FakeBroker, list[float]]]:
    """A broker that answers every Fetch alike, and when it was asked."""
    asked_at: list[float] = []
    throttle = timedelta(milliseconds=of_partition.pop("throttle_ms", 0))

    def answer(asked: Asked) -> bytes:
        asked_at.append(asyncio.get_running_loop().time())
        told = {b"orders": [fetched.partition(BY_NAME, 0, **of_partition)]}
        return asked.frame[codec.CORRELATION_BYTES : 2 * codec.CORRELATION_BYTES] + fetched.body(
            BY_NAME, told, throttle_time=throttle
        )

    async with FakeBroker(1, {Api.FETCH: (BY_NAME, BY_NAME)}) as broker:
        broker.lead([broker], {"orders": {0: (1, 3)}})
        broker.script[Api.FETCH] = answer
        yield broker, asked_at


@pytest.mark.scenario("testQuotaMetrics")
async def test_a_broker_over_quota_is_not_fetched_from_for_as_long_as_it_says() -> None:
    async with leader(throttle_ms=150) as (broker, asked_at), fetching(broker):
        await broker.wait_for(Api.FETCH, 3)
    assert min(later - before for before, later in pairwise(asked_at)) >= 0.15


async def test_a_partition_that_is_refused_again_and_again_is_told_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with leader(error_code=ErrorCode.CORRUPT_MESSAGE) as (broker, _), fetching(broker) as queue:
        await broker.wait_for(Api.FETCH, 4)
        assert not caplog.records
        await broker.wait_for(Api.FETCH, 6)
        assert queue.head(0) is None
    (told,) = caplog.messages
    assert "node 1 refuses to be asked for orders-0; tried again: CORRUPT_MESSAGE" in told


def test_a_fetcher_counts_all_columns_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = reference.Decoder(read_committed=True, max_unpacked=1 << 20)
    properties: dict[str, str | int | float | bool] = {
        "bootstrap.servers": "localhost:9092",
        "client.id": "orders",
        "isolation.level": "read_committed",
        "fetch.max.bytes": 1 << 20,
        "queued.max.messages.kbytes": 1024,
    }
    _, queue = fetcher_of(properties, Security(), decoder)
    queue.put(Fetched(News(TopicPartition("orders", 0), 1, 0, 0, 1, -1), None, 1))
    assert not queue.waits_for_room()
    monkeypatch.setattr(reference.Decoder, "held", staticmethod(lambda: 1 << 20))
    _, queue = fetcher_of(properties, Security(), decoder)
    queue.put(Fetched(News(TopicPartition("orders", 0), 1, 0, 0, 1, -1), None, 1))
    assert queue.waits_for_room()
