"""What the schema registry knows, and encoders that ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kunicorn.handler.config import Encoding, OutputEncoding
from kunicorn.handler.encode.encoders import Encoder
from tests.contract.encoding.shop_models import AVRO, JSON

SCHEMAS = {
    "1": {"schema": json.dumps({**AVRO, "doc": "the first"}), "subject": "totals-value"},
    "2": {"schema": json.dumps(AVRO), "subject": "totals-value"},
    "3": {"schema": json.dumps(JSON), "schemaType": "JSON", "subject": "documents-value"},
    "4": {"schema": '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}',
          "subject": "totals-key"},
}  # fmt: skip


@pytest.fixture
def registered() -> Mapping[str, object]:
    """Schemas of what a shop sends."""
    return SCHEMAS


@pytest.fixture
def encoder(properties: dict[str, Any]) -> Callable[..., Encoder]:
    """Makes an encoder of what goes to the topic totals, by the settings given."""

    def make(value: str = "avro", failed: Any = lambda topic, why: None, **settings: Any) -> Encoder:
        encoding = Encoding(OutputEncoding(value, **settings), schema_registry=properties)
        return Encoder(encoding, "totals", failed)

    return make
