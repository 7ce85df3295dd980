"""`transform`: a handler over a DataFrame of records. Small and a module of its own, as it needs Spark and Arrow,
optional dependencies.

    from kunicorn.pipeline import transform
    outcomes = records.transform(transform("shop.handlers:handle_order"))

The frame has the columns of the source `kunicorn` or of Spark's own Kafka source; its rows are handled where they are,
in the order in which they are there, whichever that is. The result has the columns of the outcome table, and a row for
each row of the frame. Spark runs it when the result is used, and again whenever it is used again: write it once, then
look at it.

What a handler holds back is written before rows that say `done` are given out: `flush` is called for every batch of
them, and where there is only `teardown`, that one before the task's last batch.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.call import Calls, calls_of
from kunicorn.handler.lifecycle import Worker
from kunicorn.handler.load import Handler, handler_of, instance, load
from kunicorn.handler.registry import Handling, call_setup
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


def transform(
    handler: str | Callable[[Any], Any],
    policy: RetryPolicy = _POLICY,
    options: Mapping[str, Any] | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Function for `DataFrame.transform`. `handler` is an entry point, or a function that takes one record.

    `policy` decides what happens to a record that fails; by default three tries, then a row `dead_letter` with the
    record in it. `options` are those of the handler's `setup`; they are in Spark's plan, which is no place for secrets.
    Raises `ValueError` for a frame that lacks a column, or whose timestamps are none. An entry point that cannot be
    loaded or set up fails in the tasks.
    """

    def transformed(frame: DataFrame) -> DataFrame:
        if missing := [name for name in _NEEDED if name not in frame.columns]:
            raise ValueError(f"the DataFrame has no column {missing[0]!r}: it needs {', '.join(_NEEDED)} at least")
        if not (kind := dict(frame.dtypes).get("timestamp", "timestamp")).startswith("timestamp"):
            raise ValueError(f"the DataFrame's column 'timestamp' is {kind}: make a timestamp of it, or leave it out")
        return frame.mapInArrow(HandleRows(handler, policy, dict(options or {})), OUTCOME_COLUMNS)

    return transformed


@dataclass(frozen=True, slots=True)
class HandleRows:
    """Task that handles the rows of its partition. Called by Spark in an executor's Python process."""

    handler: str | Callable[[Any], Any]
    policy: RetryPolicy
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Outcome rows, batch by batch. Raises `HandlerLoadError`, and what `flush` and `teardown` raise."""
        filled = (batch for batch in batches if batch.num_rows)
        if (first := next(filled, None)) is None:
            return
        handling = _kept.pop(self._key, None) or self._set_up()
        each = RangeHandler(handling.calls, Rules(Policies(self.policy))).each
        rows: pa.RecordBatch | None = None
        for batch in chain([first], filled):
            if rows is not None:
                yield rows
            rows = table(list(each([_message(row) for row in _with_numbers(batch).to_pylist()]))).cast(_SPARK_SCHEMA)
            # A query that takes some rows only ends the task without a word: what is given out must be written.
            handling.flush()
        self._let_go(handling)
        yield rows

    @property
    def _key(self) -> tuple[str, str]:
        return repr(self.handler), repr(sorted(self.options.items()))

    def _set_up(self) -> Handling[Calls]:
        handler = _loaded(self.handler)
        if self.options and handler.setup is None:
            raise HandlerLoadError(
                f"transform has options, but {handler.entrypoint} has no setup(options) to read them"
            )
        calls = calls_of(handler, "record")
        call_setup(handler, calls, Worker(0, os.getpid(), "", ""), self.options)
        return Handling(handler, calls, Policies(self.policy), None)

    def _let_go(self, handling: Handling[Calls]) -> None:
        """Keep the handler for the tasks that follow; or tear it down, where it holds back, or came with this task."""
        if isinstance(self.handler, str) and not handling.holds_back:
            _kept[self._key] = handling
        else:
            handling.tear_down()


_kept: dict[tuple[str, str], Handling[Calls]] = {}
"""Handlers of this process that no task has right now, by entry point and options. One that fails leaves none."""


def _loaded(handler: str | Callable[[Any], Any]) -> Handler:
    if isinstance(handler, str):
        return load(handler)
    named = repr(handler)
    return handler_of(named, instance(named, handler) if inspect.isclass(handler) else handler)


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
    # Null in rows that a join has made, or a union with others that lack it: then as where there is no such column.
    kind = row.get("timestampType")
    return Message(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        value=row["value"],
        key=row.get("key"),
        headers=headers,
        # Spark's types of a timestamp count from −1 (none), librdkafka's from 0.
        timestamp=(0, 0) if at is None else ((0 if kind is None else kind) + 1, at // 1000),
    )
