"""Encoders by schemas of a registry (Avro, Protobuf, JSON Schema), through confluent-kafka's own serialisers (an extra)
and the client that decoders have.

The schema is looked up when the first output goes to a topic: under the subject that the naming strategy gives, and
registered there only where the settings allow it. While the registry does not answer, records wait
(`NotEncodableYet`); what it refuses fails the record, with its schema and ours in the message.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import OutputEncoding
from kunicorn.handler.decode.forms import named_object
from kunicorn.handler.decode.schema_registry import away, chain, client_of, message_class
from kunicorn.handler.encode import Misfit, NotEncodableYet, Unencodable, fields_told
from kunicorn.handler.encode.models import is_message_class, json_objects, python_objects
from kunicorn.handler.extras import install_extra

LATEST = "latest"
PINNED = ("id", "version")
FILE = "file"
_TYPES = {"avro": "AVRO", "jsonschema": "JSON", "protobuf": "PROTOBUF"}
_LONGEST_SCHEMA = 4000
"""Characters of a schema in a message."""
_INCOMPATIBLE, _UNKNOWN, _INVALID = 409, 404, 422
"""HTTP statuses of a registry's refusals."""


class SchemaRefused(Unencodable):
    """The registry does not have the schema, or refuses it. Users see `Unencodable`."""

    __module__ = "kunicorn"
    of_schema = True


@dataclass(frozen=True, slots=True)
class _Schema:
    """Where the schema comes from: our own text, or what the registry has."""

    kind: str
    name: str
    """`[producing] value_schema`, or "the message's class"."""
    text: str | None = None
    """Our own; None: the registry's."""
    message: Any = None
    """Class of Protobuf messages, where the settings name it."""

    @property
    def pinned(self) -> tuple[str, int] | None:
        """ "id" or "version", and its number."""
        what, _, number = self.name.partition(":")
        return (what, int(number)) if what in PINNED else None


def known(ask: Callable[[], Any]) -> Any:
    """What a call of the registry's client answers; None: the registry does not have what is asked for. Raises other
    refusals.
    """
    from confluent_kafka.schema_registry import SchemaRegistryError

    try:
        return ask()
    except SchemaRegistryError as error:
        if error.http_status_code != _UNKNOWN:
            raise
        return None


def takes(client: Any, subject: str, schema: Any) -> bool:
    """Whether the subject is there and takes the schema as its next version; False: it is not there, and the first
    schema makes it. Raises the registry's refusal where the subject refuses the schema. Blocks.
    """
    from confluent_kafka.schema_registry import SchemaRegistryError

    compatible = known(lambda: client.test_compatibility(subject, schema))
    if compatible is False:
        raise SchemaRegistryError(_INCOMPATIBLE, _INCOMPATIBLE, "it is incompatible with the latest version")
    return compatible is not None


def registering(
    encoding: OutputEncoding, part: str, setting: str, registry: Mapping[str, Any]
) -> Callable[[str], SchemaEncoder]:
    """Maker of encoders for topics, by the settings of values or keys. Reads the schema, asks no registry. Raises
    `HandlerLoadError`.
    """
    name = getattr(encoding, part)
    kind, _, detail = name.partition(":")
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        __import__(f"confluent_kafka.schema_registry.{_MODULES[kind]}")
    except ImportError as error:
        raise HandlerLoadError(
            f"{setting}.{part} = {name!r} needs libraries that are not there ({error}): "
            f"{install_extra('schema-registry')}"
        ) from error
    client = client_of(SchemaRegistryClient, registry)
    message = message_class(detail, "encoder") if detail else None
    schema = _schema(kind, getattr(encoding, f"{part}_schema"), f"{setting}.{part}_schema", message)
    record = _record_name(schema, f"{setting}.{part}_schema")
    if encoding.subject_name_strategy != "topic" and record is None and kind != "protobuf":
        raise HandlerLoadError(
            f"{setting}.subject_name_strategy = {encoding.subject_name_strategy!r} needs the record's name, which "
            f"{schema.name!r} does not have: name the record (in JSON Schema its title), or use the strategy 'topic'"
        )
    return lambda topic: SchemaEncoder(client, schema, Subject(topic, part, encoding, record))


