"""Values that are JSON, decoded to one Arrow column of structs, with no Python object for a record.

pyarrow's reader says what a value means and what is wrong with it. `kunicorn_columns.JsonReader` reads what every
reader takes alike, in a fraction of the time. Where one value of a batch is something else, pyarrow's reader reads all
of them; so it does where the compiled one is not installed.

1. pyarrow's reader takes documents one behind the other, and says of none where it began. So each value stands within a
   document of its own, `{"v":…}`, which it can neither close nor join to the next one without an error; and there are
   as many rows as values, or something is wrong.
2. Of a value `{…},"w":1` that document has a field more, which nobody has asked for. In `{"v":[…]}` it is an error, and
   what is none there, as `{…}],"w":[1`, is one in the other. Where a batch may have such a value it is read a second
   time, for the errors alone: two thirds of the time that the first reading takes.
3. In what nobody has asked for the reader looks for no errors of encoding: they are looked for before.
4. Of several values the reader tells neither which of them do not fit, nor of all that they do not: the first is
   searched by halves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.decode.struct_columns import FirstMisfit, first_missing, narrowed, requires

if TYPE_CHECKING:
    import kunicorn_columns

_BYTES, _TEXT = pa.large_binary(), pa.large_string()
_GOES_ON = re.compile(rb'}\s*,\s*"')
"""What stands in each value that has something behind its object, and in those with an object before another field."""
_NO_FIELD = pa.schema([("", pa.null())])


class JsonReader:
    """Reader of values of one type."""

    def __init__(self, kind: pa.StructType) -> None:
        """Raises `HandlerLoadError` for what cannot be read from JSON."""
        self._kind = kind
        self._wanted = pa.schema([("v", _nullable(kind))])
        self._wide = pa.schema([("v", _wide(_nullable(kind)))])
        self._requires = requires(kind)
        self._compiled = _compiled(self._wanted.field(0).type)
        try:
            self._read(pa.array([b"{}"], _BYTES))
        except pa.ArrowException as error:
            raise HandlerLoadError(f"handler.value_schema has a type that JSON is not read to: {error}") from error

    def read(self, values: pa.Array) -> tuple[pa.StructArray, FirstMisfit | None]:
        """Structs of the values before the first one that does not fit; null for null."""
        values = values.cast(_BYTES)
        misfit = None
        try:
            found = self._read(values)
        except pa.ArrowInvalid:
            misfit = self._first_misfit(values)
            found = self._read(values[: misfit.row]) if misfit.row else _none(self._wanted)
        if self._requires and (missing := first_missing(found, self._kind)) is not None:
            return found[: missing.row], missing
        return found, misfit

    def _read(self, values: pa.Array) -> pa.StructArray:
        """Raises `pa.ArrowInvalid`."""
        if (plain := self._plain(values)) is not None:
            return plain
        documents = _documents(values, '{"v":', "}\n")
        found = _parsed(documents, self._wide, len(values)).column(0).combine_chunks()
        if found.null_count > values.null_count or _GOES_ON.search(documents):
            _parsed(_documents(values, '{"v":[', "]}\n"), _NO_FIELD, len(values))
        found.validate(full=True)
        return found if self._wide == self._wanted else narrowed(found, self._wanted.field(0).type)

    def _plain(self, values: pa.Array) -> pa.StructArray | None:
        """None where one of them is to be judged."""
        if self._compiled is None:
            return None
        valid, offsets, text = (each or b"" for each in values.buffers())
        found = self._compiled.read(valid, offsets, text, values.offset, len(values))
        return None if found is None else pa.array(found)

    def _first_misfit(self, values: pa.Array) -> FirstMisfit:
        """Of values of which at least one does not fit."""
        first, end = 0, len(values)
        while end - first > 1:
            half = first + (end - first) // 2
            if self._misfit(values[first:half]) is None:
                first = half
            else:
                end = half
        if (error := self._misfit(values[first:end])) is None:
            raise pa.ArrowInvalid("values that are each read alone are not read together")
        return FirstMisfit(first, error)

    def _misfit(self, values: pa.Array) -> pa.ArrowInvalid | None:
        try:
            self._read(values)
        except pa.ArrowInvalid as error:
            return error
        return None


def _compiled(kind: pa.StructType) -> kunicorn_columns.JsonReader | None:
    """None where it is not installed, or does not read that type."""
    try:
        from kunicorn_columns import JsonReader as Compiled
    except ImportError:
        return None
    return Compiled.of(kind)


def _documents(values: pa.Array, before: str, behind: str) -> pa.Buffer:
    """Raises `pa.ArrowInvalid` for what is no UTF-8."""
    parts = pa.scalar(before, _TEXT), values.cast(_TEXT), pa.scalar(behind, _TEXT), pa.scalar("", _TEXT)
    return pc.binary_join_element_wise(*parts, null_handling="replace", null_replacement="null").buffers()[2]


def _parsed(documents: pa.Buffer, wanted: pa.Schema, rows: int) -> pa.Table:
    """Raises `pa.ArrowInvalid`."""
    table = json.read_json(
        pa.BufferReader(documents),
        # One block: the reader has no row that begins in one and ends in another.
        json.ReadOptions(use_threads=False, block_size=len(documents) + 1),
        json.ParseOptions(explicit_schema=wanted, newlines_in_values=True, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != rows:
        raise pa.ArrowInvalid("more than one document")
    return table


def _none(wanted: pa.Schema) -> pa.StructArray:
    return pa.array([], wanted.field(0).type)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type without a word on what may be null: the reader refuses null where a value above it is null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _nullable(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    return kind


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type with numbers in which the reader finds none to be infinite that is not."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _wide(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _wide(kind.value_type)))
    return pa.float64() if pa.types.is_floating(kind) else kind
