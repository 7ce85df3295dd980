"""Encoders of outputs, one for each topic, and the handler with its outputs encoded.

An `Encoder` is made when a worker is assembled, only where [producing] names encoders. It encodes in the thread that
calls the handler, before any output of the call is handed on: of a call with an output that cannot be encoded, nothing
is sent.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kunicorn.handler.config import REGISTERED, Encoding, OutputEncoding
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.decode.forms import BYTES, named_function
from kunicorn.handler.encode import Misfit, Unencodable, unencodable
from kunicorn.handler.encode.models import as_json, is_model
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import Send
from kunicorn.handler.record import Record

Encode = Callable[[Any], bytes | None]
OnFailure = Callable[[str, str], None]
"""Told the topic of an output that was not encoded, and why: a part's name, "schema" or "registry"."""

_FIRST_BYTES = (b"\0", b"\1")
"""Of Confluent's wire format: before a schema's number, and before its GUID."""
_SHORTEST = 5
_ENCODES = "takes what is to be sent and returns bytes"


@dataclass(frozen=True, slots=True)
class PartEncoder:
    """Encoder of values or keys that go to one topic."""

    part: str
    form: str
    """What they become, for error messages."""
    encode: Encode
    framed: bool = False
    """Bytes are sent as they are only where they begin with a schema's id."""

    def __call__(self, topic: str, item: Any) -> bytes | None:
        """The encoded item. Raises `Unencodable`; an error that may pass propagates."""
        try:
            if isinstance(item, Record):
                raise Misfit("it is the record itself; to send that as it was, return Send.of(record, topic)")
            if isinstance(item, bytes | bytearray | memoryview):
                return self._as_it_is(bytes(item))
            return self.encode(item)
        except (NotDecodableYet, Unencodable, MemoryError):
            raise
        except Exception as error:
            raise unencodable(topic, self.part, self.form, error) from error

    def _as_it_is(self, encoded: bytes) -> bytes:
        if self.framed and not (len(encoded) >= _SHORTEST and encoded[:1] in _FIRST_BYTES):
            raise Misfit(
                "it is bytes that do not begin with a schema's id; return the object itself, or Send(…, encoded=True) "
                "for bytes that are to be sent as they are"
            )
        return encoded


@dataclass(frozen=True, slots=True)
class TopicEncoder:
    """Encoders of what goes to one topic; None: bytes or text, as ever."""

    value: PartEncoder | None
    key: PartEncoder | None
    headers: bool
    """What is neither text nor bytes is written as JSON."""

    def __call__(self, topic: str, send: Send) -> Send:
        """The output with its parts encoded. Raises `Unencodable`."""
        value, key, headers = send.value, send.key, send.headers
        if self.value is not None and value is not None:
            value = self.value(topic, value)
        if self.key is not None and key is not None:
            key = self.key(topic, key)
        if self.headers and headers:
            headers = _encoded_headers(topic, headers)
        return Send(send.topic, value, key, headers, send.partition, send.timestamp, True)


