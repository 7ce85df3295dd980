"""Values decoded to one Arrow column of structs, by a schema that is given: what they are to readers of a lake or of a
frame stays the same, whatever schema the next record is written with.

JSON is read by columns (`json_columns`). For Avro and Protobuf no library that is kept up decodes single, registered
records by columns: each value is decoded by the registry's own decoder, and the objects become a column then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, undecodable
from kunicorn.handler.decode.arrow_types import struct_named
from kunicorn.handler.decode.decoders import Decoder, Part, one
from kunicorn.handler.decode.struct_columns import (
    Fields,
    fields_of_mappings,
    fields_of_messages,
    filled,
    first_missing,
    not_built,
    objects_as_column,
    requires,
)
from kunicorn.handler.load import located

if TYPE_CHECKING:
    from kunicorn.handler.decode.json_columns import JsonReader


class TypedValues(Protocol):
    """Reader of values of one type; the classes below."""

    @property
    def kind(self) -> pa.StructType: ...

    def read(self, run: Sequence[Message], values: pa.Array) -> pa.StructArray:
        """A column of `kind`, with a struct for each value of the run, null for null; `values` are its bytes. Raises
        `Undecodable`, which names the record, for the first one that does not fit, and `NotDecodableYet`.
        """


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Values that are JSON."""

    kind: pa.StructType
    form: str
    reader: JsonReader

    def read(self, run: Sequence[Message], values: pa.Array) -> pa.StructArray:
        """See `TypedValues.read`."""
        found, misfit = self.reader.read(values)
        if misfit is not None:
            raise undecodable(run[misfit.row], "value", self.form, misfit.error)
        return filled(found, self.kind)


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Values that a decoder makes objects of, one by one."""

    kind: pa.StructType
    decoder: Decoder
    fields: Fields
    """Of the decoder's objects."""
    given: pa.StructType | None = None
    """Of a reader schema of Avro's: `kind` with the units that it has."""

    def read(self, run: Sequence[Message], values: pa.Array) -> pa.StructArray:
        """See `TypedValues.read`."""
        messages = list(run)
        try:
            return self._column([*self.decoder.each(messages)])
        except NotDecodableYet:
            raise
        except Exception:
            return pa.concat_arrays([self._one(message) for message in messages])

    def _column(self, found: Sequence[Any]) -> pa.StructArray:
        """Raises `FieldRefused`, `NullRefused`."""
        column = objects_as_column(found, self.kind, self.fields, given=self.given)
        if requires(self.kind) and (missing := first_missing(column, self.kind)) is not None:
            raise missing.error
        return filled(column, self.kind)

    def _one(self, message: Message) -> pa.StructArray:
        """As `read` for one record; only to find the one that does not fit."""
        decoded = one(self.decoder, message, Part.VALUE)
        try:
            return self._column([decoded])
        except Exception as error:
            raise undecodable(message, "value", self.decoder.form, error) from error


def typed_values(decoding: Decoding, schema: str) -> TypedValues:
    """Reader of values as `decoding` says they are written, of the type that `schema` (package.module:NAME) names: a
    `pyarrow.Schema`, a model, or for Avro its own reader schema. Raises `HandlerLoadError`.
    """
    written, _, _ = decoding.value.partition(":")
    if written == "json":
        from kunicorn.handler.decode.json_columns import JsonReader

        kind = struct_named(schema)
        return JsonValues(kind, f"JSON of {schema.rpartition(':')[2]}", JsonReader(kind))
    if written not in ("avro", "protobuf"):
        raise HandlerLoadError(
            f'handler.value = {decoding.value!r} says nothing of which columns are made: set it to "json", "avro" or '
            f'"protobuf:package.module:Message"'
        )
    from kunicorn.handler.decode.schema_registry import registered

    reader = _avro_schema(schema) if written == "avro" else None
    given = None if reader is None else _struct_of(reader, schema)
    kind = struct_named(schema) if given is None else _in_microseconds(given)
    if (strange := not_built(kind)) is not None:
        raise HandlerLoadError(
            f"the schema {schema!r} has {strange}, and no column of that type is made: choose another"
        )
    name = decoding.value if reader is None else f"avro:{json.dumps(reader)}"
    decoder = registered(name, Part.VALUE, decoding.schema_registry)
    return DecodedValues(kind, decoder, fields_of_mappings if written == "avro" else fields_of_messages, given)


