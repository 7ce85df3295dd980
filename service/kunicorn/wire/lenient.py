"""A second reader for kio's messages that forgives what a newer broker may send.

kio's own reader is fast and strict: one unknown tagged field or one unknown error code makes a whole answer
undecodable, against the protocol's promise that clients skip what they do not know (KIP-482). This one skips unknown
tags, keeps unknown error codes as integers and takes null for any string. It runs only where kio's has refused.

Raises one of `UNREADABLE` and nothing else, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial._implicit_defaults import get_tagged_field_default
from kio.serial._introspect import is_optional
from kio.serial._parse import get_reader
from kio.serial.errors import BufferUnderflow, NegativeByteLength, SerialError
from kio.serial.readers import read_int8, read_int16, read_int32, read_int64, read_unsigned_varint

from kunicorn.wire.schemas import Schema, field_type

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Reads at an offset; returns the value and the number of bytes it took."""

UNREADABLE = (SerialError, KeyError, ValueError, OverflowError)
"""What kio raises on bytes that it cannot read: too few of them, unknown tags and error codes, stray nulls,
variable-length integers without an end, times out of range."""

_NULL_STRUCT = -1
_MAX_MILLISECONDS = timedelta.max // timedelta(milliseconds=1) - 1


@cache
def lenient_reader(schema: Schema) -> Reader:
    """The reader for one of kio's classes; made once."""
    plain = [(field.name, _field_reader(schema, field)) for field in fields(schema) if "tag" not in field.metadata]
    tagged = {
        field.metadata["tag"]: (field.name, _field_reader(schema, field))
        for field in fields(schema)
        if "tag" in field.metadata
    }
    defaults = {field.name: get_tagged_field_default(field) for field in fields(schema) if "tag" in field.metadata}

    def read(buffer: bytes, offset: int) -> tuple[Any, int]:
        at = offset
        values = dict(defaults)
        for name, read_field in plain:
            values[name], size = read_field(buffer, at)
            at += size
        if schema.__flexible__:
            at += _read_tags(tagged, values, buffer, at)
        return schema(**values), at - offset

    return read


def _read_tags(tagged: dict[int, tuple[str, Reader]], values: dict[str, Any], buffer: bytes, offset: int) -> int:
    """Store the tagged fields we know in `values`, step over the others; return the size of them all."""
    count, size = read_unsigned_varint(buffer, offset)
    at = offset + size
    for _ in range(count):
        tag, size = read_unsigned_varint(buffer, at)
        at += size
        length, size = read_unsigned_varint(buffer, at)
        at += size
        if at + length > len(buffer):
            raise BufferUnderflow(f"tagged field {tag} ends {at + length - len(buffer)} bytes behind the frame")
        if tag in tagged:
            name, read_field = tagged[tag]
            values[name], _ = read_field(buffer, at)
        at += length
    return at - offset


def _field_reader(schema: Schema, field: Field[Any]) -> Reader:
    inner, array = field_type(field)
    nested = is_dataclass(inner)
    if nested:
        read = lenient_reader(inner)
        if is_optional(field) and not array:
            read = _or_null(read)
    else:
        read = _primitive_reader(field.metadata["kafka_type"], schema.__flexible__)
    return _array_reader(read, schema.__flexible__) if array else read


def _primitive_reader(kafka_type: str, flexible: bool) -> Reader:
    if kafka_type in _OWN_READERS:
        return _OWN_READERS[kafka_type]
    native: Reader = get_reader(kafka_type, flexible, kafka_type in _NULLABLE)
    return native


def _read_error_code(buffer: bytes, offset: int) -> tuple[int, int]:
    code, size = read_int16(buffer, offset)
    try:
        return ErrorCode(code), size
    except ValueError:
        return int(code), size


def _read_timedelta_i64(buffer: bytes, offset: int) -> tuple[timedelta, int]:
    """Clamped: a broker says "for ever" as the largest int64, which no timedelta holds."""
    milliseconds, size = read_int64(buffer, offset)
    clamped = max(-_MAX_MILLISECONDS, min(_MAX_MILLISECONDS, milliseconds))
    return timedelta(milliseconds=clamped), size


def _read_bool(buffer: bytes, offset: int) -> tuple[bool, int]:
    """Any byte but zero is true, as Kafka's own readers have it."""
    value, size = read_int8(buffer, offset)
    return value != 0, size


_OWN_READERS: dict[str, Reader] = {
    "bool": _read_bool,
    "error_code": _read_error_code,
    "timedelta_i64": _read_timedelta_i64,
}

_NULLABLE = frozenset({"string", "bytes", "records", "datetime_i64"})
"""Types whose null is taken even where the protocol forbids it; some brokers send nulls along with an error."""


def _or_null(read_struct: Reader) -> Reader:
    """A nullable structure begins with a byte that says whether it is there (KIP-893)."""

    def read(buffer: bytes, offset: int) -> tuple[Any, int]:
        marker, size = read_int8(buffer, offset)
        if marker == _NULL_STRUCT:
            return None, size
        value, value_size = read_struct(buffer, offset + size)
        return value, size + value_size

    return read


def _array_reader(read_item: Reader, flexible: bool) -> Reader:
    def read(buffer: bytes, offset: int) -> tuple[Any, int]:
        if flexible:
            stored, size = read_unsigned_varint(buffer, offset)
            count = int(stored) - 1
        else:
            stored_length, size = read_int32(buffer, offset)
            count = int(stored_length)
        if count == -1:
            return None, size
        if count < 0:
            raise NegativeByteLength(f"an array of {count} items")
        at = offset + size
        items = []
        for _ in range(count):
            item, size = read_item(buffer, at)
            items.append(item)
            at += size
        return tuple(items), at - offset

    return read
