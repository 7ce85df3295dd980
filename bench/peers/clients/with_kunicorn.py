"""Our own handlers, as users write them; `kunicorn run` calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tally

if TYPE_CHECKING:
    from kunicorn import Batch, Record


def handle(record: Record) -> None:
    """One record."""
    tally.handle(record.partition, record.offset, record.value)


def count(record: Record) -> None:
    """One record with which nothing is to be done, counted on the spot, by the calls that a bare loop counts by."""
    value: tally.Value = record.value
    len(value)
    message: Any = record.message
    tally.cells[message.partition()] += tally.ONE + message.offset()


async def wait(record: Record) -> None:
    """One record that waits."""
    await tally.wait_async(record.partition, record.offset, record.value)


def handle_batch(records: Batch) -> None:
    """Records of one partition."""
    tally.handle_run(records.partition, records.offsets(), records.values())
