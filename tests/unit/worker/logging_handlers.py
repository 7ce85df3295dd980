"""Handlers that note where the worker says their code is: what a line that they log would be told to belong to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kunicorn import Batch, Record

place: Callable[[], Mapping[str, Any]] = dict
"""Of the worker under test."""
seen: list[tuple[int, Mapping[str, Any]]] = []
"""By the record's offset."""
beside: list[Mapping[str, Any]] = []
"""What is told to code that no record's call is."""


def handle(record: Record) -> None:
    """In whatever thread."""
    seen.append((record.offset, place()))
    other = threading.Thread(target=lambda: beside.append(place()))
    other.start()
    other.join()


async def handle_async(record: Record) -> None:
    """A task that it starts goes on beside it, perhaps with other records in hand."""
    other = asyncio.create_task(_beside())
    await asyncio.sleep(0)
    seen.append((record.offset, place()))
    await other


async def _beside() -> None:
    beside.append(place())


def handle_batch(batch: Batch) -> None:
    """Of all of them the first."""
    seen.append((batch[0].offset, place()))
    beside.append({})
