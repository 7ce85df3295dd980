"""Filters that the data source keeps: exact for rows, and never narrower in the plan than for rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from kunicorn.handler.columns import records_batch
from kunicorn.pipeline.pushed import Pushed
from kunicorn.positions import OffsetRange, TopicPartition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARED: dict[Any, Any] = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
}


def at(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)


def told(found: Filter) -> Any:
    """The filter, whose attribute and value no class above it names."""
    return found


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(["topic", "partition", "offset", "timestamp"]))
    numbers = st.integers(0, 40)
    values: dict[str, st.SearchStrategy[Any]] = {
        "topic": st.sampled_from(["a", "b"]),
        "partition": st.integers(0, 2),
        "offset": numbers,
        "timestamp": numbers.map(at),
    }
    kind = draw(st.sampled_from(list(COMPARED)))
    value = draw(st.lists(values[column], max_size=3).map(tuple) if kind is In else values[column])
    found: Filter = kind((column,), value)
    return found


RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(0, 30), st.none() | st.integers(1, 40)),
    max_size=30,
    unique_by=lambda each: each[:3],
)


@given(RECORDS, st.lists(filters(), max_size=3))
def test_the_rows_and_the_plan_are_what_sql_says(records: list[Any], given: list[Filter]) -> None:
    pushed = Pushed()
    assert list(pushed.keep(given)) == []

    def wanted(record: Any) -> bool:
        topic, partition, offset, time = record
        found = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": None if time is None else at(time),
        }
        return all(
            (value := found[told(each).attribute[0]]) is not None and COMPARED[type(each)](value, told(each).value)
            for each in given
        )

    places = sorted({TopicPartition(*each[:2]) for each in records})
    left = set(pushed.partitions(places))
    found = []
    for tp in places:
        log = sorted(each for each in records if each[:2] == tp)
        young = {}
        if (since := pushed.since_ms) is not None:
            young = {tp: next((each[2] for each in log if each[3] is not None and each[3] >= since), -1)}
        for whole in pushed.ranges([OffsetRange(*tp, 0, 31)] if tp in left else [], young):
            read = [each for each in log if whole.start <= each[2] < whole.stop]
            batch = pushed.rows(
                records_batch(
                    [
                        Message(
                            topic=topic, partition=number, offset=offset, timestamp=(0, 0) if ms is None else (1, ms)
                        )
                        for topic, number, offset, ms in read
                    ]
                )
            )
            found += list(
                zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
            )
    assert sorted(found) == sorted(each[:3] for each in records if wanted(each))


OFFSETS = st.integers(0, 12)
BOUNDS = st.one_of(
    st.lists(
        st.builds(
            lambda kind, value: kind(("offset",), value), st.sampled_from([k for k in COMPARED if k is not In]), OFFSETS
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(OFFSETS, max_size=3).map(lambda values: [In(("offset",), tuple(values))]),
)


@given(BOUNDS)
def test_the_plan_ends_at_the_first_and_the_last_offset_that_the_filters_leave(given: list[Filter]) -> None:
    """Rows behind that would be fetched to be thrown away, which no row of the result tells."""
    pushed = Pushed()
    assert list(pushed.keep(given)) == []
    left = [offset for offset in range(2, 11) if all(COMPARED[type(e)](offset, told(e).value) for e in given)]
    among = [each for each in given if isinstance(each, In)]
    if among and left:
        # Offsets beyond the log bound nothing in it.
        values = told(among[0]).value
        left = [max(2, min(values)), min(10, max(values))]
    expected = [OffsetRange("a", 0, left[0], left[-1] + 1)] if left else []
    found = pushed.ranges([OffsetRange("a", 0, 2, 11)], {})
    if not left and among:
        return  # Values on both sides of the log: the plan has all of it, and the rows none.
    assert found == expected


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("headers", "key"), "a"),
        Not(EqualTo(("partition",), 1)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),
        EqualTo(("partition",), 1.5),
        IsNotNull(("timestamp",)),
    ],
)
def test_what_is_not_kept_is_given_back(given: Filter) -> None:
    pushed = Pushed()
    assert list(pushed.keep([given])) == [given]
    assert pushed.conditions == ()


def test_that_a_column_is_there_is_always_true() -> None:
    assert list(Pushed().keep([IsNotNull(("partition",))])) == []
