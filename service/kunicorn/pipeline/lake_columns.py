"""The columns of a lake: as Spark's own Kafka source has them, but for values and keys, which decoders make.

A column's type follows from its decoder's name alone, never from the records: schemas change from one record to the
next, and a table whose columns follow them cannot be appended to. So what is no text is kept as JSON, which every
engine can look into.

1. `bytes`: binary, as in the topic.
2. `text`: string.
3. `json`: string, the record's own characters once they have been found to be JSON: parsed and written again, numbers
   would lose digits.
4. Any other (`avro`, `jsonschema`, `protobuf:…`, a function): string, what it makes of the record, as JSON.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Message

from kunicorn.decoding.choosing import BYTES, decoder_of
from kunicorn.decoding.decoders import Decoder, Part
from kunicorn.decoding.forms import decoded_columns
from kunicorn.decoding.undecodable import NotDecodableYet, Undecodable
from kunicorn.errors import ConfigError, ServiceError
from kunicorn.pipes.orders import Decoding
from kunicorn.record_columns import SCHEMA, records_batch
from kunicorn.settings import Settings

_REMEDY = (
    "handler.value and handler.key say how records are decoded; --value bytes and --key bytes take them as they are"
)
_PAUSE_SECONDS = 1.0
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


class NotExportable(ServiceError):
    """A record does not fit the lake's columns; none is left out silently."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the lake has its records; travels to the tasks, and stands in the lake's manifest."""

    delta: bool = False
    value: str = BYTES
    """A decoder's name, as in `handler.value`."""
    key: str = BYTES

    @property
    def schema(self) -> pa.Schema:
        """The files' columns."""
        schema = SCHEMA
        for part in self.decoded:
            at = schema.get_field_index(part.value)
            schema = schema.set(at, pa.field(part.value, pa.string()))
        return schema

    def columns(self, decoding: Decoding) -> LakeColumns:
        """What makes them, in the process that calls this. Raises `HandlerLoadError`."""
        decoders = (decoder_of(self.value, Part.VALUE, decoding), decoder_of(self.key, Part.KEY, decoding))
        return LakeColumns(self.schema, *decoders, self.decoded)

    @property
    def decoded(self) -> Mapping[Part, str]:
        """The columns that are not bytes, with their decoders' names."""
        return {part: name for part, name in ((Part.VALUE, self.value), (Part.KEY, self.key)) if name != BYTES}


LAKES = ("parquet", "delta")
_NAMED = ("bytes", "text", "json")
"""What the command line names; other decoders have more to say than fits there."""


def form_asked(settings: Settings, to: str, value: str | None, key: str | None) -> Form:
    """The form that the command line wants, its gaps filled from the settings. Pure. Raises `ConfigError`."""
    if to not in LAKES:
        raise ConfigError(f"--to {to!r} is neither parquet nor delta; choose one")
    return Form(to == "delta", _decoder(settings, Part.VALUE, value), _decoder(settings, Part.KEY, key))


def _decoder(settings: Settings, part: Part, asked: str | None) -> str:
    name = part.value
    if asked is not None:
        if asked not in _NAMED:
            raise ConfigError(f"--{name} {asked!r} is none of bytes, text and json; handler.{name} names any decoder")
        return asked
    found = sorted({str(getattr(each, name)) for each in settings.every_handler})
    if len(found) > 1:
        raise ConfigError(
            f"the [[handlers]] decode {name}s in different ways ({', '.join(found)}), and an export has one form of "
            f"columns: say --{name}, or export each topic with settings of its own"
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """Makes columns of records."""

    schema: pa.Schema
    value: Decoder
    key: Decoder
    decoded: Mapping[Part, str]
    """As `Form.decoded`."""
    patience: float = 60.0
    """Seconds to wait for a schema registry that does not answer."""

    def batch(self, messages: Sequence[Message]) -> pa.RecordBatch:
        """The messages as rows. Raises `NotExportable`, naming the record. Blocks while the schema registry is away."""
        plain = records_batch(messages)
        if not self.decoded:
            return plain
        (values, keys), failure = self._decoded(messages)
        if failure is not None:
            raise NotExportable(f"{failure}; {_REMEDY}")
        found = {Part.VALUE: values, Part.KEY: keys}
        columns = plain.columns
        for part, name in self.decoded.items():
            texts = pa.array(map(_text_of(name, part), messages, found[part]), pa.string())
            columns[self.schema.get_field_index(part.value)] = texts
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _decoded(self, messages: Sequence[Message]) -> tuple[tuple[list[Any], list[Any]], Undecodable | None]:
        """As `decoded_columns`. Without waiting, Spark's four tries of a task would be over within a second."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return decoded_columns(messages, self.value, self.key)
            except NotDecodableYet as away:
                if time.monotonic() >= deadline:
                    raise NotExportable(
                        f"{away}, for {self.patience:g} s; see [schema_registry] and whether it serves, then export "
                        f"again: it goes on where it ended"
                    ) from away
            time.sleep(min(_PAUSE_SECONDS, self.patience))


def _text_of(name: str, part: Part) -> Callable[[Message, Any], str | None]:
    """From a message and what its part was decoded to."""
    if name == "text":
        return lambda message, text: text
    if name == "json":
        return lambda message, _: None if (raw := part.of(message)) is None else raw.decode()
    return lambda message, decoded: None if decoded is None else _json(message, part, decoded)


def _json(message: Message, part: Part, decoded: Any) -> str:
    try:
        return orjson.dumps(decoded, _plain, _OPTIONS).decode()
    except orjson.JSONEncodeError as error:
        place = f"{message.topic()}-{message.partition()}@{message.offset()}"
        raise NotExportable(f"{place}: its {part.value} cannot be written as JSON: {error}; {_REMEDY}") from error


def _plain(found: Any) -> Any:
    """What JSON has no word for: bytes as base64 and decimals as text, as Protobuf's JSON has them."""
    if isinstance(found, bytes | bytearray | memoryview):
        return base64.b64encode(found).decode()
    if isinstance(found, Decimal):
        return str(found)
    if hasattr(found, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(found, preserving_proto_field_name=True)
    raise TypeError
