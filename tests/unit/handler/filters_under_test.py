"""Filters, and handlers behind them; `GOT` is what the latter got."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kunicorn import Batch, BatchError, DeadLetter, Record, Skip

GOT: list[Any] = []
NUMBERED = pa.schema([("n", pa.int64())])


def handle(record: Record) -> None:
    GOT.append(record.value)
    if record.value == b"bad":
        raise ValueError("bad")


def handle_batch(batch: Batch) -> None:
    GOT.append([record.value for record in batch])


async def handle_async(record: Record) -> None:
    handle(record)


async def handle_batch_async(batch: Batch) -> None:
    handle_batch(batch)


def first_done(batch: Batch) -> None:
    """All up to the first bad one is done."""
    values = [record.value for record in batch]
    GOT.append(values)
    if b"bad" in values:
        raise BatchError(done=values.index(b"bad"))


def others_done(batch: Batch) -> None:
    """All but the bad one is done."""
    values = [record.value for record in batch]
    GOT.append(values)
    if b"bad" in values:
        raise BatchError(done=[record for record in batch if record.value != b"bad"])


def bad_skipped(batch: Batch) -> None:
    """The bad one is skipped, all others are done."""
    values = [record.value for record in batch]
    GOT.append(values)
    if b"bad" in values:
        raise BatchError(outcomes=[(Skip("bad"), [value == b"bad" for value in values])])


def first_done_returned(batch: Batch) -> BatchError | None:
    """As `first_done`, by an error that is returned."""
    return _returned(first_done, batch)


def bad_skipped_returned(batch: Batch) -> BatchError | None:
    """As `bad_skipped`, by an error that is returned."""
    return _returned(bad_skipped, batch)


async def bad_skipped_returned_async(batch: Batch) -> BatchError | None:
    return bad_skipped_returned(batch)


NOTHING_DONE = BatchError(done=0)


def nothing_done(batch: Batch) -> BatchError | None:
    """Nothing of a batch that begins with a bad one is done, which it says by the same error each time."""
    GOT.append([record.value for record in batch])
    return NOTHING_DONE if GOT[-1][0] == b"bad" else None


def failing(batch: Batch) -> None:
    GOT.append([record.value for record in batch])
    raise ValueError("not one of them")


async def failing_async(batch: Batch) -> None:
    failing(batch)


def leaving(batch: Batch) -> None:
    GOT.append([record.value for record in batch])
    sys.exit("not one of them")


async def cancelled(batch: Batch) -> None:
    GOT.append([record.value for record in batch])
    raise asyncio.CancelledError


def hanging(batch: Batch) -> None:
    GOT.append([record.value for record in batch])
    time.sleep(60)


async def hanging_async(batch: Batch) -> None:
    GOT.append([record.value for record in batch])
    await asyncio.sleep(60)


def hanging_in_disguise(batch: Batch) -> None:
    """What interrupts it comes out as another error."""
    try:
        hanging(batch)
    finally:
        raise LookupError("the connection is closed")


def hanging_in_the_first(batch: Batch) -> None:
    """Says that of the batch nothing is done."""
    try:
        hanging(batch)
    except BaseException as error:
        raise BatchError(done=0) from error


def letters_returned(batch: Batch) -> DeadLetter:
    GOT.append([record.value for record in batch])
    return DeadLetter("not one of them")


def strangers_named(batch: Batch) -> None:
    GOT.append([record.value for record in batch])
    raise BatchError(done=len(batch) + 1)


def _returned(handle: Callable[[Batch], None], batch: Batch) -> BatchError | None:
    try:
        handle(batch)
    except BatchError as error:
        return error
    return None


def wanted(record: Record) -> Any:
    """Raises over "raise", says nothing of "none"."""
    if record.value == b"raise":
        raise KeyError("a secret of the payload")
    return None if record.value == b"none" else record.value != b"no"


def handle_columns(batch: Any) -> None:
    GOT.append(batch.column("value").to_pylist())


async def asynchronous(record: Record) -> bool:
    return True


def of_two(record: Record, more: int) -> bool:
    return True
