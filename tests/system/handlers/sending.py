"""Handlers that return records to send: each names the input it was made of."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter

from kunicorn import Batch, DeadLetter, Record, Send, Wait

_SECONDS = float(os.environ.get("KUNICORN_HANDLER_MS", "0")) / 1000


_TIMES: Counter[tuple[int, int]] = Counter()


def _own_seconds() -> float:
    return _SECONDS * random.random() * (50 if random.random() < 0.02 else 2)


def copy(record: Record) -> Send:
    """One output for each record, to the default topic."""
    if _SECONDS:
        time.sleep(_SECONDS)
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)


def copy_value(record: Record) -> Send:
    """Likewise, of what the record has: it says of which topic it was."""
    time.sleep(_SECONDS)
    return Send(value=record.value, key=record.key)


def copy_in_its_time(record: Record) -> Send:
    """The same; while one takes long, much is done beyond it."""
    time.sleep(_own_seconds())
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)


async def copy_async(record: Record) -> Send:
    """Likewise."""
    await asyncio.sleep(_own_seconds())
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)


def troubled(record: Record) -> Send:
    """One output for each record, but what it calls is busy for some of them, and away for others."""
    at = record.partition, record.offset
    _TIMES[at] += 1
    if record.offset % 50 == 7 and _TIMES[at] <= 2:
        raise Wait(0.02, "busy")
    if record.offset % 200 == 11 and _TIMES[at] <= 3:
        raise ConnectionRefusedError("away")
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)


def picky(record: Record) -> Send:
    """Of some records an output that no broker takes."""
    if record.value == b"large":
        return Send(value=b"x" * 2_000_000)
    return Send("there-is-no-such-topic" if record.value == b"nowhere" else None, f"0:{record.offset}")


def picky_batch(batch: Batch) -> list[Send]:
    """The same of each."""
    return [picky(record) for record in batch]


def fail_batch(batch: Batch) -> None:
    """Every record of every batch is given up."""
    raise DeadLetter("none of these")


def large(batch: Batch) -> list[Send]:
    """Outputs of five thousand bytes; of a record that says so, one larger than the topics of these tests take."""
    return [
        Send(
            value=f"{record.partition}:{record.offset}:".ljust(300_000 if record.value == b"large" else 5000, "x"),
            key=record.key,
        )
        for record in batch
    ]
