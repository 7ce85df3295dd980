"""A schema registry that runs, and encoders that ask it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kunicorn.handler.config import Encoding, OutputEncoding
from kunicorn.handler.decode.schema_registry import _kept
from kunicorn.handler.encode.encoders import Encoder
from tests.contract.encoding.shop_models import AVRO, JSON
from tests.fakes.schema_registry import registry

SCHEMAS = {
    "1": {"schema": json.dumps({**AVRO, "doc": "the first"}), "subject": "totals-value"},
    "2": {"schema": json.dumps(AVRO), "subject": "totals-value"},
    "3": {"schema": json.dumps(JSON), "schemaType": "JSON", "subject": "documents-value"},
    "4": {"schema": '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}',
          "subject": "totals-key"},
}  # fmt: skip


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """What the registry knows."""
    file = tmp_path / "schemas.json"
    file.write_text(json.dumps(SCHEMAS))
    _kept.cache_clear()
    return file


@pytest.fixture
def properties(schemas: Path) -> Iterator[dict[str, str | int | float | bool]]:
    """A registry that runs, as workers are told of it."""
    with registry(schemas) as url:
        yield {"url": url, "timeout": 5.0, "max.retries": 0}


@pytest.fixture
def encoder(properties: dict[str, Any]) -> Callable[..., Encoder]:
    """Makes an encoder of what goes to the topic totals, by the settings given."""

    def make(value: str = "avro", failed: Any = lambda topic, why: None, **settings: Any) -> Encoder:
        encoding = Encoding(OutputEncoding(value, **settings), schema_registry=properties)
        return Encoder(encoding, "totals", failed)

    return make
