"""Handlers whose calls are noted: which began, which ended, and how many were in hand."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from kunicorn import Record, Send

LARGE = b"large"
begun: list[tuple[str, int]] = []
most: Counter[str] = Counter()
_in_hand: Counter[str] = Counter()
_noting = threading.Lock()


def forget() -> None:
    """Before each test."""
    for noted in (begun, most, _in_hand):
        noted.clear()


@contextmanager
def noted(record: Record) -> Iterator[None]:
    """One call."""
    with _noting:
        begun.append((record.topic, record.offset))
        _in_hand[record.topic] += 1
        most[record.topic] = max(most[record.topic], _in_hand[record.topic])
    yield
    with _noting:
        _in_hand[record.topic] -= 1


def copy(record: Record) -> Send:
    """The offset, under the record's key."""
    with noted(record):
        time.sleep(random.random() * 0.002)
    return Send(value=str(record.offset), key=record.key, headers={"large": record.value})


async def copy_async(record: Record) -> AsyncIterator[Send]:
    """Likewise, yielded."""
    with noted(record):
        await asyncio.sleep(random.random() * 0.002)
    yield Send(value=str(record.offset), key=record.key, headers={"large": record.value})


def wait(record: Record) -> None:
    """Long enough to be seen beside others."""
    with noted(record):
        time.sleep(0.01)


async def wait_async(record: Record) -> None:
    """Likewise."""
    with noted(record):
        await asyncio.sleep(0.01)
