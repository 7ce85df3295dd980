"""Rows as columns are to the table of partitions what messages are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import Message

from kunicorn.columns import reference
from kunicorn.handler.arrow import SCHEMA, rows_of
from kunicorn.handler.messages import Run
from kunicorn.handler.record import Record
from kunicorn.handler.rows import (
    Rows,
    before,
    beginning_at,
    ends,
    first_timestamp,
    fitting,
    following_offsets,
    joined,
    value_bytes,
    without,
)

OFFSETS = (3, 4, 7, 8, 9)


def messages() -> list[Message]:
    """Five records with a gap, of every shape: no key, a tombstone, headers, no timestamp."""
    return [
        Message(
            topic="t",
            partition=2,
            offset=offset,
            key=None if number == 1 else b"k%d" % number,
            value=None if number == 2 else b"v" * number,
            headers=[("h", b"1"), ("h", None)] if number == 3 else None,
            timestamp=(0, 0) if number == 4 else (1, 1000 + number),
            leader_epoch=5,
        )
        for number, offset in enumerate(OFFSETS)
    ]


def told(run: Run) -> list[tuple[object, ...]]:
    """All that a handler of records can see."""
    records = map(Record.of, run)
    return [(r.topic, r.partition, r.offset, r.key, r.value, r.headers, r.timestamp, r.leader_epoch) for r in records]


BOTH = pytest.mark.parametrize("run", [messages(), Rows(rows_of(messages()), 5)], ids=["messages", "rows"])


def test_columns_have_the_types_that_are_promised() -> None:
    batch = rows_of(messages())
    assert batch.schema.equals(SCHEMA)
    assert SCHEMA.equals(reference.SCHEMA), "handlers get the same from both fetchers"
    assert batch.column("offset").to_pylist() == list(OFFSETS)
    assert batch.column("value").to_pylist()[2] is None
    assert batch.column("timestamp").cast("int64").to_pylist() == [1000, 1001, 1002, 1003, None]


def test_a_message_made_of_a_row_says_what_the_clients_own_says() -> None:
    rows = Rows(rows_of(messages()), 5)
    assert told(rows) == told(messages())
    assert told([rows[3]]) == told(messages()[3:4])


@BOTH
def test_a_run_is_cut_by_place_and_by_offset(run: Run) -> None:
    assert told(run[1:3]) == told(messages()[1:3])
    assert told(before(run, 7)) == told(messages()[:2])
    assert told(beginning_at(run, 5)) == told(messages()[2:])
    assert told(without(run, {4, 8})) == told([messages()[at] for at in (0, 2, 4)])
    assert ends(run[1:4]) == (4, 8)


@BOTH
def test_runs_are_joined_again(run: Run) -> None:
    assert told(joined([run[:2], run[2:4], run[4:]])) == told(messages())


@BOTH
def test_the_offset_behind_each_record_heeds_gaps(run: Run) -> None:
    assert list(following_offsets(run)) == [4, 5, 8, 9, 10]
    assert following_offsets(run[2:]) == range(8, 11)


@BOTH
def test_values_are_counted_in_bytes_and_a_tombstone_has_none(run: Run) -> None:
    assert value_bytes([run]) == 0 + 1 + 0 + 3 + 4
    assert [fitting(run, most) for most in (0, 1, 3, 4, 7, 8, None)] == [1, 3, 3, 4, 4, 5, 5]


@BOTH
def test_the_first_time_is_read_without_the_others(run: Run) -> None:
    assert first_timestamp(run[1:]) == 1001
    assert first_timestamp(run[4:]) <= 0


def test_a_cut_of_rows_counts_its_own_bytes_only() -> None:
    many = Rows(rows_of([Message(topic="t", partition=0, offset=at, value=b"x" * 1000) for at in range(100)]))
    assert 1000 < many[:1].nbytes < 1200
    assert many.nbytes > 100_000


def test_rows_of_two_responses_with_other_dictionaries_are_joined() -> None:
    first, second = Rows(rows_of(messages()[:2])), Rows(rows_of(messages()[2:]))
    both = joined([first, second])
    assert isinstance(both, Rows)
    assert both.batch.column("topic").to_pylist() == ["t"] * 5
    assert isinstance(both.batch, pa.RecordBatch)
