"""Frames to messages and back, by way of kio's generated classes."""

from __future__ import annotations

import io
import logging
import struct
from typing import Any

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import BufferUnderflow

from kunicorn.wire.counts import check_counts
from kunicorn.wire.errors import ProtocolError
from kunicorn.wire.lenient import UNREADABLE, lenient_reader
from kunicorn.wire.make import Fields, make
from kunicorn.wire.schemas import RESPONSES, Schema
from kunicorn.wire.versions import Api

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Kafka's own limit for requests (`socket.request.max.bytes`). A frame that announces more is not Kafka's protocol:
the first bytes of a TLS alert read as 352 MB, those of an HTTP answer as 1.2 GB."""

_LENGTH = struct.Struct(">i")
LENGTH_BYTES = _LENGTH.size
_CORRELATION_ID = struct.Struct(">i")


def encode(message: Any) -> bytes:
    """The bytes of one of kio's messages, without header or length."""
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


def frame_length(prefix: bytes) -> int:
    """The length that the four bytes in front of a frame announce. Raises `ProtocolError`."""
    (length,) = _LENGTH.unpack(prefix)
    if not _CORRELATION_ID.size <= length <= MAX_FRAME_BYTES:
        raise ProtocolError(
            _what_speaks(prefix) or f"not a Kafka frame: its first four bytes, {prefix!r}, announce {length} bytes"
        )
    return int(length)


def _what_speaks(prefix: bytes) -> str | None:
    """What answers there, where that is no Kafka listener, or not one without TLS."""
    if prefix[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "its listener speaks TLS: set kafka.security_protocol to SSL or SASL_SSL, or take its port without TLS"
    if prefix == b"HTTP":
        return "an HTTP server answers there: take the port of a Kafka listener in kafka.bootstrap_servers"
    return None


def correlation_id(frame: bytes) -> int:
    """Which request the frame answers; in every version the first four bytes."""
    return int(_CORRELATION_ID.unpack_from(frame)[0])


def decode_response(api: Api, version: int, frame: bytes) -> Any:
    """The message in `frame` (without its length). Raises `ProtocolError` naming the API and version.

    Error codes compare as integers whether kio knows them or not. Arrays may be None where a broker sends null
    against the protocol: callers say `or ()`.
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
    """One of kio's messages and its size: by kio's strict reader, and by the lenient one where that refuses.

    Not for a frame that is too short: there the lenient reader could only invent. Raises one of `UNREADABLE`.
    """
    check_counts(schema, buffer, offset)
    try:
        return entity_reader(schema)(buffer, offset)
    except BufferUnderflow:
        raise
    except UNREADABLE:
        return lenient_reader(schema)(buffer, offset)