_MODULES = {"avro": "avro", "jsonschema": "json_schema", "protobuf": "protobuf"}


def _schema(kind: str, source: str | None, setting: str, message: Any) -> _Schema:
    if source is None and kind == "protobuf":
        return _Schema(kind, "the message's class", message=message)
    if source is None or source == LATEST or source.partition(":")[0] in PINNED:
        return _Schema(kind, source or LATEST, message=message)
    if source.partition(":")[0] == FILE:
        try:
            text = Path(source.partition(":")[2]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise HandlerLoadError(f"{setting} = {source!r} cannot be read: {error}") from error
    else:
        text = _text_of(named_object(source, setting), kind, f"{setting} = {source!r}")
    schema = _Schema(kind, source, text, message)
    try:
        parsed = json.loads(text)
        _PARSED[kind](parsed)
    except Exception as error:
        raise HandlerLoadError(f"{setting} = {source!r} is no schema of {kind}: {type(error).__name__}: {error}") from (
            error
        )
    return schema


def _text_of(given: Any, kind: str, what: str) -> str:
    """Schema that an attribute holds: its text, the text's objects, or for JSON Schema a model's class."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict | list):
        return json.dumps(given)
    if isinstance(given, type) and kind == "jsonschema":
        if hasattr(given, "model_json_schema"):
            return json.dumps(given.model_json_schema(by_alias=True))
        import msgspec

        try:
            (found,), defined = msgspec.json.schema_components([given], ref_template="#/$defs/{name}")
            own = defined.pop(given.__name__, found)
            return json.dumps({**own, **({"$defs": defined} if defined else {})})
        except TypeError as error:
            raise HandlerLoadError(f"{what} has no JSON Schema: {error}") from error
    wanted = "a text, a dict, or a model's class" if kind == "jsonschema" else "a text or a dict"
    raise HandlerLoadError(f"{what} is {type(given).__name__}; a schema is {wanted}")


def _is_avro(parsed: Any) -> None:
    from fastavro.schema import UnknownType, parse_schema

    with contextlib.suppress(UnknownType):  # Of a schema that it refers to, which the registry has.
        parse_schema(parsed, _write_hint=False)


def _is_json_schema(parsed: Any) -> None:
    from jsonschema.validators import validator_for  # type: ignore[import-untyped]

    validator_for(parsed).check_schema(parsed)


_PARSED: Mapping[str, Callable[[Any], None]] = {"avro": _is_avro, "jsonschema": _is_json_schema}


def _record_name(schema: _Schema, setting: str) -> str | None:
    """Name of the record for the strategies that go by it; None where there is none."""
    if schema.text is None:
        return schema.message.DESCRIPTOR.full_name if schema.message is not None else None
    parsed = json.loads(schema.text)
    if not isinstance(parsed, dict):
        return None
    if schema.kind == "jsonschema":
        return parsed.get("title")
    name, space = parsed.get("name"), parsed.get("namespace")
    return f"{space}.{name}" if name and space and "." not in name else name


@dataclass(frozen=True, slots=True)
class Subject:
    """Place of a topic's values or keys in the registry."""

    topic: str
    part: str
    encoding: OutputEncoding
    record: str | None

    def named(self, record: str | None = None) -> str:
        """Name of the subject; `record`: of a Protobuf message."""
        name = self.record or record or ""
        return {"topic": f"{self.topic}-{self.part}", "record": name, "topic_record": f"{self.topic}-{name}"}[
            self.encoding.subject_name_strategy
        ]

    @property
    def registers(self) -> bool:
        """Whether a schema of ours that is not there is registered."""
        return self.encoding.register_schemas


class SchemaEncoder:
    """Encoder of what goes to one topic, by one subject's schema. Any thread; blocks while the registry is asked."""

    def __init__(self, client: Any, schema: _Schema, subject: Subject) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryError
        from confluent_kafka.serialization import MessageField, SerializationContext

        self._client, self._schema, self._subject = client, schema, subject
        self._refusal = SchemaRegistryError
        field = MessageField.VALUE if subject.part == "value" else MessageField.KEY
        self._context = SerializationContext(subject.topic, field)
        self._objects = _OBJECTS[schema.kind]
        # As the serialiser asks for it: the client keeps a schema in the format that was asked for first.
        self._format = "serialized" if schema.kind == "protobuf" else None
        self._serialisers: dict[type, Callable[[Any, Any], bytes]] = {}
        """By class of message; of Avro and JSON there is one."""
        self._making = threading.Lock()

    def __call__(self, item: Any) -> bytes:
        """The item in Confluent's wire format. Raises `Unencodable`, `NotEncodableYet`, and what the serialiser
        raises.
        """
        written = self._objects(item, self._schema)
        kind = type(written) if self._schema.kind == "protobuf" else object
        try:
            serialise = self._serialisers.get(kind) or self._made(kind, written)
            return serialise(written, self._context)
        except Exception as error:
            if (told := self._told(error, written)) is None:
                raise
            raise told from error

    def verified(self) -> str:
        """What the registry has for the subject, for people; registers nothing. Raises `Unencodable`,
        `NotEncodableYet`. Blocks.
        """
        subject, client, schema = self._subject, self._client, self._schema
        if schema.kind == "protobuf" and schema.message is None and subject.encoding.subject_name_strategy != "topic":
            return f"{subject.topic}: the subjects of its {subject.part}s depend on the messages"
        name = subject.named()
        try:
            ours = self._ours()
            if ours is None:
                found = self._theirs(name)
                return f"{subject.topic}: {name} has the schema {found.schema_id} for its {subject.part}s"
            if not subject.registers:
                found = client.lookup_schema(name, ours)
                return f"{subject.topic}: {name} has our schema, {found.schema_id}, for its {subject.part}s"
            return f"{subject.topic}: {self._registrable(name, ours)}"
        except Exception as error:
            if (told := self._told(error, None)) is None:
                raise
            raise told from error

    def _registrable(self, name: str, ours: Any) -> str:
        if takes(self._client, name, ours):
            return f"{name} takes our schema"
        return f"{name} is not there yet; the first output registers it"

    def _ours(self) -> Any:
        """Our schema as the client has it; None where the registry's counts, or where only a message has it."""
        from confluent_kafka.schema_registry import Schema

        schema = self._schema
        if schema.text is not None:
            return Schema(schema.text, _TYPES[schema.kind], [])
        if schema.pinned or schema.name == LATEST or schema.message is None:
            return None
        file = schema.message.DESCRIPTOR.file
        if any(not each.name.startswith("google/protobuf/") for each in file.dependencies):
            return None  # Its references have to be known first; that the subject is there is looked up.
        return Schema(base64.b64encode(file.serialized_pb).decode(), "PROTOBUF", [])

    def _theirs(self, name: str) -> Any:
        """Schema that the registry has: the pinned one, or else the latest."""
        client, pinned = self._client, self._schema.pinned
        if pinned is None:
            return client.get_latest_version(name, self._format)
        what, number = pinned
        if what == "version":
            return client.get_version(name, number, fmt=self._format)
        # Raises where the subject does not have it. Asked for with its subject, the client would keep it without an id.
        return client.lookup_schema(name, client.get_schema(number, None, self._format), deleted=True)

    def _made(self, kind: type, written: Any) -> Callable[[Any, Any], bytes]:
        with self._making:
            if kind not in self._serialisers:
                name = self._subject.named(_full_name(written))
                self._serialisers[kind] = _SERIALISERS[self._schema.kind](self, kind, name)
            return self._serialisers[kind]

    # -- serialisers ---------------------------------------------------------------------------------------------------

    def _avro(self, kind: type, name: str) -> Any:
        from confluent_kafka.schema_registry import Schema
        from confluent_kafka.schema_registry.avro import AvroSerializer

        ours = {**self._conf(name, own=True)}
        if self._schema.text is not None:
            serialise = AvroSerializer(self._client, Schema(self._schema.text, "AVRO", []), conf=ours)
            return _in_range(self._schema.text, serialise)
        found = self._theirs(name)
        if found.schema.rule_set is not None:
            return AvroSerializer(self._client, conf=self._conf(name, own=False))
        # Without rules it is as if it were ours. With "use.latest.version" each record would expand it anew.
        serialise = AvroSerializer(self._client, found.schema, conf={**ours, _REGISTER: False})
        return _in_range(found.schema.schema_str, serialise)

    def _json(self, kind: type, name: str) -> Any:
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        conf = self._conf(name, own=self._schema.text is not None)
        return JSONSerializer(self._schema.text, self._client, conf=conf, json_encode=orjson.dumps)

    def _protobuf(self, kind: type, name: str) -> Any:
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        own = self._schema.pinned is None and self._schema.name != LATEST
        return ProtobufSerializer(kind, self._client, conf=self._conf(name, own=own))

    def _conf(self, name: str, *, own: bool) -> dict[str, Any]:
        """Configuration of confluent-kafka's serialiser for that subject. `own`: by our schema, not by the
        registry's.
        """
        subject = self._subject
        conf: dict[str, Any] = {"subject.name.strategy.type": subject.encoding.subject_name_strategy.upper()}
        if own:
            return {**conf, _REGISTER: subject.registers}
        if self._schema.pinned is None:
            return {**conf, _REGISTER: False, "use.latest.version": True}
        return {**conf, _REGISTER: False, "use.schema.id": self._theirs(name).schema_id}

    # -- failures ------------------------------------------------------------------------------------------------------

    def _told(self, error: Exception, written: Any) -> Exception | None:
        """The failure to raise for what the serialiser, or the registry, raised; None: that itself."""
        if why := away(error):
            return NotEncodableYet(f"the schema registry cannot be asked: {why}")
        refused = next((each for each in chain(error) if isinstance(each, self._refusal)), None)
        if refused is not None:
            return self._refused(refused, written)
        if self._schema.kind == "avro" and (told := self._misfits(written)):
            return Misfit(told)
        return None

    def _refused(self, error: Any, written: Any) -> SchemaRefused:
        topic, part = self._subject.topic, self._subject.part
        name = self._subject.named(_full_name(written))
        ours = self._schema.text or _proto_text(getattr(self._schema.message or type(written), "DESCRIPTOR", None))
        status = error.http_status_code
        if status == _INCOMPATIBLE:
            what = f"the subject {name!r} refuses our schema as incompatible: {error.error_message}"
            remedy = _COMPATIBLE
        elif status == _INVALID:
            what, remedy = f"the registry refuses our schema as invalid: {error.error_message}", "correct it"
        else:
            what = f"the subject {name!r} does not have the schema of its {part}s ({error.error_message})"
            remedy = _REGISTERED_FIRST if ours else _MISSING
        text = f"an output for topic {topic!r}: {what}. "
        if ours:
            text += f"Ours: {ours[:_LONGEST_SCHEMA]}. The registry's latest: {self._latest(name)}. "
        return SchemaRefused(f"{text}Remedy: {remedy.format(part=part)}")

    def _latest(self, name: str) -> str:
        """The subject's latest schema, for people."""
        try:
            found = self._client.get_version(name, "latest", fmt=self._format)
        except Exception:
            return "none"
        text = found.schema.schema_str or ""
        return f"version {found.version}, {(_proto_file(text) if self._format else text)[:_LONGEST_SCHEMA]}"

    def _misfits(self, written: Any) -> str:
        """Which fields do not fit the Avro schema; empty where that cannot be told."""
        from fastavro.schema import parse_schema
        from fastavro.validation import ValidationError, validate

        try:
            text = self._schema.text or self._theirs(self._subject.named()).schema.schema_str
            validate(written, parse_schema(json.loads(text)), raise_errors=True)
        except ValidationError as error:
            return fields_told((each.field, each.schema, type(each.datum)) for each in _errors(error))
        except Exception:
            return ""
        return ""


def _in_range(text: str, serialise: Callable[[Any, Any], bytes]) -> Callable[[Any, Any], bytes]:
    """The serialiser behind a check of what it writes, where the schema has an `int`: fastavro writes numbers there
    that need more than 32 bits, and Java's readers refuse those.
    """
    if '"int"' not in text:
        return serialise
    from fastavro.schema import UnknownType, parse_schema
    from fastavro.validation import validate

    try:
        parsed = parse_schema(json.loads(text))
    except UnknownType:
        return serialise

    def checked(written: Any, context: Any) -> bytes:
        validate(written, parsed, raise_errors=True)
        return serialise(written, context)

    return checked


def _errors(error: Any) -> list[Any]:
    return [each for each in error.errors if hasattr(each, "field")]


def _full_name(written: Any) -> str | None:
    """Name of a Protobuf message."""
    return getattr(getattr(written, "DESCRIPTOR", None), "full_name", None)


def _proto_text(descriptor: Any) -> str:
    """Schema of a message, for people; empty without one."""
    if descriptor is None:
        return ""
    fields = ", ".join(f"{each.name} = {each.number}" for each in descriptor.fields)
    return f"message {descriptor.full_name} {{{fields}}}"


def _proto_file(encoded: str) -> str:
    """The first message of a file in the registry's format, for people."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto.FromString(base64.b64decode(encoded))
    first = file.message_type[0]
    fields = ", ".join(f"{each.name} = {each.number}" for each in first.field)
    return f"message {file.package}.{first.name} {{{fields}}}"


_REGISTER = "auto.register.schemas"
_COMPATIBLE = (
    "give fields that are new a default and keep those that readers need, as the subject's compatibility asks for; or "
    "send to another topic"
)
_REGISTERED_FIRST = (
    "register it (workers do so with [producing] register_schemas = true), or write by the registry's "
    '({part}_schema = "latest")'
)
_MISSING = "register a schema there, or name one of yours ([producing] {part}_schema) and allow register_schemas = true"


def _avro_objects(item: Any, schema: _Schema) -> Any:
    return python_objects(item)


def _json_objects(item: Any, schema: _Schema) -> Any:
    # As it is written: NaN and infinity are numbers for the schema, and would be null in JSON.
    return orjson.loads(orjson.dumps(json_objects(item)))


def _message(item: Any, schema: _Schema) -> Any:
    if is_message_class(type(item)):
        if schema.message is not None and not isinstance(item, schema.message):
            raise Misfit(f"it is a {item.DESCRIPTOR.full_name}, not a {schema.message.DESCRIPTOR.full_name}")
        return item
    if schema.message is None:
        raise Misfit(
            f"it is {type(item).__name__} and no Protobuf message; name the message's class (protobuf:package."
            f"module_pb2:Message) to have other objects written as that"
        )
    from google.protobuf.json_format import ParseDict

    return ParseDict(json_objects(item), schema.message())


_OBJECTS: Mapping[str, Callable[[Any, _Schema], Any]] = {
    "avro": _avro_objects,
    "jsonschema": _json_objects,
    "protobuf": _message,
}
_SERIALISERS: Mapping[str, Callable[[SchemaEncoder, type, str], Any]] = {
    "avro": SchemaEncoder._avro,
    "jsonschema": SchemaEncoder._json,
    "protobuf": SchemaEncoder._protobuf,
}
