"""What an export's columns hold where a schema registry decodes, against one that speaks its REST API."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kunicorn.handler.config import Decoding
from kunicorn.pipeline.lake.columns import Form, LakeColumns, NotExportable
from tests.contract.decoding.shop_schemas import SCHEMAS, SHOP_ORDER, avro, framed, message

ORDER = {"id": 7, "by": "me"}


def columns(name: str, registry: dict[str, Any], patience: float = 0.0) -> LakeColumns:
    return replace(Form(value=name).columns(Decoding(schema_registry=registry)), patience=patience)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("avro", framed(1, avro(ORDER)), ORDER),
        ("jsonschema", framed(2, b'{"id": 7, "by": "me"}'), ORDER),
        (SHOP_ORDER, framed(3, b"\0\x0a\x02me"), {"by": "me"}),
    ],
)
def test_what_a_registered_schema_decodes_is_written_as_json_and_a_tombstone_as_null(
    properties: dict[str, Any], name: str, value: bytes, told: Any
) -> None:
    found = columns(name, properties).batch([message(value), message(None)])
    first, second = found["value"].to_pylist()
    assert (json.loads(first), second) == (told, None)
    assert found["key"].to_pylist() == [b"k", b"k"]


def test_a_record_whose_schema_the_registry_does_not_know_is_named(properties: dict[str, Any]) -> None:
    with pytest.raises(NotExportable, match=r"orders-3@7: its value .*Schema 9 not found .*--value bytes"):
        columns("avro", properties).batch([message(framed(9, b"x" * 9))])


def test_an_export_waits_for_a_registry_that_is_away_and_then_says_so(
    properties: dict[str, Any], schemas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [message(framed(1, avro(ORDER)))]
    schemas.write_text("503")
    with pytest.raises(NotExportable, match=r"cannot be asked: .*503.*see \[schema_registry\]"):
        columns("avro", properties).batch(records)
    back = lambda seconds: schemas.write_text(json.dumps(SCHEMAS))  # noqa: E731
    monkeypatch.setattr("kunicorn.pipeline.export.time.sleep", back)
    found = columns("avro", properties, patience=60.0).batch(records)
    assert json.loads(found["value"][0].as_py()) == ORDER
