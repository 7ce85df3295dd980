"""Records to send, of a `pyarrow.RecordBatch` that a handler has returned: one for each row. A module of its own, as
Arrow is an optional dependency: who has such a batch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kunicorn.handler.outcome import NotToBeSent, Send

if TYPE_CHECKING:
    import pyarrow as pa


def sends_of(batch: pa.RecordBatch) -> list[Send]:
    """The rows as records to send. Raises `NotToBeSent` for columns that are none of a record's."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise NotToBeSent(f"the handler returned columns of which two have one name: {', '.join(names)}")
    if strange := [name for name in names if name not in _COLUMNS]:
        raise NotToBeSent(
            f"the handler returned columns to send with {strange[0]!r} among them: a record has "
            f"{', '.join(_COLUMNS)}; select these, as by batch.select(['key', 'value'])"
        )
    if "value" not in names:
        raise NotToBeSent("the handler returned columns to send without a column 'value'")
    columns = [_COLUMNS[name](name, batch.column(name)) for name in names]
    return [Send(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _refused(name: str, column: pa.Array, wanted: str) -> NotToBeSent:
    return NotToBeSent(f"the handler returned a column {name!r} of the type {column.type}, and a record's is {wanted}")


def _texts(name: str, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
    if not any(check(kind) for check in checks):
        raise _refused(name, column, "a string")
    return list(column.to_pylist())


def _bytes(name: str, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    if not any(check(kind) for check in (*checks, pa.types.is_null)):
        raise _refused(name, column, "binary, or a string; encode it, as each row to JSON")
    return list(column.to_pylist())


def _headers(name: str, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_map(column.type):
        return [each or () for each in column.to_pylist()]
    fields = column.type.value_type if pa.types.is_list(column.type) else None
    if fields is None or not pa.types.is_struct(fields) or {each.name for each in fields} != {"name", "value"}:
        raise _refused(name, column, "list<struct<name: string, value: binary>>, or map<string, binary>")
    return [[(each["name"], each["value"]) for each in row or ()] for row in column.to_pylist()]


def _numbers(name: str, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if not pa.types.is_integer(column.type):
        raise _refused(name, column, "a whole number")
    return list(column.to_pylist())


def _times(name: str, column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    return _numbers(name, column)


_COLUMNS: Mapping[str, Callable[[str, Any], list[Any]]] = {
    "topic": _texts,
    "key": _bytes,
    "value": _bytes,
    "headers": _headers,
    "partition": _numbers,
    "timestamp": _times,
}
"""What a record to send has, and how each is taken from its column."""
