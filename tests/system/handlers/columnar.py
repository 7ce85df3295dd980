"""Handlers of columns that write the audit: one says by masks how rows end, one returns columns to send."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kunicorn import BatchError, DeadLetter, Retry, Skip
from kunicorn.commands.demo.columnar import handle as note

SCHEMA = pa.schema([pa.field("number", pa.int64(), nullable=False)])
_TRIED: set[int] = set()


def decide(batch: pa.RecordBatch) -> BatchError:
    """Of ten numbers that follow one another one is skipped, one a dead letter, and one is tried again once."""
    note(batch)
    digit = _digits(batch)
    numbers = batch.column("data").field("number").to_pylist()
    again = [at == 5 and number not in _TRIED for at, number in zip(digit.to_pylist(), numbers, strict=True)]
    _TRIED.update(number for number, retried in zip(numbers, again, strict=True) if retried)
    return BatchError(
        outcomes=[
            (Skip("a three"), pc.equal(digit, 3)),
            (DeadLetter("a seven"), pc.equal(digit, 7)),
            (Retry("a five"), again),
        ]
    )


def pass_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Each row's value as the key of what is sent, and its headers."""
    note(batch)
    key = batch.column("value")
    return pa.RecordBatch.from_pydict({"key": key, "value": key, "headers": batch.column("headers")})


def _digits(batch: pa.RecordBatch) -> pa.Array:
    number = batch.column("data").field("number")
    return pc.subtract(number, pc.multiply(pc.divide(number, 10), 10))
