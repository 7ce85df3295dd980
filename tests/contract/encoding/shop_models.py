"""What a shop sends: models of each kind, the schemas of its totals, and encoders of its own."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, message_factory
from pydantic import BaseModel, Field

from kunicorn.handler.encode import NotEncodableYet

PAID_AT = datetime(2026, 11, 24, 12, tzinfo=UTC)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Total",
    "namespace": "shop",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "paid_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "currency", "type": "string"}]}
"""Incompatible: without a default."""
COUNT = {"type": "record", "name": "Count", "fields": [{"name": "n", "type": "int"}]}
JSON = {
    "title": "Total",
    "type": "object",
    "properties": {"customer": {"type": "string"}, "amount": {"type": "string"}},
    "required": ["customer", "amount"],
}
_FILE = descriptor_pb2.FileDescriptorProto(name="totals.proto", package="totals", syntax="proto3")
_FILE.message_type.add(name="Refund").field.add(name="customer", number=1, type=9, label=1)
_OUTER = _FILE.message_type.add(name="Total")
_OUTER.field.add(name="customer", number=1, type=9, label=1)
_OUTER.field.add(name="amount", number=2, type=5, label=1)
_OUTER.nested_type.add(name="Line").field.add(name="sku", number=1, type=9, label=1)
_CLASSES = message_factory.GetMessages([_FILE])
ProtoTotal, ProtoRefund = _CLASSES["totals.Total"], _CLASSES["totals.Refund"]
ProtoLine = message_factory.GetMessageClass(ProtoTotal.DESCRIPTOR.nested_types_by_name["Line"])
TOTALS = f"protobuf:{__name__}:ProtoTotal"


@dataclasses.dataclass
class DataclassTotal:
    """A total."""

    customer: str
    amount: Decimal
    paid_at: datetime
    note: str | None = None


class StructTotal(msgspec.Struct):
    """A total."""

    customer: str
    amount: Decimal
    paid_at: datetime
    note: str | None = None


class PydanticTotal(BaseModel):
    """A total; the name in the schema is an alias."""

    who: str = Field(alias="customer")
    amount: Decimal
    paid_at: datetime
    note: str | None = None


TOTAL: Any = {"customer": "Ada", "amount": Decimal("12.50"), "paid_at": PAID_AT, "note": None}
MODELS: Any = [DataclassTotal(**TOTAL), StructTotal(**TOTAL), PydanticTotal(**TOTAL), dict(TOTAL)]
AVRO_TEXT = json.dumps(AVRO)


def shouted(item: object) -> bytes:
    """An encoder of the shop's own."""
    if item == "away":
        raise NotEncodableYet("the vault is away")
    return str(item).upper().encode()


def careless(item: object) -> object:
    """An encoder that returns no bytes."""
    return item
