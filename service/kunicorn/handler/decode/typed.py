"""Values decoded to one Arrow column of structs, by a schema that is given: what they are to readers of a lake or of a
frame stays the same, whatever schema the next record is written with.

JSON is read by columns (`json_columns`). For Avro and Protobuf no library that is kept up decodes single, registered
records by columns: each value is decoded by the registry's own decoder, and the objects become a column then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import NotDecodableYet, undecodable
from kunicorn.handler.decode.arrow_types import struct_named
from kunicorn.handler.decode.decoders import Decoder, Part, one
from kunicorn.handler.decode.json_columns import JsonReader
from kunicorn.handler.load import located


class TypedValues(Protocol):
    """Reader of values of one type; the classes below."""

    @property
    def kind(self) -> pa.StructType: ...

    def read(self, run: Sequence[Message], values: pa.Array) -> pa.StructArray:
        """A struct for each value of the run, null for null; `values` are its bytes. Raises `Undecodable`, which names
        the record, for the first one that does not fit, and `NotDecodableYet`.
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
        return found


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Values that a decoder makes objects of, one by one."""

    kind: pa.StructType
    decoder: Decoder
    plain: Callable[[Any, pa.StructType], Any]
    """Makes what pyarrow takes of the decoder's object."""

    def read(self, run: Sequence[Message], values: pa.Array) -> pa.StructArray:
        """See `TypedValues.read`."""
        messages = list(run)
        try:
            found = [self.plain(each, self.kind) for each in self.decoder.each(messages)]
            return pa.array(found, self.kind)
        except NotDecodableYet:
            raise
        except Exception:
            return pa.concat_arrays([self._one(message) for message in messages])

    def _one(self, message: Message) -> pa.StructArray:
        """As `read` for one record; only to find the one that does not fit."""
        decoded = one(self.decoder, message, Part.VALUE)
        try:
            return pa.array([self.plain(decoded, self.kind)], self.kind)
        except Exception as error:
            raise undecodable(message, "value", self.decoder.form, error) from error


def typed_values(decoding: Decoding, schema: str) -> TypedValues:
    """Reader of values as `decoding` says they are written, of the type that `schema` (package.module:NAME) names: a
    `pyarrow.Schema`, a model, or for Avro its own reader schema. Raises `HandlerLoadError`.
    """
    written, _, _ = decoding.value.partition(":")
    if written == "json":
        kind = struct_named(schema)
        return JsonValues(kind, f"JSON of {schema.rpartition(':')[2]}", JsonReader(kind))
    if written not in ("avro", "protobuf"):
        raise HandlerLoadError(
            f'handler.value = {decoding.value!r} says nothing of which columns are made: set it to "json", "avro" or '
            f'"protobuf:package.module:Message"'
        )
    from kunicorn.handler.decode.schema_registry import registered

    reader = _avro_schema(schema) if written == "avro" else None
    kind = struct_named(schema) if reader is None else _struct_of(reader, schema)
    name = decoding.value if reader is None else f"avro:{json.dumps(reader)}"
    decoder = registered(name, Part.VALUE, decoding.schema_registry)
    return DecodedValues(kind, decoder, _of_mapping if written == "avro" else _of_message)


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
    "date": pa.date32(), "timestamp-millis": pa.timestamp("us", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
    "time-millis": pa.time64("us"), "time-micros": pa.time64("us"), "uuid": pa.string(),
}  # fmt: skip


def _struct_of(avro: Any, schema: str) -> pa.StructType:
    """The Arrow type of what a reader schema gives. Raises `HandlerLoadError`."""
    try:
        kind = _type_of(avro, {}).type
    except (KeyError, TypeError) as error:
        raise HandlerLoadError(f"the schema {schema!r} gives no columns: {error}") from error
    if not pa.types.is_struct(kind):
        raise HandlerLoadError(f"the schema {schema!r} is of {kind}, and columns are the fields of a record")
    return kind


def _type_of(avro: Any, named: dict[str, Any]) -> pa.Field:
    """Type of an Avro schema, in a field that says whether null will do. Raises `TypeError`, `KeyError`."""
    if isinstance(avro, list):
        others = [each for each in avro if each != "null"]
        if len(others) != 1:
            raise TypeError("a union of several types has no column")
        return _type_of(others[0], named).with_nullable(len(others) < len(avro))
    if isinstance(avro, str):
        if avro in named and named[avro] is None:
            raise TypeError(f"{avro} has itself among its fields, and columns have an end")
        return pa.field("item", named[avro] if avro in named else _AVRO[avro], nullable=False)
    if isinstance(avro["type"], dict | list):
        return _type_of(avro["type"], named)
    if avro["type"] == "record":
        named[avro["name"]] = None
    kind = _logical(avro) or _kind_of(avro, named)
    if "name" in avro:
        named[avro["name"]] = kind
    return pa.field("item", kind, nullable=False)


def _logical(avro: Mapping[str, Any]) -> pa.DataType | None:
    if avro.get("logicalType") == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    return _LOGICAL.get(avro.get("logicalType", ""))


def _kind_of(avro: Mapping[str, Any], named: dict[str, Any]) -> pa.DataType:
    match avro["type"]:
        case "record":
            return pa.struct([_type_of(each["type"], named).with_name(each["name"]) for each in avro["fields"]])
        case "array":
            return pa.list_(_type_of(avro["items"], named))
        case "map":
            return pa.map_(pa.string(), _type_of(avro["values"], named).with_name("value"))
        case plain:
            return _AVRO[plain]


def _of_mapping(found: Any, kind: pa.StructType) -> Any:
    """What an Avro record amounts to: pyarrow takes the fields that it knows, and maps as pairs."""
    if found is None or isinstance(found, Mapping):
        return _with_pairs(found, kind) if "map<" in str(kind) else found
    raise TypeError(f"it is of {type(found).__name__}, and columns are the fields of a record")


def _with_pairs(found: Any, kind: pa.DataType) -> Any:
    if found is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _with_pairs(value, kind.item_type)) for key, value in found.items()]
    if pa.types.is_list(kind):
        return [_with_pairs(each, kind.value_type) for each in found]
    if pa.types.is_struct(kind):
        return {each.name: _with_pairs(found.get(each.name), each.type) for each in kind}
    return found


def _of_message(found: Any, kind: pa.StructType) -> Any:
    """The fields of a Protobuf message that the type has. One that is not set is null where it can tell (`optional`,
    messages), else its default.
    """
    return None if found is None else {each.name: _of_field(found, each) for each in kind}


def _of_field(message: Any, field: pa.Field) -> Any:
    descriptor = message.DESCRIPTOR.fields_by_name.get(field.name)
    if descriptor is None:
        return None
    if descriptor.has_presence and not message.HasField(field.name):
        return None
    return _of_item(getattr(message, field.name), field.type)


def _of_item(found: Any, kind: pa.DataType) -> Any:
    if pa.types.is_map(kind):
        return [(key, _of_item(value, kind.item_type)) for key, value in found.items()]
    if pa.types.is_list(kind):
        return [_of_item(each, kind.value_type) for each in found]
    if pa.types.is_timestamp(kind) and hasattr(found, "ToNanoseconds"):
        return found.ToNanoseconds() // 1000
    if pa.types.is_struct(kind):
        return _of_message(found, kind)
    return found
