"""The demo's handler of columns. Small and a module of its own, as Arrow is an optional dependency."""

from __future__ import annotations

import pyarrow as pa

from kunicorn.commands.demo.audit import handle_batch
from kunicorn.handler.record import Record
from kunicorn.handler.rows import Rows


def handle(batch: pa.RecordBatch) -> None:
    """Note each row as begun, and then as done."""
    handle_batch([Record.of(message) for message in Rows(batch)])
