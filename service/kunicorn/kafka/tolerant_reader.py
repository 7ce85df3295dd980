"""Second reader for kio's messages, which forgives what a newer broker may send, and a check of counts before kio's
own.

kio's reader is fast and strict: one unknown tagged field or one unknown error code makes a whole answer undecodable,
against the protocol's promise that clients skip what they do not know (KIP-482). This one skips unknown tags, keeps
unknown error codes as integers and takes null for any string. It runs only where kio's has refused, and raises one of
`UNREADABLE` and nothing else, whatever the bytes.

`check_counts` comes before either. kio's native parser reserves memory for as many items as an array's count announces;
where the machine has not got that much, the allocation fails and the process is aborted: no exception, no exit code of
ours, and the workers go with it. One wrong byte from a broker, or from any member of the group in its subscription,
would be enough. The check steps over fixed fields in one addition, so that an answer about ten thousand partitions
costs milliseconds.
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

from kunicorn.kafka.versions import Schema, field_type

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Reads at an offset; returns the value and the number of bytes it took."""

UNREADABLE = (SerialError, KeyError, ValueError, OverflowError)
"""What kio raises on bytes that it cannot read: too few of them, unknown tags and error codes, stray nulls,
variable-length integers without an end, times out of range."""

_NULL_STRUCT = -1
_MAX_MILLISECONDS = timedelta.max // timedelta(milliseconds=1) - 1


@cache
def lenient_reader(schema: Schema) -> Reader:
    """Reader for one of kio's classes; made once."""
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
    """Read the tagged fields we know into `values` and step over the others; the size of them all."""
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


Step = Callable[[bytes, int], int]
"""Where the next field begins, for one that begins at an offset; behind the buffer if it is too short."""

_SIZES = {
    "int8": 1, "bool": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "timedelta_i64": 8, "datetime_i64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip


def check_counts(schema: Schema, buffer: bytes, offset: int) -> None:
    """Raise `BufferUnderflow` where the buffer ends before the message at `offset`; `schema` is kio's class."""
    try:
        end = _message(schema)(buffer, offset)
    except IndexError:
        end = len(buffer) + 1
    if end > len(buffer):
        raise BufferUnderflow(f"a length or count reaches behind the {len(buffer)} bytes there are")


@cache
def _message(schema: Schema) -> Step:
    flexible = bool(schema.__flexible__)
    steps: list[tuple[int, Step]] = []
    fixed = 0
    for field in fields(schema):
        if "tag" in field.metadata:
            continue
        size, step = _field(field, flexible)
        fixed += size
        if step is not None:
            steps.append((fixed, step))
            fixed = 0
    if flexible:
        tagged = {f.metadata["tag"]: _tagged(f) for f in fields(schema) if "tag" in f.metadata}
        steps.append((fixed, _tags(tagged)))
        fixed = 0

    def message(buffer: bytes, at: int) -> int:
        for size, step in steps:
            at = step(buffer, at + size)
        return at + fixed

    return message


def _field(field: Field[Any], flexible: bool) -> tuple[int, Step | None]:
    """Size of a field, or the step over it."""
    inner, array = field_type(field)
    if is_dataclass(inner):
        schema: Schema = inner
        item = _message(schema)
        if array:
            return 0, _array(0, item, flexible)
        return 0, _counts_or_null(item) if is_optional(field) else item
    kind = field.metadata["kafka_type"]
    size = _SIZES.get(kind, 0)
    text = None if size else _bytes(2 if kind == "string" else 4, flexible)
    if array:
        return 0, _array(size, text, flexible)
    return size, text


def _tagged(field: Field[Any]) -> Step:
    size, step = _field(field, flexible=True)
    return step or (lambda _, at: at + size)


def _tags(known: dict[int, Step]) -> Step:
    def tags(buffer: bytes, at: int) -> int:
        if buffer[at] == 0:
            return at + 1
        count, at = _varint(buffer, at)
        _fits(count, buffer, at)
        for _ in range(count):
            tag, at = _varint(buffer, at)
            length, at = _varint(buffer, at)
            _fits(length, buffer, at)
            if tag in known:
                known[tag](buffer, at)
            at += length
        return at

    return tags


def _array(size: int, item: Step | None, flexible: bool) -> Step:
    def array(buffer: bytes, at: int) -> int:
        if flexible:
            count, at = _varint(buffer, at)
            count -= 1
        else:
            count, at = int.from_bytes(buffer[at : at + 4], "big", signed=True), at + 4
        _fits(count, buffer, at)
        if item is None:
            return at + size * max(count, 0)
        for _ in range(count):
            at = item(buffer, at)
        return at

    return array


def _bytes(prefix: int, flexible: bool) -> Step:
    """Step over a string or bytes, null or not."""

    def step(buffer: bytes, at: int) -> int:
        if flexible:
            length, at = _varint(buffer, at)
            return at + max(length - 1, 0)
        return at + prefix + max(int.from_bytes(buffer[at : at + prefix], "big", signed=True), 0)

    return step


def _counts_or_null(item: Step) -> Step:
    return lambda buffer, at: at + 1 if buffer[at] == _NULL else item(buffer, at + 1)


_NULL = 0xFF


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    first = buffer[at]
    if first < 0x80:
        return first, at + 1
    value, size = read_unsigned_varint(buffer, at)
    return int(value), at + size


def _fits(count: int, buffer: bytes, at: int) -> None:
    """Raise where the bytes left are fewer than the items announced: each takes a byte at least."""
    if count > len(buffer) - at:
        raise BufferUnderflow(f"{count} announced where {max(len(buffer) - at, 0)} bytes are left")
