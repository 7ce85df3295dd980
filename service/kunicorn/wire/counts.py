"""Whether every array of a message fits into the bytes that are there, before kio's parser believes its count.

kio's native parser reserves memory for as many items as a count announces. Where the machine has not got that much, the
allocation fails and the process is aborted: no exception, no exit code of ours, and the workers go with it. One wrong
byte from a broker, or from any member of the group in its subscription, would be enough.

Steps over a message without making anything of it: fixed fields in one addition, so that an answer about ten thousand
partitions costs milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any

from kio.serial._introspect import is_optional
from kio.serial.errors import BufferUnderflow
from kio.serial.readers import read_unsigned_varint

from kunicorn.wire.schemas import Schema, field_type

Step = Callable[[bytes, int], int]
"""Where the next field begins, for one that begins at an offset; behind the buffer if it is too short."""

_SIZES = {
    "int8": 1, "bool": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "timedelta_i64": 8, "datetime_i64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip


def check_counts(schema: Schema, buffer: bytes, offset: int) -> None:
    """Raises `BufferUnderflow` where the buffer ends before the message at `offset`; `schema` is kio's class."""
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
    """Its size, or the step over it."""
    inner, array = field_type(field)
    if is_dataclass(inner):
        schema: Schema = inner
        item = _message(schema)
        if array:
            return 0, _array(0, item, flexible)
        return 0, _or_null(item) if is_optional(field) else item
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
    """A string or bytes, null or not."""

    def step(buffer: bytes, at: int) -> int:
        if flexible:
            length, at = _varint(buffer, at)
            return at + max(length - 1, 0)
        return at + prefix + max(int.from_bytes(buffer[at : at + prefix], "big", signed=True), 0)

    return step


def _or_null(item: Step) -> Step:
    return lambda buffer, at: at + 1 if buffer[at] == _NULL else item(buffer, at + 1)


_NULL = 0xFF


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    first = buffer[at]
    if first < 0x80:
        return first, at + 1
    value, size = read_unsigned_varint(buffer, at)
    return int(value), at + size


def _fits(count: int, buffer: bytes, at: int) -> None:
    """Each item takes a byte at least."""
    if count > len(buffer) - at:
        raise BufferUnderflow(f"{count} announced where {max(len(buffer) - at, 0)} bytes are left")
