"""`transform`: a handler over a DataFrame of records. Small and a module of its own, as it needs Spark and Arrow,
optional dependencies.

    from kunicorn.pipeline import transform
    outcomes = records.transform(transform("shop.handlers:handle_order"))

The frame has the columns of the source `kunicorn` or of Spark's own Kafka source; its rows are handled where they are,
in the order in which they are there, whichever that is. The result has the columns of the outcome table, and a row for
each row of the frame. Spark runs it when the result is used, and again whenever it is used again: write it once, then
look at it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.handler.call import calls_of
from kunicorn.handler.load import Handler, load
from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.pipeline.tasks.outcomes import SCHEMA, table
from kunicorn.pipeline.tasks.ranges import RangeHandler, Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTCOME_COLUMNS = (
    "topic string, partition int, offset bigint, until bigint, records bigint, status string, error_type string, "
    "error_message string, error_stack string, attempts int, time timestamp, timestamp timestamp, key binary, "
    "value binary, headers array<struct<key:string,value:binary>>"
)
_NEEDED = ("topic", "partition", "offset", "value")
_POLICY = RetryPolicy(max_attempts=3, retry_backoff_ms=100, retry_backoff_max_ms=10_000, on_failure=End.DEAD_LETTER)
_SPARK_SCHEMA = pa.schema(
    [field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field for field in SCHEMA]
)


def transform(handler: str | Callable[[Any], Any], policy: RetryPolicy = _POLICY) -> Callable[[DataFrame], DataFrame]:
    """Function for `DataFrame.transform`. `handler` is an entry point, or a function that takes one record.

    `policy` decides what happens to a record that fails; by default three tries, then a row `dead_letter` with the
    record in it. Raises `ValueError` for a frame that lacks a column. An entry point that cannot be loaded fails in the
    tasks.
    """

    def transformed(frame: DataFrame) -> DataFrame:
        if missing := [name for name in _NEEDED if name not in frame.columns]:
            raise ValueError(f"the DataFrame has no column {missing[0]!r}: it needs {', '.join(_NEEDED)} at least")
        return frame.mapInArrow(HandleRows(handler, policy), OUTCOME_COLUMNS)

    return transformed


@dataclass(frozen=True, slots=True)
class HandleRows:
    """Task that handles the rows of its partition. Called by Spark in an executor's Python process."""

    handler: str | Callable[[Any], Any]
    policy: RetryPolicy

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Outcome rows, batch by batch."""
        calls = calls_of(_loaded(self.handler), "record")
        handle = RangeHandler(calls, Rules(Policies(self.policy))).each
        for batch in batches:
            if outcomes := list(handle([_message(row) for row in _with_numbers(batch).to_pylist()])):
                yield table(outcomes).cast(_SPARK_SCHEMA)


def _loaded(handler: str | Callable[[Any], Any]) -> Handler:
    if isinstance(handler, str):
        return load(handler)
    return Handler(repr(handler), handler, inspect.iscoroutinefunction(handler))


def _with_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its times as microseconds: producers write some that no calendar has, and Python's would raise."""
    at = batch.schema.get_field_index("timestamp")
    if at < 0:
        return batch
    times = batch.column(at)
    return batch.set_column(at, "timestamp", times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()))


def _message(row: Mapping[str, Any]) -> Message:
    headers = [(pair["key"], pair["value"]) for pair in row.get("headers") or ()]
    at = row.get("timestamp")
    return Message(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        value=row["value"],
        key=row.get("key"),
        headers=headers,
        # Spark's types of a timestamp count from −1 (none), librdkafka's from 0.
        timestamp=(0, 0) if at is None else (row.get("timestampType", 0) + 1, at // 1000),
    )
