"""Codec of Kafka's messages: requests to frames and frames to answers, by way of kio's generated classes.

kio has one class for each version, which takes exactly that version's fields and checks none of their types. A field
too many is a TypeError that shows only against the one broker that negotiates the version, and a string where a tuple
of strings is meant goes out as its letters. So every request is built here, by `make`, and a test builds all of them in
every version. Answers are read by kio's strict reader, and by `tolerant_reader` where that refuses.
"""

from __future__ import annotations

import io
import logging
import struct
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import BufferUnderflow

from kunicorn.kafka.errors import ProtocolError
from kunicorn.kafka.tolerant_reader import UNREADABLE, check_counts, lenient_reader
from kunicorn.kafka.versions import REQUESTS, RESPONSES, Api, Schema, field_type

Fields = Mapping[str, object]
"""A message's fields by kio's names; nested structures are mappings again, arrays any iterable but a string."""

IGNORABLE: frozenset[tuple[Api, str]] = frozenset(
    {
        (Api.API_VERSIONS, "client_software_name"),
        (Api.API_VERSIONS, "client_software_version"),
        (Api.JOIN_GROUP, "reason"),
        (Api.SYNC_GROUP, "protocol_type"),
        (Api.SYNC_GROUP, "protocol_name"),
        (Api.LEAVE_GROUP, "reason"),
        (Api.LIST_OFFSETS, "timeout"),
        (Api.OFFSET_COMMIT, "committed_leader_epoch"),
        (Api.OFFSET_FOR_LEADER_EPOCH, "replica_id"),
    }
)
"""Fields that an older version may lose although they are set: "ignorable" in Kafka's message definitions."""

_NEUTRAL: tuple[object, ...] = (None, False, 0, -1, "", (), [])
"""Values that say nothing: a version without the field says the same."""


def make(api: Api, version: int, values: Fields) -> Any:
    """A request as kio's message of that version.

    A field that the version lacks is dropped if its value is neutral or the protocol lets it go unsaid; otherwise
    `ValueError`: an answer to something else than what was asked is worse than none.
    """
    return _build(api, REQUESTS[api, version], values)


@cache
def _types(schema: Schema) -> dict[str, tuple[Schema, bool]]:
    return {field.name: field_type(field) for field in fields(schema)}


def _build(api: Api, schema: Schema, values: Fields) -> Any:
    known = _types(schema)
    for name, value in values.items():
        if name not in known and value not in _NEUTRAL and (api, name) not in IGNORABLE:
            raise ValueError(f"{schema.__name__} v{schema.__version__} cannot carry {name} = {value!r}")
    return schema(**{name: _value(api, known[name], name, values[name]) for name in known if name in values})


def _value(api: Api, kind: tuple[Schema, bool], name: str, value: object) -> object:
    inner, array = kind
    if value is None:
        return None
    if not array:
        return _build(api, inner, cast(Fields, value)) if is_dataclass(inner) else value
    if isinstance(value, str | bytes | Mapping):
        raise TypeError(f"{api.title}: {name} is an array, not {type(value).__name__}")
    items = cast("Iterable[Any]", value)
    return tuple(_build(api, inner, item) if is_dataclass(inner) else item for item in items)


logger = logging.getLogger("kunicorn.wire.codec")

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Kafka's own limit for requests (`socket.request.max.bytes`). A frame that announces more is not Kafka's protocol:
the first bytes of a TLS alert read as 352 MB, those of an HTTP answer as 1.2 GB."""

_LENGTH = struct.Struct(">i")
LENGTH_BYTES = _LENGTH.size
_CORRELATION_ID = struct.Struct(">i")
CORRELATION_BYTES = _CORRELATION_ID.size


def encode(message: Any) -> bytes:
    """Bytes of one of kio's messages, without header or length."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def encode_request(api: Api, version: int, correlation_id: int, client_id: str, fields: Fields) -> bytes:
    """One request as a frame, its length in front. Raises `ValueError` if it cannot be said in this version."""
    message = make(api, version, fields)
    header = message.__header_schema__(
        request_api_key=int(api), request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    body = encode(header) + encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"{api.title} of {len(body)} bytes: brokers take {MAX_FRAME_BYTES} at most")
    return _LENGTH.pack(len(body)) + body


def frame_length(prefix: bytes, most: int = MAX_FRAME_BYTES) -> int:
    """Length of a frame, from the four bytes in front of it. Raises `ProtocolError`, also where it is above `most`."""
    (length,) = _LENGTH.unpack(prefix)
    if not _CORRELATION_ID.size <= length <= most:
        raise ProtocolError(
            _what_speaks(prefix) or f"not a Kafka frame: its first four bytes, {prefix!r}, announce {length} bytes"
        )
    return int(length)


def _what_speaks(prefix: bytes) -> str | None:
    """What kind of server it is, if the first bytes show that it is no Kafka listener, or not one without TLS."""
    if prefix[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "its listener speaks TLS: set kafka.security_protocol to SSL or SASL_SSL, or take its port without TLS"
    if prefix == b"HTTP":
        return "an HTTP server answers there: take the port of a Kafka listener in kafka.bootstrap_servers"
    return None


def correlation_id(frame: bytes | memoryview) -> int:
    """Correlation id of the answer: in every version the first four bytes."""
    return int(_CORRELATION_ID.unpack_from(frame)[0])


def decode_response(api: Api, version: int, frame: bytes) -> Any:
    """Message in `frame` (without its length). Raises `ProtocolError` naming the API and version.

    Error codes compare as integers whether kio knows them or not. Arrays may be None where a broker sends null against
    the protocol: callers say `or ()`.
    """
    schema = RESPONSES[api, version]
    try:
        _, header_size = decode(schema.__header_schema__, frame, 0)
        message, size = decode(schema, frame, header_size)
    except UNREADABLE as error:
        raise ProtocolError(
            f"the answer to {api.title} v{version} ({len(frame)} bytes) cannot be read: {type(error).__name__}: {error}"
        ) from error
    if header_size + size != len(frame):
        logger.debug("%s v%d answer: %d bytes left over", api.title, version, len(frame) - header_size - size)
    return message


def decode(schema: Schema, buffer: bytes, offset: int) -> tuple[Any, int]:
    """One of kio's messages and its size, read by kio's strict reader, and by the tolerant one where that refuses.

    Not for a frame that is too short: there the tolerant reader could only invent. Raises one of `UNREADABLE`.
    """
    check_counts(schema, buffer, offset)
    try:
        return entity_reader(schema)(buffer, offset)
    except BufferUnderflow:
        raise
    except UNREADABLE:
        return lenient_reader(schema)(buffer, offset)
