"""A handler over rows that are there already."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn import Halt, Record, Skip
from kunicorn.handler.columns import records_batch
from kunicorn.handler.retry import End, RetryPolicy
from kunicorn.pipeline import transform
from kunicorn.pipeline.dataframe import HandleRows
from tests.unit.pipeline.fetched import messages

ONCE = RetryPolicy(1, 1, 1, None, End.DEAD_LETTER)


def handle(record: Record) -> Any:
    if record.offset == 1:
        raise ValueError(record.idempotency_key)
    return Skip("x") if record.offset == 4 else None


def test_rows_become_outcomes_with_the_record_of_a_dead_letter() -> None:
    (batch,) = HandleRows(handle, ONCE)(iter([records_batch(messages(0, 1, 2, 4))]))
    rows = batch.to_pylist()
    assert [(row["offset"], row["until"], row["status"]) for row in rows] == [
        (0, 1, "done"), (1, 2, "dead_letter"), (2, 3, "done"), (4, 5, "skip"),
    ]  # fmt: skip
    assert (rows[1]["key"], rows[1]["value"], rows[1]["error_message"]) == (b"k", b"v", "orders-3-1")


@given(st.lists(st.integers(0, 12), max_size=30), st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_rows_in_any_order_are_handled_once_each_and_have_a_row_each(
    offsets: list[int], failing: set[int], halting: set[int]
) -> None:
    calls: list[int] = []

    def handle(record: Record) -> Any:
        calls.append(record.offset)
        # A handler that is called for ever would end no test.
        if len(calls) > 1000 or record.offset in failing:
            raise ValueError
        return Halt("a person has to look") if record.offset in halting else None

    batches = HandleRows(handle, ONCE)(iter([records_batch(messages(*offsets))]))
    rows = [row for batch in batches for row in batch.to_pylist()]
    ends = [
        ("dead_letter", 1) if each in failing else ("halt", 0) if each in halting else ("done", 1) for each in offsets
    ]
    assert calls == offsets
    assert [(row["offset"], row["status"], row["records"]) for row in rows] == [
        (offset, *end) for offset, end in zip(offsets, ends, strict=True)
    ]
    assert all(row["until"] == row["offset"] + row["records"] for row in rows)


def test_a_row_that_fails_is_tried_again_in_its_place_among_others_that_do_not_ascend() -> None:
    calls: list[int] = []

    def handle(record: Record) -> None:
        calls.append(record.offset)
        if record.offset == 3 and calls.count(3) == 1:
            raise ValueError

    (batch,) = HandleRows(handle, RetryPolicy(2, 1, 1, None, End.DEAD_LETTER))(
        iter([records_batch(messages(500, 501, 3, 4))])
    )
    assert calls == [500, 501, 3, 3, 4]
    assert batch.column("status").to_pylist() == ["done"] * 4


def test_a_time_that_no_calendar_has_is_the_records_time_all_the_same() -> None:
    """A producer that writes microseconds, as if they were milliseconds."""
    beyond = 1_700_000_000_000_000
    seen: list[int | None] = []

    def handle(record: Record) -> None:
        seen.append(record.timestamp)
        raise ValueError

    (fetched,) = messages(7)
    late = Message(topic=fetched.topic(), partition=3, offset=7, value=b"v", timestamp=(1, beyond))
    (batch,) = HandleRows(handle, ONCE)(iter([records_batch([late])]))
    assert seen == [beyond]
    assert batch.column("timestamp").cast("int64").to_pylist() == [beyond * 1000]


def test_a_time_beyond_what_a_column_can_have_costs_the_record_its_time_and_nothing_else() -> None:
    """A producer that writes nanoseconds."""
    late = [
        Message(topic="orders", partition=3, offset=at, value=b"v", timestamp=(1, time))
        for at, time in enumerate((5, 1_700_000_000_000_000_000))
    ]
    rows = records_batch(late)
    assert rows.column("timestamp").cast("int64").to_pylist() == [5000, None]
    seen: list[int | None] = []

    def handle(record: Record) -> None:
        seen.append(record.timestamp)

    (batch,) = HandleRows(handle, ONCE)(iter([rows]))
    assert batch.column("status").to_pylist() == ["done", "done"]
    assert seen == [5, None]


def test_a_frame_without_the_columns_is_refused_before_anything_runs() -> None:
    class Frame:
        columns = ("topic", "partition", "value")

    with pytest.raises(ValueError, match="no column 'offset'"):
        transform(handle)(Frame())  # type: ignore[arg-type]
