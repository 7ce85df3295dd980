"""Records as columns: names and types of Spark's own Kafka source with `includeHeaders`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.records import Record

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
    """The messages' columns, made one column at a time: a Python object a record is what limits the rate."""
    times = [message.timestamp() for message in messages]
    # librdkafka counts the types of a timestamp from 0 (none), Kafka from −1 (`TimestampType.java`).
    micros = [None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds * 1000 for kind, milliseconds in times]
    columns = [
        pa.array(map(Message.key, messages), pa.binary()),
        pa.array(map(Message.value, messages), pa.binary()),
        pa.array(map(Message.topic, messages), pa.string()),
        pa.array(map(Message.partition, messages), pa.int32()),
        pa.array(map(Message.offset, messages), pa.int64()),
        pa.array(micros, pa.int64()).cast(SCHEMA.field("timestamp").type),
        pa.array([kind - 1 for kind, _ in times], pa.int32()),
        _headers(messages),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _headers(messages: Sequence[Message]) -> pa.Array:
    if not any(map(Message.headers, messages)):
        return pa.nulls(len(messages), HEADERS)
    pairs = (Record.of(message).headers for message in messages)
    return pa.array([[{"key": name, "value": value} for name, value in each] or None for each in pairs], HEADERS)
