"""A shop's schemas as a schema registry has them, and records that name them."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
from confluent_kafka import Message
from google.protobuf import descriptor_pb2, message_factory

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "by", "type": "string"}]}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
_FILE = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
_FILE.message_type.add(name="Order").field.add(name="by", number=1, type=9, label=1)
ShopOrder = message_factory.GetMessages([_FILE])["shop.Order"]
SHOP_ORDER = f"protobuf:{__name__}:ShopOrder"
"""The decoder of Protobuf into that class."""
# With `format=serialized`, which the deserialiser asks for, a Protobuf schema is its descriptor in Base64.
PROTOBUF = base64.b64encode(_FILE.SerializeToString()).decode()
SCHEMAS = {
    "1": {"schema": json.dumps(AVRO)},
    "2": {"schema": json.dumps(JSON), "schemaType": "JSON"},
    "3": {"schema": PROTOBUF, "schemaType": "PROTOBUF"},
}


def framed(number: int, payload: bytes) -> bytes:
    """Confluent's wire format: a zero, the schema's id, the payload."""
    return b"\0" + number.to_bytes(4, "big") + payload


def avro(order: dict[str, Any], schema: Any = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), order)
    return out.getvalue()


def message(value: bytes | None) -> Message:
    return Message(topic="orders", partition=3, offset=7, value=value, key=b"k")
