"""Records as Arrow columns, named and typed as in Spark's own Kafka source with `includeHeaders`. A module of its own,
as Arrow is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.handler.messages import asked
from kunicorn.handler.record import Record, milliseconds_of

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


def records_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """The messages as an Arrow record batch. Made column by column: one Python object a record would limit the rate."""
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
    if not any(asked(messages, "headers")):
        return pa.nulls(len(messages), HEADERS)
    pairs = (Record.of(message).headers for message in messages)
    return pa.array([[{"key": name, "value": value} for name, value in each] or None for each in pairs], HEADERS)
