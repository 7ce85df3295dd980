"""Schemas by which values become columns."""

import pyarrow as pa

AVRO_ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string", "aliases": ["by"]},
        {"name": "region", "type": "string", "default": "nowhere"},
    ],
}
"""A reader schema: of writers that have no region, and other names."""

ORDER = pa.schema([("id", pa.int64()), ("region", pa.string()), ("at", pa.timestamp("us", "UTC"))])

SHOP_ORDER = pa.schema([("by", pa.string())])
"""The fields that are wanted of the shop's Protobuf message, whose class its `handler.value` names."""
