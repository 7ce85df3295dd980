"""A schema registry in memory: confluent-kafka's own mock of its client, with the subjects that a test names."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kunicorn.handler.decode.schema_registry import client_of
from kunicorn.ipc.messages import Configure

URL = "http://memory:8081"
"""For the settings, which want one; nobody asks it."""
_numbers = itertools.count()


def with_registry(told: Configure, schemas: Mapping[str, Any]) -> Configure:
    """The configuration with a registry in memory in the place of its own. `schemas`: the latest schema of each
    subject. Needs the extra `schema-registry`.
    """
    from confluent_kafka.schema_registry import SchemaRegistryClient

    properties: dict[str, Any] = {"url": f"mock://{next(_numbers)}"}
    client = client_of(SchemaRegistryClient, properties)
    for subject, schema in schemas.items():
        client.register_schema(subject, _schema(schema))
    handlers = [replace(each, decoding=replace(each.decoding, schema_registry=properties)) for each in told.handlers]
    producing = told.producing
    if producing is not None and producing.encoding is not None:
        producing = replace(producing, encoding=replace(producing.encoding, schema_registry=properties))
    return replace(told, handlers=handlers, producing=producing)


def _schema(given: Any) -> Any:
    """A schema as the client has it: an Avro or a JSON Schema as a text or a dict, or a Protobuf message's class."""
    from confluent_kafka.schema_registry import Schema

    if hasattr(given, "DESCRIPTOR"):
        return Schema(base64.b64encode(given.DESCRIPTOR.file.serialized_pb).decode(), "PROTOBUF", [])
    text = given if isinstance(given, str) else json.dumps(given)
    parsed = json.loads(text)
    is_json = isinstance(parsed, dict) and ("$schema" in parsed or "properties" in parsed or "$ref" in parsed)
    return Schema(text, "JSON" if is_json else "AVRO", [])