def _encoded_headers(topic: str, headers: Any) -> Any:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return [(name, _header(topic, name, value)) for name, value in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(error, Unencodable):
            raise
        return headers  # No pairs: told where the output is made.


def _header(topic: str, name: object, value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | bytearray | memoryview):
        return value
    try:
        return as_json(value)
    except Exception as error:
        raise unencodable(topic, f"header {name!r}", "written as JSON", error) from error


_MOST_TOPICS = 1000
"""Forgets them all beyond that: records may name topics that never repeat."""


class Encoder:
    """Encoders of all topics that a handler sends to, each made when it is first needed. Any thread."""

    def __init__(
        self, encoding: Encoding, default_topic: str | None, failed: OnFailure = lambda topic, reason: None
    ) -> None:
        """`failed` is told of each output that was not encoded. Imports and reads what the settings name. Raises
        `HandlerLoadError`.
        """
        self._default_topic = default_topic
        self._failed = failed
        self._default = _Maker(encoding.default, "producing", encoding.schema_registry)
        self._makers = {
            topic: _Maker(each, f"producing.topics[{topic!r}]", encoding.schema_registry)
            for topic, each in encoding.topics.items()
        }
        self._made: dict[str, TopicEncoder] = {}
        returned_to = encoding.topics.get(default_topic or "", encoding.default)
        self._sends_models = returned_to.value != BYTES

    def around(self, handler: Handler) -> Handler:
        """The handler with what it returns or yields encoded; it looks from outside as it did before."""
        return replace(handler, call=_around(handler, self.encoded, self.item))

    def encoded(self, returned: object) -> object:
        """What a handler returned, with the outputs in it encoded; an outcome, and whatever else it is, stays."""
        if isinstance(returned, list | tuple):
            return [self.item(each) for each in returned]
        if isinstance(returned, Iterator):
            return self._yielded(returned)
        return self.item(returned)

    def item(self, item: object) -> object:
        """One of them; a model becomes a `Send` to the default topic."""
        if isinstance(item, Send):
            return self._send(item)
        if self._sends_models and is_model(item):
            return self._send(Send(value=item))
        return item

    def _yielded(self, yielding: Iterator[object]) -> Generator[object, None, object]:
        while True:
            try:
                each = next(yielding)
            except StopIteration as end:
                return end.value
            try:
                yield self.item(each)
            except BaseException:
                if isinstance(yielding, Generator):
                    yielding.close()
                raise

    def _send(self, send: Send) -> Send:
        topic = send.topic or self._default_topic
        if send.encoded or not isinstance(topic, str):
            return send  # The latter is told where the output is made.
        encode = self._made.get(topic) or self._make(topic)
        try:
            return encode(topic, send)
        except NotDecodableYet:
            self._failed(topic, "registry")
            raise
        except Unencodable as error:
            self._failed(topic, "schema" if getattr(error, "of_schema", False) else "content")
            raise

    def _make(self, topic: str) -> TopicEncoder:
        if len(self._made) >= _MOST_TOPICS:
            self._made.clear()
        return self._made.setdefault(topic, self._maker(topic).made(topic))

    def _maker(self, topic: str) -> _Maker:
        return self._makers.get(topic, self._default)

    def topics(self) -> Mapping[str, _Maker]:
        """Makers of the topics that the settings name. Caller: `kunicorn check`."""
        default = {self._default_topic: self._default} if self._default_topic else {}
        return {**default, **self._makers}


def _around(
    handler: Handler, encoded: Callable[[object], object], item: Callable[[object], object]
) -> Callable[..., Any]:
    handle = handler.call

    def call(*arguments: Any) -> object:
        return None if (returned := handle(*arguments)) is None else encoded(returned)

    async def call_async(*arguments: Any) -> object:
        return None if (returned := await handle(*arguments)) is None else encoded(returned)

    async def call_yielding(*arguments: Any) -> AsyncIterator[object]:
        yielding = handle(*arguments)
        async for each in yielding:
            try:
                yield item(each)
            except BaseException:
                await yielding.aclose()
                raise

    made: Callable[..., Any] = call
    if handler.is_async:
        made = call_yielding if handler.yields else call_async
    # The form of its arguments is read off its signature.
    return functools.wraps(handle)(made)


class _Maker:
    """Maker of encoders by one table of the settings. Raises `HandlerLoadError` for what cannot be had."""

    def __init__(self, encoding: OutputEncoding, setting: str, registry: Mapping[str, Any]) -> None:
        self._encoding = encoding
        self._value = _part(encoding, "value", setting, registry)
        self._key = _part(encoding, "key", setting, registry)

    def made(self, topic: str) -> TopicEncoder:
        """The topic's encoder. Nothing is asked of a registry yet."""
        value, key = self._value and self._value(topic), self._key and self._key(topic)
        return TopicEncoder(value, key, self._encoding.headers == "json")

    def verified(self, topic: str) -> Iterator[str]:
        """What the registry has for that topic, a line each. Raises `Unencodable`, `NotEncodableYet`. Blocks."""
        for part in filter(None, (self._value, self._key)):
            encoder = part(topic)
            if encoder.framed:
                yield encoder.encode.verified()  # type: ignore[attr-defined]


def _part(
    encoding: OutputEncoding, part: Literal["value", "key"], setting: str, registry: Mapping[str, Any]
) -> Callable[[str], PartEncoder] | None:
    """Maker of a topic's encoder of values or keys; None where they are bytes."""
    name: str = getattr(encoding, part)
    if name == BYTES:
        return None
    if name == "json":
        return lambda topic: PartEncoder(part, "written as JSON", as_json)
    if name.partition(":")[0] not in REGISTERED:
        function = named_function(name, f"{setting}.{part}", object(), _ENCODES)
        return lambda topic: PartEncoder(part, f"encoded by {name}", _bytes_of(function))
    from kunicorn.handler.encode.schema_registry import registering

    make = registering(encoding, part, setting, registry)
    form = f"written as {name.partition(':')[0]} of a registered schema"
    return lambda topic: PartEncoder(part, form, make(topic), framed=True)


def _bytes_of(function: Callable[[Any], Any]) -> Encode:
    def encode(item: Any) -> bytes | None:
        encoded = function(item)
        if encoded is None or isinstance(encoded, bytes):
            return encoded
        raise Misfit(f"the encoder returned {type(encoded).__name__}; it returns bytes, or None for a tombstone")

    return encode
