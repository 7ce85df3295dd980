"""Arguments of a handler with mode = "arrow": a `pyarrow.RecordBatch` of one partition's rows in offset order.

The columns are those of `SCHEMA`, whether our own fetcher has made them or they are made here of the client's messages
(in `kunicorn.testing`, in trials, on Spark). A module of its own, as Arrow is an optional dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import undecodable
from kunicorn.handler.decode.arrow_types import struct_named
from kunicorn.handler.decode.forms import BYTES, Gathered
from kunicorn.handler.messages import Run, asked, columns
from kunicorn.handler.record import Record, any_headers, milliseconds_of
from kunicorn.handler.rows import NAMES, VALUE, fitting, value_bytes

if TYPE_CHECKING:
    from kunicorn.handler.decode.json_columns import JsonReader

_HEADER = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
_TIMESTAMP = pa.timestamp("ms", tz="UTC")
_HEADERS = pa.list_(pa.field("item", _HEADER, nullable=False))
_TYPES = (
    pa.dictionary(pa.int32(), pa.string()),
    pa.int32(),
    pa.int64(),
    _TIMESTAMP,
    pa.binary(),
    pa.binary(),
    _HEADERS,
)
_NEVER_NULL = ("topic", "partition", "offset")
SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=name not in _NEVER_NULL) for name, kind in zip(NAMES, _TYPES, strict=True)]
)
"""Columns of every batch: those of `kunicorn.columns`, which is a floor above."""


def rows_of(messages: Sequence[Message]) -> pa.RecordBatch:
    """The messages as columns. Made column by column: one Python object a record would limit the rate."""
    columns = [
        pa.array(asked(messages, "topic"), pa.string()).dictionary_encode(),
        pa.array(asked(messages, "partition"), pa.int32()),
        pa.array(asked(messages, "offset"), pa.int64()),
        pa.array(map(milliseconds_of, messages), pa.int64()).cast(_TIMESTAMP),
        pa.array(asked(messages, "key"), pa.binary()),
        pa.array(asked(messages, "value"), pa.binary()),
        _headers(messages),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _headers(messages: Sequence[Message]) -> pa.Array:
    if not any_headers(messages):
        return pa.nulls(len(messages), _HEADERS)
    pairs = (Record.of(message).headers for message in messages)
    return pa.array([[{"name": name, "value": value} for name, value in each] or None for each in pairs], _HEADERS)


@dataclass(frozen=True, slots=True)
class Columns:
    """Form of handlers that take a batch of rows as columns."""

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        return handle

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """One batch of one row for each message."""
        for at in range(len(messages)):
            self.blame(messages[at])
            yield self.batch(messages[at : at + 1]).argument

    def batch(self, messages: Sequence[Message]) -> Gathered:
        batch = _batch_of(messages)
        return Gathered(batch, batch.num_rows)

    def blame(self, message: Message) -> None:
        """Nothing is decoded: the failure was the handler's."""


_MOST_BYTES = 2**30
"""Of values in one batch: columns, and texts that are decoded of them, have offsets of 32 bits."""


def _batch_of(messages: Run) -> pa.RecordBatch:
    """The leading messages that one batch can have: more could not be joined, and all of them would fail."""
    if value_bytes([messages]) > _MOST_BYTES:
        messages = messages[: fitting(messages, _MOST_BYTES)]
    return rows_of(messages) if (rows := columns(messages)) is None else rows.batch


@dataclass(frozen=True, slots=True)
class DecodedColumns(Columns):
    """Form of handlers whose batches have the values decoded, too, in a column of structs behind the others."""

    reader: JsonReader
    form: str

    def batch(self, messages: Sequence[Message]) -> Gathered:
        batch = _batch_of(messages)
        data, misfit = self.reader.read(batch.column(VALUE))
        count = len(data)
        failure = None if misfit is None else undecodable(messages[count], "value", self.form, misfit.error)
        return Gathered(batch.slice(0, count).append_column("data", data), count, failure)

    def blame(self, message: Message) -> None:
        if (failure := self.batch([message]).undecodable) is not None:
            raise failure


def columns_form(decoding: Decoding) -> Columns:
    """The form that the settings name. Raises `HandlerLoadError`."""
    if decoding.value == "json" and decoding.value_schema is not None and decoding.key == BYTES:
        from kunicorn.handler.decode.json_columns import JsonReader

        reader = JsonReader(struct_named(decoding.value_schema))
        return DecodedColumns(reader, f"JSON of {decoding.value_schema.rpartition(':')[2]}")
    for part, named in (("value", decoding.value), ("key", decoding.key)):
        if named != BYTES:
            raise HandlerLoadError(
                f'handler.{part} = {named!r} decodes records one by one, and handler.mode = "arrow" hands out columns; '
                f"remove the setting and decode the column {part!r} in the handler, or set handler.value_schema beside "
                f'value = "json"'
            )
    return Columns()