def _avro_schema(schema: str) -> Any | None:
    """The Avro schema of that name, as JSON has it; None where the name is of something else."""
    found = located(f"the schema {schema!r}", schema)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError as error:
            raise HandlerLoadError(f"the schema {schema!r} is a text that is not JSON: {error}") from error
    return found if isinstance(found, Mapping) else None


_AVRO: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip
_LOGICAL: Mapping[str, pa.DataType] = {
    "int-date": pa.date32(), "long-timestamp-millis": pa.timestamp("ms", "UTC"),
    "long-timestamp-micros": pa.timestamp("us", "UTC"), "long-local-timestamp-millis": pa.timestamp("ms"),
    "long-local-timestamp-micros": pa.timestamp("us"), "int-time-millis": pa.time32("ms"),
    "long-time-micros": pa.time64("us"), "string-uuid": pa.string(),
}  # fmt: skip
"""By Avro's type and logical type: the decoder, too, leaves others as they are."""
_DIGITS = 38
"""Of a decimal, as engines have them."""


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with times in the unit that the decoder's objects have, whatever unit their writer counts in."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_microseconds(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_in_microseconds(kind.item_type)))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else kind


def _struct_of(avro: Any, schema: str) -> pa.StructType:
    """The Arrow type of what a reader schema gives. Raises `HandlerLoadError`."""
    try:
        kind = _type_of(avro, {}, "").type
    except (KeyError, TypeError, ValueError) as error:
        raise HandlerLoadError(f"the schema {schema!r} gives no columns: {error}") from error
    if not pa.types.is_struct(kind):
        raise HandlerLoadError(f"the schema {schema!r} is of {kind}, and columns are the fields of a record")
    return kind


def _type_of(avro: Any, named: dict[str, Any], space: str) -> pa.Field:
    """Type of an Avro schema, in a field that says whether null will do. `named`: types by their full names; `space`:
    the namespace that the schema stands in. Raises `TypeError`, `KeyError`, `ValueError`.
    """
    if isinstance(avro, list):
        others = [each for each in avro if each != "null"]
        if len(others) != 1:
            raise TypeError("a union of several types has no column")
        return _type_of(others[0], named, space).with_nullable(len(others) < len(avro))
    if isinstance(avro, str):
        name = _full_name(avro, space)
        if name in named and named[name] is None:
            raise TypeError(f"{avro} has itself among its fields, and columns have an end")
        return pa.field("item", named[name] if name in named else _AVRO[avro], nullable=False)
    if isinstance(avro["type"], dict | list):
        return _type_of(avro["type"], named, space)
    name = _full_name(avro["name"], avro.get("namespace", space)) if "name" in avro else ""
    if avro["type"] == "record":
        named[name] = None
    kind = _logical(avro) or _kind_of(avro, named, name.rpartition(".")[0] if name else space)
    if name:
        named[name] = kind
    return pa.field("item", kind, nullable=False)


def _full_name(name: str, space: str) -> str:
    """The name with its namespace, as Avro has it."""
    return name if "." in name or not space else f"{space}.{name}"


def _logical(avro: Mapping[str, Any]) -> pa.DataType | None:
    logical = f"{avro['type']}-{avro.get('logicalType')}"
    if logical not in ("bytes-decimal", "fixed-decimal"):
        return _LOGICAL.get(logical)
    if avro["precision"] > _DIGITS:
        raise TypeError(
            f"a decimal of {avro['precision']} digits has no column, as engines have {_DIGITS}: say {_DIGITS} in the "
            f"reader schema, and values that have more are refused"
        )
    return pa.decimal128(avro["precision"], avro.get("scale", 0))


def _kind_of(avro: Mapping[str, Any], named: dict[str, Any], space: str) -> pa.DataType:
    match avro["type"]:
        case "record":
            return pa.struct([_type_of(each["type"], named, space).with_name(each["name"]) for each in avro["fields"]])
        case "array":
            return pa.list_(_type_of(avro["items"], named, space))
        case "map":
            return pa.map_(pa.string(), _type_of(avro["values"], named, space).with_name("value"))
        case plain:
            return _type_of(plain, named, space).type
