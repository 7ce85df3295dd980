"""Handlers of several topics in one group, whose outputs name the input they were made of."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from kunicorn import Batch, Record, Send

_SECONDS = float(os.environ.get("KUNICORN_HANDLER_MS", "0")) / 1000


def one(record: Record) -> Send:
    """One output for each record."""
    time.sleep(_SECONDS)
    return Send(value=record.idempotency_key)


def two(record: Record) -> Iterator[Send]:
    """Yields two."""
    for which in "ab":
        yield Send(value=f"{record.idempotency_key}{which}")


async def batch(batch: Batch) -> list[Send]:
    """One for each record of a batch."""
    return [Send(value=record.idempotency_key) for record in batch]
