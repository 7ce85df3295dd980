"""Our own handlers, as users write them; `kunicorn run` calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
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


def handle_columns(batch: pa.RecordBatch) -> None:
    """Columns of one partition's records, with which nothing is to be done."""
    partition = batch.column("partition")[0].as_py()
    tally.cells[partition] += tally.ONE * len(batch) + pc.sum(batch.column("offset")).as_py()


def sum_columns(batch: pa.RecordBatch) -> None:
    """The same, and the sum of a number that each value holds."""
    pc.sum(batch.column("data").field("id")).as_py()
    handle_columns(batch)


SCHEMA = pa.schema([("id", pa.int64())])
