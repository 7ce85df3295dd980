"""What runs in Spark's executors: functions for `mapInArrow` that take ranges and give back one summary each.

The records never pass through Spark: the task fetches them itself and handles them in the same process. Its outcome
rows go into a file named after the range, so that a range that is handled again, by a second attempt of the task or
after a crash, replaces its rows instead of adding to them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message

from kunicorn.handling.calls import Calls
from kunicorn.handling.handlings import Handlings
from kunicorn.handling.retry import End
from kunicorn.pipeline.executors import SettingsFile, set_up, tear_down
from kunicorn.pipeline.handling import RangeHandler
from kunicorn.pipeline.hands import InHand, take_up
from kunicorn.pipeline.outcome_table import SCHEMA, Row, table
from kunicorn.pipeline.ranges import OffsetRange
from kunicorn.pipeline.reading import Window
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.suspects import Suspects
from kunicorn.settings import Settings

if TYPE_CHECKING:
    from pyspark import Accumulator

SUMMARY = (
    "topic string, partition int, start bigint, stop bigint, until bigint, records bigint, skipped bigint, "
    "dead_letters bigint, halted string, file string, seconds double"
)
"""The columns of a `Summary`, for Spark."""

_SUMMARY_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("until", pa.int64()),
        ("records", pa.int64()),
        ("skipped", pa.int64()),
        ("dead_letters", pa.int64()),
        ("halted", pa.string()),
        ("file", pa.string()),
        ("seconds", pa.float64()),
    ]
)
_ROWS = 1000
"""Outcome rows held back at most: a handler that fails on everything must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of one range."""

    topic: str
    partition: int
    start: int
    stop: int
    until: int
    """The next offset to handle; below `stop` where the partition halts."""
    records: int
    """Taken by the handler."""
    skipped: int
    dead_letters: int
    halted: str | None
    """Why the partition halts, where it does."""
    file: str
    """Its rows of the outcome table, below the run's directory."""
    seconds: float

    @property
    def range(self) -> OffsetRange:
        """What the task was given."""
        return OffsetRange(self.topic, self.partition, self.start, self.stop)


def rows_file(whole: OffsetRange) -> str:
    """The name of a range's file: the same at every attempt, and sorted as the offsets are."""
    return f"{whole.topic}/{whole.partition}/{whole.start:020}-{whole.stop:020}.parquet"


Batches = Iterator[pa.RecordBatch]
Task = Callable[[Iterator[OffsetRange]], Batches]
"""Takes ranges, gives a summary each."""


@dataclass(frozen=True, slots=True)
class FromSource:
    """A task over the rows of the source `kunicorn` with `rows` = `ranges`. Called by Spark."""

    task: Task

    def __call__(self, batches: Batches) -> Batches:
        """As `mapInArrow` wants it."""
        rows = (row for batch in batches for row in batch.to_pylist())
        return self.task(OffsetRange(row["topic"], row["partition"], row["start"], row["stop"]) for row in rows)


@dataclass(frozen=True, slots=True)
class FromNumbers:
    """A task over the rows of `spark.range`, each the number of a range that the driver has planned. Called by Spark.

    The source would start two more Python processes a round, only to be told what the driver knows.
    """

    ranges: Sequence[OffsetRange]
    task: Task
    through: Accumulator[int]
    """Hears of the offsets of every range that is through."""

    def __call__(self, batches: Batches) -> Batches:
        """As `mapInArrow` wants it."""
        for summary in self.task(self.ranges[number] for batch in batches for number in batch.column(0).to_pylist()):
            self.through.add(sum(row["until"] - row["start"] for row in summary.to_pylist()))
            yield summary


@dataclass(frozen=True, slots=True)
class HandleRanges:
    """Handle the records of the ranges. Runs in an executor's Python process."""

    file: SettingsFile
    outcomes: Directory
    window: Window | None = None
    """Which of their records; None: all."""

    def __call__(self, ranges: Iterator[OffsetRange]) -> Batches:
        """One summary a range. What the handler raises is in there; what is raised here makes Spark try again."""
        handlings = None
        for whole in ranges:
            settings = self.file.settings()
            handlings = handlings or set_up(settings)
            hand = take_up(whole, self.outcomes)
            rows = self._handler(settings, handlings, whole.topic, hand)
            summary = self._one(whole, rows.handle(whole, self._records(whole)))
            hand.over()
            yield summary
        if handlings is not None:
            tear_down(handlings)

    def _records(self, whole: OffsetRange) -> Iterator[list[Message]]:
        fetched = self.file.reader().read(whole)
        return fetched if self.window is None else self.window.chosen(fetched)

    def _handler(self, settings: Settings, handlings: Handlings[Calls], topic: str, hand: InHand) -> RangeHandler:
        handling = handlings.of(topic)
        suspects = Suspects(hand.died_with, settings.workers.max_crashes)
        return RangeHandler(
            handling.calls,
            handling.policies,
            handling.batch_max_records,
            settings.handler_of(topic).handler_timeout_ms,
            cells=hand.cells,
            suspects=suspects,
            batch_max_bytes=handling.batching.max_bytes,
        )

    def _one(self, whole: OffsetRange, rows: Iterator[Row]) -> pa.RecordBatch:
        began = time.monotonic()
        counts, last = Counter[str](), None
        file = rows_file(whole)
        with self.outcomes.writing(file) as stream, pq.ParquetWriter(stream, SCHEMA) as writer:
            for some in _grouped(rows):
                for last in some:
                    counts[last["status"]] += last["records"]
                writer.write_batch(table(some))
        halted = last is not None and last["status"] == End.HALT
        return summary_batch(
            Summary(
                *whole,
                until=whole.start if last is None else last["until"],
                records=counts[End.DONE],
                skipped=counts[End.SKIP],
                dead_letters=counts[End.DEAD_LETTER],
                halted=_why(last) if last is not None and halted else None,
                file=file,
                seconds=time.monotonic() - began,
            )
        )


def _grouped(rows: Iterator[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) == _ROWS:
            yield some
            some = []
    if some:
        yield some


def _why(row: Row) -> str:
    message = f": {row['error_message']}" if row["error_message"] else ""
    return f"{row['topic']}-{row['partition']}@{row['offset']}: {row['error_type']}{message}"


def summary_batch(summary: Summary) -> pa.RecordBatch:
    """A summary on its way to the driver."""
    values: dict[str, Any] = {name: getattr(summary, name) for name in _SUMMARY_SCHEMA.names}
    return pa.RecordBatch.from_pylist([values], schema=_SUMMARY_SCHEMA)


def summaries(rows: Iterable[Any]) -> list[Summary]:
    """Summaries that have arrived, as Spark's rows."""
    return [Summary(**row.asDict()) for row in rows]
