"""A handler over rows that are there already."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn import Halt, Record, Skip
from kunicorn.errors import HandlerLoadError
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


def test_a_row_whose_kind_of_time_is_null_has_its_time_as_one_without_the_column() -> None:
    seen: list[int | None] = []
    batch = records_batch([Message(topic="orders", partition=0, offset=0, value=b"v", timestamp=(1, 5_000))])
    at = batch.schema.get_field_index("timestampType")
    for rows in (batch.set_column(at, "timestampType", pa.nulls(1, pa.int32())), batch.remove_column(at)):
        (outcomes,) = HandleRows(lambda record: seen.append(record.timestamp), ONCE)(iter([rows]))
        assert outcomes["status"].to_pylist() == ["done"]
    assert seen == [5_000, 5_000]


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


def test_a_frame_whose_timestamp_is_no_time_is_refused_before_anything_runs() -> None:
    class Frame:
        columns = ("topic", "partition", "offset", "value", "timestamp")
        dtypes = (("value", "binary"), ("timestamp", "bigint"))

    with pytest.raises(ValueError, match="column 'timestamp' is bigint"):
        transform(handle)(Frame())  # type: ignore[arg-type]


called: list[Any] = []


class Buffered:
    """Writes what it has handled when it is told to."""

    def setup(self, options: Any) -> None:
        called.append(("setup", options))
        self.held: list[int] = []

    def handle(self, record: Record) -> None:
        self.held.append(record.offset)

    def flush(self) -> None:
        called.append(self.held)
        self.held = []

    def teardown(self) -> None:
        called.append("teardown")


class TornDown(Buffered):
    """Writes at its end alone."""

    flush = None  # type: ignore[assignment]

    def teardown(self) -> None:
        called.append(self.held)


class Away(Buffered):
    """Cannot write."""

    def flush(self) -> None:
        raise ConnectionError("the database is away")


def entrypoint(handler: type) -> str:
    return f"{__name__}:{handler.__name__}"


def two_batches() -> Any:
    return iter([records_batch(messages(0, 1)), records_batch([]), records_batch(messages(2))])


def test_what_a_handler_holds_back_is_flushed_before_the_rows_that_say_done_are_given_out() -> None:
    called.clear()
    task = HandleRows(entrypoint(Buffered), ONCE, {"table": "flushed"})
    written = [len(called) for _ in task(two_batches())]
    assert called == [("setup", {"table": "flushed"}), [0, 1], [2]]
    assert written[0] >= 2
    assert written[1] == 3


def test_the_next_task_of_the_process_has_the_handler_as_it_is_set_up() -> None:
    called.clear()
    for _ in range(2):
        assert len(list(HandleRows(entrypoint(Buffered), ONCE, {"table": "kept"})(two_batches()))) == 2
    assert called == [("setup", {"table": "kept"}), [0, 1], [2], [0, 1], [2]]


def test_a_handler_that_writes_in_teardown_alone_is_set_up_and_torn_down_by_each_task_before_its_last_rows() -> None:
    called.clear()
    for _ in range(2):
        *_, (written, last) = [(list(called), batch) for batch in HandleRows(entrypoint(TornDown), ONCE)(two_batches())]
        assert (written[-1], last.column("offset").to_pylist()) == ([0, 1, 2], [2])
    assert called == [("setup", {}), [0, 1, 2]] * 2


def test_a_handler_that_came_as_an_object_is_torn_down_by_its_task() -> None:
    """Spark makes a copy of it for each task."""
    called.clear()
    assert len(list(HandleRows(Buffered(), ONCE)(two_batches()))) == 2  # type: ignore[arg-type]
    assert called == [("setup", {}), [0, 1], [2], "teardown"]


def test_a_task_without_rows_sets_nothing_up() -> None:
    called.clear()
    assert list(HandleRows(entrypoint(TornDown), ONCE)(iter([records_batch([])]))) == []
    assert called == []


def test_a_flush_that_fails_gives_out_no_row_and_leaves_no_handler_behind() -> None:
    called.clear()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="away"):
            next(HandleRows(entrypoint(Away), ONCE)(two_batches()))
    assert called == [("setup", {})] * 2


def test_options_that_nobody_reads_are_refused() -> None:
    with pytest.raises(HandlerLoadError, match="no setup"):
        next(HandleRows(handle, ONCE, {"table": "x"})(two_batches()))
