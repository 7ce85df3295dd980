"""Decoders by schemas of a registry (Avro, Protobuf, JSON Schema), through confluent-kafka's own deserialisers (an
extra).

Each worker has one registry client, which asks for a schema once and keeps it. While the registry does not answer,
records wait (`NotDecodableYet`); a schema that it answers it does not know fails the record.

1. Only the registry can say that it does not know a schema. What stands before it may answer in its place: an ingress
   without a route, a login page, a page about maintenance. Then it is away, or good records would be given up.
2. When a question has waited in vain, others fail at once for as long again as it took: one after the other, behind a
   lock or in an event loop, each would take the registry's whole time-out.
"""

from __future__ import annotations

import functools
import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.decode.decoders import Decoder, OfMessage, Part
from kunicorn.handler.extras import install_extra
from kunicorn.handler.record import Record

_PASSES = frozenset({401, 403, 407, 408, 429})
"""HTTP statuses of refusals that are about our rights or will pass, and not about the record; so are all from
`_FROM_SERVER` on."""
_FROM_SERVER = 500
_BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}
"""The default asks the registry for associations that no record here needs."""
_ANY_SCHEMA = 1
_SLOW = 0.1
"""Seconds. A refusal that comes sooner holds up nobody."""

Properties = Mapping[str, str | int | float | bool]
Deserialise = Callable[[bytes | None, Any], Any]


def registered(name: str, part: Part, properties: Properties) -> Decoder:
    """Decoder for "avro", "avro:" and a reader schema as JSON, "jsonschema" or "protobuf:package.module:Message".
    Raises `HandlerLoadError`.
    """
    kind, _, detail = name.partition(":")
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
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
            if why := away(error):
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
        if why := away(error):
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
        client = kind.new_client(dict(properties))
    except (ValueError, TypeError, OSError) as error:
        raise HandlerLoadError(f"the schema registry's client refuses [schema_registry]: {error}") from error
    # What goes to the registry, past what the client keeps. It has no public place for that; the mock asks nobody.
    if (requests := getattr(client, "_rest_client", None)) is not None:
        requests.send_request = _Questions(requests.send_request)
    return client


class RegistryAway(Exception):
    """The registry did not answer, or not as one."""


class _Questions:
    """What the client asks the registry. Any thread; blocks while it is asked."""

    def __init__(self, ask: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`ask`: confluent-kafka's. `clock`: seconds."""
        self._ask, self._clock = ask, clock
        self._away = ""
        """Why the last question was not answered."""
        self._away_until = 0.0

    def __call__(self, *request: Any, **more: Any) -> Any:
        """Its answer. Raises `RegistryAway`, and confluent-kafka's error for what the registry refuses."""
        began = self._clock()
        if began < self._away_until:
            raise RegistryAway(self._away)
        try:
            answer = self._ask(*request, **more)
            why = "its answer is empty" if answer is None else ""
        except Exception as error:
            if not (why := _no_answer(error)):
                raise
            self._is_away(why, began)
            raise RegistryAway(why) from error
        if why:
            self._is_away(why, began)
            raise RegistryAway(why)
        return answer

    def _is_away(self, why: str, began: float) -> None:
        now = self._clock()
        if (took := now - began) >= _SLOW:
            self._away, self._away_until = why, now + took


def _no_answer(error: BaseException) -> str:
    """Reason why that is no answer of the registry's to what it was asked; empty if it is one."""
    if (status := getattr(error, "http_status_code", None)) is not None:
        code = getattr(error, "error_code", None)
        # confluent-kafka says -1 for what is not JSON, and None for JSON without a code.
        if not isinstance(code, int) or code < 0:
            return f"it answers with the HTTP status {status}, and not as a schema registry does"
        return str(error) if status >= _FROM_SERVER or status in _PASSES else ""
    if _is_of_transport(error):
        return f"{type(error).__name__}: {error}"
    return f"its answer is no JSON ({type(error).__name__})" if isinstance(error, ValueError) else ""


def _is_of_transport(error: BaseException) -> bool:
    """Whether it is of a library that is only there with the extra: connections refused, time-outs, TLS."""
    return any(kind.__name__ == "RequestError" for kind in type(error).__mro__)


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


def away(error: BaseException) -> str:
    """Reason why the registry did not answer; empty if the error is about something else."""
    for each in chain(error):
        if isinstance(each, RegistryAway):
            return str(each)
        # Of others that a schema's rules ask, past the registry's client.
        if hasattr(each, "http_status_code") or _is_of_transport(each):
            return _no_answer(each)
    return ""


def chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__
