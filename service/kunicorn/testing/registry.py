"""Schema registries for handlers that are tried: one in memory, which is confluent-kafka's own mock of its client with
the subjects that a test names; and the service's own, in which nothing is registered.
"""

from __future__ import annotations

import base64
import itertools
import json
import uuid
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kunicorn.handler.config import Encoding
from kunicorn.handler.decode.schema_registry import client_of
from kunicorn.handler.encode.schema_registry import known, takes
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
        try:
            registered = _schema(schema)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"schemas: {subject!r} has no schema: {error}; give Avro or JSON Schema as a text or a dict, or a "
                f"Protobuf message's class"
            ) from error
        client.register_schema(subject, registered)
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


_FIRST_ID = 2**31 - 1
"""Ids of schemas that are taken for registered go downwards from here; registries count upwards from 1."""


def register_nothing(encoding: Encoding | None) -> None:
    """Have the registry's client of this process register nothing, for good: a schema that workers would register is
    taken for registered, with an id that no registry gives.

    Caller: a command that tries a handler, before its encoders are made. Raises `HandlerLoadError`.
    """
    if encoding is None or not any(each.register_schemas for each in (encoding.default, *encoding.topics.values())):
        return
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError:
        return  # Who makes the encoders says what is missing.
    client = client_of(SchemaRegistryClient, encoding.schema_registry)
    client.register_schema_full_response = _LooksUp(client)


class _LooksUp:
    """Takes the place of the client's call that registers, and answers as a registry would that does so."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ids = itertools.count(_FIRST_ID, -1)

    def __call__(self, subject: str, schema: Any, normalize_schemas: bool = False) -> Any:
        from confluent_kafka.schema_registry import RegisteredSchema

        client = self._client
        if (found := known(lambda: client.lookup_schema(subject, schema, normalize_schemas))) is not None:
            return found
        takes(client, subject, schema)  # Raises where it does not.
        taken = RegisteredSchema(subject, 1, next(self._ids), str(uuid.uuid4()), schema)
        # Where the client keeps what it has heard: it is looked up again, and what is written by it is read.
        client._cache.set_registered_schema(schema, taken)
        client._cache.set_schema(None, taken.schema_id, taken.guid, schema)
        return taken
