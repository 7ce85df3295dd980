"""A handler over rows that are there already."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.handling.retry import End, RetryPolicy
from kunicorn.outcomes import Skip
from kunicorn.pipeline import transform
from kunicorn.pipeline.transforming import HandleRows
from kunicorn.record_columns import records_batch
from kunicorn.records import Record
from tests.unit.pipeline.test_handling import messages

ONCE = RetryPolicy(1, 1, 1, None, End.DEAD_LETTER)


def handle(record: Record) -> Any:
    if record.offset == 1:
        raise ValueError(record.idempotency_key)
    return Skip("x") if record.offset == 4 else None


def test_rows_become_outcomes_with_the_record_of_a_dead_letter() -> None:
    (batch,) = HandleRows(handle, ONCE)(iter([records_batch(messages(0, 1, 2, 4))]))
    rows = batch.to_pylist()
    assert [(row["offset"], row["until"], row["status"]) for row in rows] == [
        (0, 1, "done"), (1, 2, "dead_letter"), (2, 4, "done"), (4, 5, "skip"),
    ]  # fmt: skip
    assert (rows[1]["key"], rows[1]["value"], rows[1]["error_message"]) == (b"k", b"v", "orders-3-1")


def test_a_frame_without_the_columns_is_refused_before_anything_runs() -> None:
    class Frame:
        columns = ("topic", "partition", "value")

    with pytest.raises(ValueError, match="no column 'offset'"):
        transform(handle)(Frame())
