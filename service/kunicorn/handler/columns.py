"""Records as Arrow columns, named and typed as in Spark's own Kafka source with `includeHeaders`. A module of its own,
as Arrow is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from kunicorn.handler.messages import Run, asked, columns
from kunicorn.handler.record import Record, any_headers, milliseconds_of
from kunicorn.handler.rows import HEADERS as HEADERS_AT
from kunicorn.handler.rows import KEY, NAMES, OFFSET, PARTITION, TIMESTAMP, TOPIC, VALUE

RECORD_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)


_TIMESTAMP_TYPE = len(NAMES)
_MOST_MILLISECONDS = (2**63 - 1) // 1000
MESSAGES = 64 * 1024
"""Rows of a batch at most: a fetch may have many more, and whoever takes a batch has it in memory once again."""


def records_batch(run: Run) -> pa.RecordBatch:
    """The records as an Arrow record batch. Nothing is made of rows for each record where they have the timestamps'
    types behind their own columns; a worker's have not, and each row is asked.
    """
    batch = None if (rows := columns(run)) is None else rows.batch
    return _of_messages(run) if batch is None or batch.num_columns <= _TIMESTAMP_TYPE else _of_rows(batch)


def in_batches(fetched: Iterable[Run]) -> Iterator[Run]:
    """The runs, cut where they are longer than a batch shall be."""
    for run in fetched:
        for at in range(0, len(run), MESSAGES):
            yield run if len(run) <= MESSAGES else run[at : at + MESSAGES]


def _of_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        batch.column(KEY),
        batch.column(VALUE),
        batch.column(TOPIC).dictionary_decode(),
        batch.column(PARTITION),
        batch.column(OFFSET),
        _micros(batch.column(TIMESTAMP)),
        batch.column(_TIMESTAMP_TYPE),
        _named_as_sparks(batch.column(HEADERS_AT)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _micros(times: pa.Array) -> pa.Array:
    """Times in milliseconds as microseconds; null where those have more than 64 bits."""
    numbers = times.view(pa.int64())
    bounds = pc.min_max(numbers)
    if not (bounds["max"].as_py() or 0) <= _MOST_MILLISECONDS:
        numbers = pc.if_else(pc.less_equal(numbers, _MOST_MILLISECONDS), numbers, None)
    return pc.multiply(numbers, 1000).cast(SCHEMA.field("timestamp").type)


def _named_as_sparks(headers: pa.ListArray) -> pa.Array:
    """The same lists, the pairs' first half named as Spark names it: the columns' buffers, no copy."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), HEADERS)
    pairs = headers.values
    named = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=list(HEADERS.value_type))
    return pa.Array.from_buffers(
        HEADERS, len(headers), headers.buffers()[:2], headers.null_count, headers.offset, children=[named]
    )


def _of_messages(messages: Sequence[Message]) -> pa.RecordBatch:
    """Made column by column: one Python object a record would limit the rate."""
    # librdkafka counts the types of a timestamp from 0 (none), Kafka from −1 (`TimestampType.java`).
    kinds = [message.timestamp()[0] - 1 for message in messages]
    micros = [None if milliseconds is None else milliseconds * 1000 for milliseconds in map(milliseconds_of, messages)]
    columns = [
        pa.array(asked(messages, "key"), pa.binary()),
        pa.array(asked(messages, "value"), pa.binary()),
        pa.array(asked(messages, "topic"), pa.string()),
        pa.array(asked(messages, "partition"), pa.int32()),
        pa.array(asked(messages, "offset"), pa.int64()),
        _times(micros),
        pa.array(kinds, pa.int32()),
        _headers(messages),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _times(micros: list[int | None]) -> pa.Array:
    kind = SCHEMA.field("timestamp").type
    try:
        return pa.array(micros, pa.int64()).cast(kind)
    except (OverflowError, pa.ArrowInvalid):
        # Of a producer that writes nanoseconds, say: the record is kept, its time is none that the column can have.
        return pa.array([None if each is None or abs(each) >= 2**63 else each for each in micros], pa.int64()).cast(
            kind
        )


def _headers(messages: Sequence[Message]) -> pa.Array:
    if not any_headers(messages):
        return pa.nulls(len(messages), HEADERS)
    pairs = (Record.of(message).headers for message in messages)
    return pa.array([[{"key": name, "value": value} for name, value in each] or None for each in pairs], HEADERS)
