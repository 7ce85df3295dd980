"""Decoders: from a column of message values or keys to the objects that a handler gets. But for the decoding itself,
all is done in C.

A decoder is lazy and decodes nothing ahead, so that the records before one that cannot be decoded are handled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import orjson
from confluent_kafka import Message

from kunicorn.handler.decode import NotDecodableYet, NullRefused, undecodable
from kunicorn.handler.messages import Run, keys, values


class Part(Enum):
    """Part of a record that is decoded."""

    VALUE = "value"
    KEY = "key"

    def of(self, message: Message) -> bytes | None:
        """This part of the message."""
        return message.value() if self is Part.VALUE else message.key()

    def of_all(self, messages: Run) -> Iterable[bytes | None]:
        """This part of each message."""
        return values(messages) if self is Part.VALUE else keys(messages)


class Decoder(Protocol):
    """Decoder of one part of records; the classes below."""

    @property
    def form(self) -> str:
        """Name of the expected format, for error messages."""

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """Decoded objects, one for each message. Raises whatever the decoding raises; `one` turns that into a
        message.
        """


@dataclass(frozen=True, slots=True)
class Raw:
    """Decoder that yields the bytes as they are."""

    part: Part
    form = "bytes"

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        return iter(self.part.of_all(messages))


@dataclass(frozen=True, slots=True)
class OfBytes:
    """Decoder by a function of the bytes."""

    part: Part
    form: str
    decode: Callable[[Any], Any]
    null_refused: str = ""
    """Why null is refused; empty: null is decoded to None."""
    names: Collection[str] = ()
    """Those in the model that it makes, for error messages."""

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        raw = list(self.part.of_all(messages))
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
    """Decoder by a function of the whole message, for formats whose schema id may be in a header."""

    form: str
    decode: Callable[[Message], Any]

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        return map(self.decode, messages)


@dataclass(frozen=True, slots=True)
class Then:
    """Decoder followed by a conversion to the type of the handler's parameter."""

    first: Decoder
    form: str
    convert: Callable[[Any], Any]
    null_refused: str = ""
    names: Collection[str] = ()

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
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
"""Expected format and function of each named decoder; "bytes" is `Raw`."""


def one(decoder: Decoder, message: Message, part: Part) -> Any:
    """Decoded part of this message. Raises `Undecodable`; an error that may pass (`NotDecodableYet`) propagates."""
    try:
        return next(decoder.each([message]))
    except (NotDecodableYet, MemoryError):
        raise
    except Exception as error:
        names = decoder.names if isinstance(decoder, OfBytes | Then) else ()
        raise undecodable(message, part.value, decoder.form, error, names) from error
