"""A handler that keeps the main thread until it is let go on, and others beside it, in threads and tasks; one that has
its records wait."""

from __future__ import annotations

import asyncio
import threading
import time

from kunicorn import Record, Wait

begun: list[tuple[str, int]] = []
"""Topic and offset of each call's record."""
goes_on = threading.Event()
held = threading.Event()
"""Set: calls that are held may end."""


def forget() -> None:
    """Before each test."""
    begun.clear()
    goes_on.clear()
    held.clear()


def long(records: list[Record]) -> None:
    """Until it is let go on."""
    begun.append((records[0].topic, records[0].offset))
    goes_on.wait(600)


def fail(record: Record) -> None:
    """At once, as long as that one is not let go on."""
    begun.append((record.topic, record.offset))
    if not goes_on.is_set():
        raise ValueError("no")


async def fail_async(record: Record) -> None:
    """Likewise."""
    fail(record)


def hold(record: Record) -> None:
    """As long as it is held."""
    begun.append((record.topic, record.offset))
    held.wait(60)


async def hold_async(record: Record) -> None:
    """Likewise."""
    begun.append((record.topic, record.offset))
    await asyncio.to_thread(held.wait, 60)


def wait(record: Record) -> None:
    """Until it is interrupted, or that one is let go on."""
    begun.append((record.topic, record.offset))
    while not goes_on.is_set():
        time.sleep(0.001)


async def stay_async(record: Record) -> None:
    """As long as that one."""
    begun.append((record.topic, record.offset))
    await asyncio.to_thread(goes_on.wait, 60)


async def wait_async(record: Record) -> None:
    """Until it is interrupted."""
    begun.append((record.topic, record.offset))
    await asyncio.sleep(600)


def for_a_day(record: Record) -> Wait:
    """What it needs is not to be had before."""
    return Wait(86_400)
