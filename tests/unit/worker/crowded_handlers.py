"""Handlers that take long enough to be seen beside others, whose calls are noted."""

from __future__ import annotations

import asyncio
import time

from kunicorn import Record

begun: list[tuple[str, int]] = []
"""Topic and offset of each call's record."""


def forget() -> None:
    """Before each test."""
    begun.clear()


def wait(record: Record) -> None:
    """Ten milliseconds."""
    begun.append((record.topic, record.offset))
    time.sleep(0.01)


async def wait_async(record: Record) -> None:
    """Likewise."""
    begun.append((record.topic, record.offset))
    await asyncio.sleep(0.01)
