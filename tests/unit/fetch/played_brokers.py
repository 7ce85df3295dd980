"""What a played broker is asked, and answers, where topics go by their names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from kio.schema.fetch import v12
from kio.serial import entity_reader

from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.requests import Limits
from kunicorn.kafka import codec
from kunicorn.kafka.versions import Api
from tests.fakes import fetched
from tests.fakes.broker import Asked

BY_NAME = 12
"""The played broker's topics have no ids."""
OLD: Mapping[Api, tuple[int, int]] = {Api.FETCH: (BY_NAME, BY_NAME)}
MB = 1 << 20
LIMITS = Limits(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, read_committed=True, rack="")


def offsets_of(asked: Asked) -> dict[int, int]:
    """Where the request has each partition begin; each is named in each, as there are no sessions here."""
    _, at = entity_reader(v12.FetchRequest.__header_schema__)(asked.frame, 0)
    request, _ = entity_reader(v12.FetchRequest)(asked.frame, at)
    return {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions}


def framed(asked: Asked, parts: Sequence[Any], **fields: Any) -> bytes:
    """The answer's frame behind its length."""
    head = asked.frame[codec.CORRELATION_BYTES : 2 * codec.CORRELATION_BYTES]
    return head + fetched.body(BY_NAME, {b"orders": parts}, **fields)


@asynccontextmanager
async def running(fetcher: Fetcher) -> AsyncIterator[None]:
    """It fetches until the test is over."""
    task = asyncio.create_task(fetcher.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
