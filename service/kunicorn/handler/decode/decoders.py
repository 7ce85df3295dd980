"""Decoders: a column of values or keys to a column of what handlers get. All but the decoding itself is done by C.

A decoder yields one record's at a time and decodes none ahead: records before one that cannot be decoded are handled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import orjson
from confluent_kafka import Message

from kunicorn.handler.decode import NotDecodableYet, NullRefused, undecodable


class Part(Enum):
    """What of a record is decoded."""

    VALUE = "value"
    KEY = "key"

    @property
    def of(self) -> Callable[[Message], bytes | None]:
        """Takes it from a message; written in C."""
        return Message.value if self is Part.VALUE else Message.key


class Decoder(Protocol):
    """One of the forms below."""

    @property
    def form(self) -> str:
        """What the bytes should be, for messages."""

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """What each of them holds. Raises whatever the decoding raises; `one` says what is to be told of that."""


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes themselves."""

    part: Part
    form = "bytes"

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """See `Decoder`."""
        return map(self.part.of, messages)


@dataclass(frozen=True, slots=True)
class OfBytes:
    """By a function of the bytes alone."""

    part: Part
    form: str
    decode: Callable[[Any], Any]
    null_refused: str = ""
    """Why null is no value; empty: null is decoded to None."""

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """See `Decoder`."""
        raw = list(map(self.part.of, messages))
        # Empty ones take the longer way, too: telling them from null one by one would cost every record.
        return map(self.decode, raw) if all(raw) else map(self._nullable, raw)

    def _nullable(self, raw: bytes | None) -> Any:
        if raw is not None:
            return self.decode(raw)
        if self.null_refused:
            raise NullRefused(self.null_refused)
        return None


@dataclass(frozen=True, slots=True)
class OfMessage:
    """By a function of the whole message, for formats whose schema's id may stand in a header."""

    form: str
    decode: Callable[[Message], Any]

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """See `Decoder`."""
        return map(self.decode, messages)


@dataclass(frozen=True, slots=True)
class Then:
    """By one decoder, and then to the type of the handler's parameter."""

    first: Decoder
    form: str
    convert: Callable[[Any], Any]
    null_refused: str = ""

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """See `Decoder`."""
        return map(self._converted, self.first.each(messages))

    def _converted(self, decoded: Any) -> Any:
        if decoded is not None:
            return self.convert(decoded)
        if self.null_refused:
            raise NullRefused(self.null_refused)
        return None


NAMED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "json": ("JSON", orjson.loads),
    "text": ("UTF-8 text", bytes.decode),
}
"""What the bytes should be, and the function; "bytes" is `Raw`."""


def one(decoder: Decoder, message: Message, part: Part) -> Any:
    """What this one holds. Raises `Undecodable`; what may pass propagates."""
    try:
        return next(decoder.each([message]))
    except (NotDecodableYet, MemoryError):
        raise
    except Exception as error:
        raise undecodable(message, part.value, decoder.form, error) from error
