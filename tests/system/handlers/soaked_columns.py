"""The soak's handlers of columns. A module of its own: Arrow starts threads, and only who wants columns has them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kunicorn import Record
from kunicorn.commands.demo.audit import handle_batch
from kunicorn.commands.demo.columnar import handle as handle_columns
from kunicorn.handler.rows import Rows
from tests.system.handlers.soaked import KeptBatches, output

__all__ = ["handle_columns"]


def send_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """One output for each row, that names it."""
    records = [Record.of(message) for message in Rows(batch)]
    handle_batch(records)
    values = pa.array([output(record).encode() for record in records], pa.binary())
    return pa.RecordBatch.from_pydict({"key": batch.column("key"), "value": values})


class KeptColumns(KeptBatches):
    """A batch of columns in a transaction, with its offset."""

    def handle(self, batch: Any) -> None:
        self.keep([Record.of(message) for message in Rows(batch)])
