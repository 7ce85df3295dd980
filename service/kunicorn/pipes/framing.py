"""Frames on a pipe: four bytes of length, then one message as JSON.

JSON rather than pickle: nothing a peer sends may run code, not even inside one process tree.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import msgspec
import orjson

from kunicorn.errors import PeerError
from kunicorn.pipes.messages import Message

T = TypeVar("T")

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""More than ten thousand partitions with long topic names need in one StartFetcher; beyond it a frame is nonsense."""

_LENGTH = struct.Struct(">I")


class FrameError(PeerError):
    """What arrived is not a message of this protocol; the channel cannot be trusted any further."""


def encode(message: Message) -> bytes:
    """The message's bytes without the length, for sockets that keep packets apart."""
    built = msgspec.to_builtins(message)
    try:
        return orjson.dumps(built)
    except orjson.JSONEncodeError:
        # An exception's text may hold half a character (`json.loads('"\\ud83d"')`): not to end whoever tells of it.
        return orjson.dumps(_encodable(built))


def _encodable(built: Any) -> Any:
    """The same with lone surrogates written out."""
    if isinstance(built, str):
        return built.encode(errors="backslashreplace").decode()
    if isinstance(built, dict):
        return {_encodable(key): _encodable(value) for key, value in built.items()}
    return [_encodable(each) for each in built] if isinstance(built, list | tuple) else built


def decode(body: bytes, expected: type[T] | Any) -> T:
    """The message in `body`, which must be one of `expected` (a message type or a union of them)."""
    try:
        message: T = msgspec.convert(orjson.loads(body), type=expected)
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise FrameError(f"not a message of this protocol: {error}") from error
    return message


def pack(message: Message) -> bytes:
    """The message as one frame."""
    body = encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{type(message).__name__} is {len(body)} bytes long, the limit is {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameSplitter:
    """Cuts a byte stream into messages of the expected types; keeps what is incomplete."""

    def __init__(self, expected: Any) -> None:
        self._expected = expected
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The messages that `data` completes, in order. Raises `FrameError`."""
        buffer = self._buffer
        buffer += data
        messages: list[Any] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame announces {length} bytes, the limit is {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            messages.append(decode(bytes(buffer[start + _LENGTH.size : end]), self._expected))
            start = end
        del buffer[:start]
        return messages
