"""The outcome table: the outcome of every offset of a range, made by tasks and kept as Parquet. Pure.

A row covers the offsets from `offset` up to, not including, `until`. Records that the handler took without a word share
a row; each that failed has its own, with the record itself where it is a dead letter. The rows of a range tile it: no
gap, no overlap, whatever compaction and transactions have left of its offsets. Only a row `halt` covers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.handler.dead_letters import Cause
from kunicorn.handler.record import Record
from kunicorn.handler.retry import End
from kunicorn.positions import OffsetRange

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME = pa.timestamp("ms", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("until", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error_type", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("error_stack", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("time", _TIME),
        pa.field("timestamp", _TIME),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS),
    ]
)
"""`status` is one of `kunicorn.handler.retry.End`; `time` is when it was given up, `timestamp` the record's own. A
row of a dead letter also has `reason` and `letter_topic`, which say where its letter goes; no table has them."""

Row = dict[str, Any]


class Tiling:
    """Makes the rows of one range, from its start on, without gap or overlap."""

    def __init__(self, whole: OffsetRange) -> None:
        self._whole = whole
        self._begin = whole.start
        """The first offset that no row covers."""
        self._records = 0
        """Handled records of the row that is not closed."""
        self._ahead: list[int] = []
        """Heap: offsets of handled records behind one that is not."""

    def handled(self, records: int) -> None:
        """Note that the handler took so many more records."""
        self._records += records

    def handled_ahead(self, offsets: Iterable[int]) -> None:
        """Note that the handler took these records, though not one before them: they count once a row reaches them."""
        for offset in offsets:
            heappush(self._ahead, offset)

    def failed(self, message: Message, end: End, cause: Cause, now_ms: int) -> Iterator[Row]:
        """Row of the next record, which ends as `end` at `now_ms` (milliseconds since 1970). Nothing may follow a
        `halt`.
        """
        record = Record.of(message)
        yield from self._close(record.offset)
        self._begin = record.offset if end is End.HALT else record.offset + 1
        row = self._row(record.offset, self._begin, self._begin - record.offset, end) | {
            "error_type": cause.type,
            "error_message": cause.message,
            "error_stack": cause.stack,
            "attempts": cause.attempts,
            "time": now_ms,
            "timestamp": record.timestamp,
        }
        if end is End.DEAD_LETTER:
            headers = [{"key": name, "value": value} for name, value in record.headers]
            row |= {"key": record.key, "value": record.value, "headers": headers}
            row |= {"reason": cause.reason, "letter_topic": cause.topic}
        yield row

    def rest(self) -> Iterator[Row]:
        """Last row, up to the range's end. Caller: when all records are handled."""
        yield from self._close(self._whole.stop)

    def _close(self, until: int) -> Iterator[Row]:
        while self._ahead and self._ahead[0] < until:
            heappop(self._ahead)
            self._records += 1
        if self._begin < until:
            yield self._row(self._begin, until, self._records, End.DONE)
        self._begin, self._records = until, 0

    def _row(self, offset: int, until: int, records: int, end: End) -> Row:
        return {
            "topic": self._whole.topic,
            "partition": self._whole.partition,
            "offset": offset,
            "until": until,
            "records": records,
            "status": end.value,
        }


def table(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows as an Arrow batch."""
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
