"""Values that become a column of structs by a schema."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Message
from google.protobuf import struct_pb2, timestamp_pb2

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import Undecodable, typed
from kunicorn.handler.decode.decoders import OfBytes, Part
from kunicorn.handler.decode.typed import DecodedValues, typed_values

ORDER = pa.schema([("id", pa.int64()), ("region", pa.string())])
WRITTEN = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
READER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "region", "type": ["null", "string"], "default": None},
        {"name": "price", "type": ["null", DECIMAL], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "by", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
TEXT = json.dumps(READER)
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
CHOICE = {"type": "record", "name": "C", "fields": [{"name": "a", "type": ["string", "long"]}]}


def records(*values: bytes | None) -> tuple[list[Message], pa.Array]:
    found = [Message(topic="orders", partition=3, offset=at, value=value) for at, value in enumerate(values)]
    return found, pa.array(values, pa.binary())


def avro(raw: bytes) -> Any:
    """As the registry's deserialiser reads it: by the writer's schema, for the reader's."""
    return fastavro.schemaless_reader(io.BytesIO(raw), WRITTEN, READER)


def written(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, WRITTEN, {"id": number})
    return out.getvalue()


def test_json_becomes_columns_and_a_misfit_is_named() -> None:
    values = typed_values(Decoding(value="json"), f"{__name__}:ORDER")
    found = values.read(*records(b'{"id": 1, "region": "eu", "more": 2}', None))
    assert found.to_pylist() == [{"id": 1, "region": "eu"}, None]
    with pytest.raises(Undecodable, match="orders-3@1"):
        values.read(*records(b'{"id": 1}', b'{"id": "x"}', b'{"id": 3}'))


@pytest.mark.parametrize("name", ["READER", "TEXT"])
def test_avro_is_read_by_the_pinned_schema_whatever_it_was_written_with(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = []

    def registered(decoder: str, part: Part, properties: Any) -> Any:
        asked.append(decoder)
        return OfBytes(part, "Avro", avro)

    monkeypatch.setattr("kunicorn.handler.decode.schema_registry.registered", registered)
    values = typed_values(Decoding(value="avro"), f"{__name__}:{name}")
    assert json.loads(asked[0].removeprefix("avro:")) == READER
    found = values.read(*records(written(7), None))
    assert found[0].as_py()["id"] == 7
    assert (found[0].as_py()["region"], found[0].as_py()["tags"], found[1].as_py()) == (None, [], None)
    assert found[0].as_py()["by"] == []
    assert found.type.field("price").type == pa.decimal128(9, 2)
    assert found.type.field("at").type == pa.timestamp("us", "UTC")
    with pytest.raises(Undecodable, match="orders-3@1"):
        values.read(*records(written(7), b""))


def test_protobuf_gives_the_fields_that_are_wanted_and_null_for_what_is_not_set() -> None:
    kind = pa.struct([("string_value", pa.string()), ("number_value", pa.float64()), ("missing", pa.int64())])
    decoder = OfBytes(Part.VALUE, "Protobuf", struct_pb2.Value.FromString)
    values = DecodedValues(kind, decoder, typed._of_message)
    found = values.read(*records(struct_pb2.Value(string_value="a").SerializeToString(), None))
    assert found.to_pylist() == [{"string_value": "a", "number_value": None, "missing": None}, None]
    assert typed._of_item(timestamp_pb2.Timestamp(seconds=2, nanos=3000), pa.timestamp("us", "UTC")) == 2_000_003


@pytest.mark.parametrize(
    ("value", "schema", "why"),
    [
        ("text", "ORDER", "says nothing of which columns are made"),
        ("avro", "TREE", "has itself among its fields"),
        ("avro", "CHOICE", "a union of several types has no column"),
        ("json", "nowhere", "nowhere"),
    ],
)
def test_what_gives_no_columns_is_refused_in_words(value: str, schema: str, why: str) -> None:
    with pytest.raises(HandlerLoadError, match=why):
        typed_values(Decoding(value=value), f"{__name__}:{schema}")
