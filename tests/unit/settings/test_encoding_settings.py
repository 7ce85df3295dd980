"""How outputs are encoded, as the settings say it: what is taken, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kunicorn.clients.config import encoding_of
from kunicorn.errors import ConfigError
from kunicorn.handler.config import OutputEncoding
from kunicorn.settings import Settings
from kunicorn.settings.load import load_tables
from tests.fakes.complete_settings import tables_of

REGISTRY = {"url": "http://registry.example:8081"}


def given(registry: Any = REGISTRY, **producing: Any) -> Settings:
    """Settings with that section."""
    outputs = {"delivery": "at_least_once", **producing}
    return load_tables(Path("c.toml"), tables_of(schema_registry=registry, producing=outputs))


def test_without_encoders_there_is_nothing_to_encode() -> None:
    assert encoding_of(given(topic="totals")) is None


def test_each_topic_has_the_encoders_of_its_table_and_the_rest_those_of_the_section() -> None:
    found = encoding_of(given(value="avro", topics=[{"topic": "notes", "value": "json", "headers": "json"}]))
    assert found is not None
    assert found.default == OutputEncoding("avro")
    assert found.topics == {"notes": OutputEncoding("json", headers="json")}
    assert found.schema_registry == {"url": REGISTRY["url"], "timeout": 5.0, "max.retries": 0}
    assert REGISTRY["url"] not in repr(found)


@pytest.mark.parametrize(
    ("producing", "why"),
    [
        ({"value": "jsn"}, "no encoder; it can be bytes, json, avro, jsonschema, protobuf"),
        ({"value": "avro", "value_schema": "id:x"}, "no schema; it can be latest, id:7 or version:3"),
        ({"value": "json", "value_schema": "latest"}, "set, but value = 'json' is written by no schema"),
        ({"value": "avro", "key_schema": "latest"}, "set, but key = 'bytes' is written by no schema"),
        ({"value": "avro", "register_schemas": True}, "there is no schema to register"),
        ({"value": "avro", "subject_name_strategy": "record"}, "'record' goes by the record's name"),
        ({"subject_name_strategy": "record"}, "'record' goes by the record's name"),
        ({"delivery": None, "value": "json"}, "not set, so that nothing is sent, although"),
        ({"topics": [{"topic": "a", "value": "json"}, {"topic": "a"}]}, "names a topic twice"),
        ({"topics": [{"topic": "a", "value": "json", "value_schema": "latest"}]}, "producing.topics[0].value_schema"),
        ({"registry": {}, "value": "avro"}, "needs schemas, but schema_registry.url is not set"),
        ({"registry": {}, "topics": [{"topic": "a", "key": "protobuf"}]}, "needs schemas, but schema_registry.url"),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_to_do(producing: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        given(**producing)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    "producing",
    [
        {"value": "protobuf", "subject_name_strategy": "record", "register_schemas": True},
        {"value": "protobuf:shop_pb2:Order", "value_schema": "latest", "subject_name_strategy": "topic_record"},
        {"value": "avro", "value_schema": "file:a.avsc", "subject_name_strategy": "record", "register_schemas": True},
        {"value": "shop.encoders:order", "registry": {}},
    ],
)
def test_what_fits_together_is_taken(producing: Any) -> None:
    assert given(**producing).producing.encodes
