"""Decoders by schemas of a registry (Avro, Protobuf, JSON Schema), through confluent-kafka's own deserialisers (an
extra).

Each worker has one registry client, which asks for a schema once and keeps it. While the registry does not answer,
records wait (`NotDecodableYet`); a schema that it answers it does not know fails the record.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.decode.decoders import Decoder, OfMessage, Part
from kunicorn.handler.extras import install_extra
from kunicorn.handler.record import Record

_PASSES = frozenset({401, 403, 407, 408, 429})
"""HTTP statuses of refusals that are about our rights or will pass, and not about the record; so are all from 500
on."""
_BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}
"""The default asks the registry for associations that no record here needs."""
_ANY_SCHEMA = 1

Properties = Mapping[str, str | int | float | bool]
Deserialise = Callable[[bytes | None, Any], Any]


def registered(name: str, part: Part, properties: Properties) -> Decoder:
    """Decoder for "avro", "avro:" and a reader schema as JSON, "jsonschema" or "protobuf:package.module:Message".
    Raises `HandlerLoadError`.
    """
    kind, _, detail = name.partition(":")
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
        from confluent_kafka.serialization import MessageField, SerializationContext

        deserialise = _DESERIALISERS[kind](client_of(SchemaRegistryClient, properties), detail)
    except ImportError as error:
        raise HandlerLoadError(
            f"handler.{part.value} = {name!r} needs libraries that are not there ({error}): "
            f"{install_extra('schema-registry')}"
        ) from error
    field = MessageField.VALUE if part is Part.VALUE else MessageField.KEY
    take = part.of

    def decode(message: Message) -> Any:
        record = Record.of(message)
        headers: list[Any] = record.headers
        context = SerializationContext(record.origin.topic, field, headers or None)
        try:
            return deserialise(take(message), context)
        except Exception as error:
            if why := away(error, SchemaRegistryError):
                raise NotDecodableYet(f"the schema registry cannot be asked: {why}") from error
            raise

    return OfMessage(f"{kind} of a registered schema", decode)


def why_silent(properties: Properties) -> str | None:
    """Ask the registry for a schema, as a worker does; the reason why it cannot be had, or None if it answers.

    An answer that there is no schema of that id counts as one. Caller: `kunicorn check`. Blocks up to the client's
    time-out. Raises `HandlerLoadError`.
    """
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
    except ImportError as error:
        raise HandlerLoadError(
            f"[schema_registry] needs libraries that are not there ({error}): {install_extra('schema-registry')}"
        ) from error
    try:
        client_of(SchemaRegistryClient, properties).get_schema(_ANY_SCHEMA)
    except Exception as error:
        if why := away(error, SchemaRegistryError):
            return why
        if not any(isinstance(each, SchemaRegistryError) for each in chain(error)):
            raise
    return None


def client_of(kind: Any, properties: Properties) -> Any:
    """The process's client of the registry, made when first asked for. `kind`: confluent-kafka's class, which only the
    extra can load. Raises `HandlerLoadError`.
    """
    # It tells every request it makes at the level "info".
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    return _kept(kind, tuple(sorted(properties.items())))


@functools.lru_cache(maxsize=1)
def _kept(kind: Any, properties: tuple[tuple[str, Any], ...]) -> Any:
    """Registry object, shared by values and keys. Made in the process that uses it: connections do not survive a
    fork.
    """
    try:
        return kind.new_client(dict(properties))
    except (ValueError, TypeError, OSError) as error:
        raise HandlerLoadError(f"the schema registry's client refuses [schema_registry]: {error}") from error


def _avro(client: Any, detail: str) -> Deserialise:
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    # With a reader schema, Avro's own rules make its fields of whatever a record was written with.
    deserialise: Deserialise = AvroDeserializer(client, schema_str=detail or None, conf=_BY_TOPIC)
    return deserialise


def _json(client: Any, detail: str) -> Deserialise:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer

    deserialise: Deserialise = JSONDeserializer(None, schema_registry_client=client, conf=_BY_TOPIC)
    return deserialise


def message_class(detail: str, what: str) -> Any:
    """Class of a Protobuf message, named as package.module:Message. `what` names it. Raises `HandlerLoadError`."""
    module, _, name = detail.partition(":")
    try:
        message = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HandlerLoadError(f"the {what} 'protobuf:{detail}' names a class that is not there: {error}") from error
    if not hasattr(message, "DESCRIPTOR"):
        raise HandlerLoadError(f"the {what} 'protobuf:{detail}' names no message's class, as protoc generates them")
    return message


def _protobuf(client: Any, detail: str) -> Deserialise:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    deserialise: Deserialise = ProtobufDeserializer(
        message_class(detail, "decoder"), {**_BY_TOPIC, "use.deprecated.format": False}, schema_registry_client=client
    )
    return deserialise


_DESERIALISERS: Mapping[str, Callable[[Any, str], Deserialise]] = {
    "avro": _avro,
    "jsonschema": _json,
    "protobuf": _protobuf,
}


def away(error: BaseException, refusal: type[Any]) -> str:
    """Reason why the registry did not answer; empty if the error is about something else."""
    for each in chain(error):
        if isinstance(each, refusal):
            passes = each.http_status_code >= 500 or each.http_status_code in _PASSES
            return str(each) if passes else ""
        # Of a library that is only there with the extra: connections refused, time-outs, TLS.
        if any(kind.__name__ == "TransportError" for kind in type(each).__mro__):
            return f"{type(each).__name__}: {each}"
    return ""


def chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__
