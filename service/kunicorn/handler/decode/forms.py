"""Arguments of a handler's call: records, decoded records or models, one by one or as a batch.

`form_of` chooses the form by the settings (`handler.value`, `handler.key`) and by the type of the handler's parameter.
Caller: a process that handles, when it sets its handlers up; then for every call.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import Message

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import REGISTERED, Decoding
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.decode.decoders import NAMED, Decoder, OfBytes, Part, Raw, Then, one
from kunicorn.handler.decode.models import Model, model_of
from kunicorn.handler.extras import install_extra
from kunicorn.handler.load import DrainDeadline, error_message, user_traceback
from kunicorn.handler.messages import values
from kunicorn.handler.record import Batch, DecodedBatch, DecodedRecord, Record


@dataclass(frozen=True, slots=True)
class Gathered:
    """Argument of one call in batch mode."""

    argument: Any
    records: int
    """Number of leading messages in the argument."""
    undecodable: BaseException | None = None
    """What decoding the first message that is left out has ended by, or a filter of it; None: there is none, or that
    one comes in the next call."""


class Form(Protocol):
    """Makes a handler's arguments from messages; the classes below."""

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        """The handler as a function of one argument."""

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """Arguments, one for each message, made when asked for. Errors of decoders propagate as they are."""

    def batch(self, messages: Sequence[Message]) -> Gathered:
        """Argument with the leading messages that can be decoded. Raises `NotDecodableYet`."""

    def blame(self, message: Message) -> None:
        """Raise `Undecodable` if this message's decoding has failed; return if the failure was the handler's."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Form of handlers that take records as they are."""

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        return handle

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        return map(Record, values(messages), messages)

    def batch(self, messages: Sequence[Message]) -> Gathered:
        return Gathered(Batch(messages), len(messages))

    def blame(self, message: Message) -> None:
        """Nothing is decoded: the failure was the handler's."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Form of handlers that take records whose `data` and `key_data` are decoded."""

    value: Decoder
    key: Decoder

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        return handle

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        return map(DecodedRecord, values(messages), messages, self.value.each(messages), self.key.each(messages))

    def batch(self, messages: Sequence[Message]) -> Gathered:
        columns, failure = decoded_columns(messages, self.value, self.key)
        count = len(columns[0])
        return Gathered(DecodedBatch(messages[:count], *columns), count, failure)

    def blame(self, message: Message) -> None:
        one(self.value, message, Part.VALUE)
        one(self.key, message, Part.KEY)


@dataclass(frozen=True, slots=True)
class Modelled:
    """Form of handlers whose parameter is annotated with a model: they take its instances."""

    value: Decoder
    key: Decoder
    with_record: bool

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        return _Spread(handle) if self.with_record else handle

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        if not self.with_record:
            return self.value.each(messages)
        seen, shown = itertools.tee(self.value.each(messages))
        return zip(seen, map(DecodedRecord, values(messages), messages, shown, self.key.each(messages)), strict=True)

    def batch(self, messages: Sequence[Message]) -> Gathered:
        columns, failure = decoded_columns(messages, self.value, self.key)
        decoded, count = columns[0], len(columns[0])
        if not self.with_record:
            return Gathered(decoded, count, failure)
        return Gathered((decoded, DecodedBatch(messages[:count], *columns)), count, failure)

    def blame(self, message: Message) -> None:
        one(self.value, message, Part.VALUE)
        if self.with_record:
            one(self.key, message, Part.KEY)


def argument_of(form: Form, message: Message) -> Any:
    """Argument for this message. Raises `Undecodable`, `NotDecodableYet`."""
    try:
        return next(form.each([message]))
    except NotDecodableYet:
        raise  # Whoever is away is asked once.
    except Exception:
        form.blame(message)
        raise


@dataclass(frozen=True, slots=True)
class _Spread:
    """Handler of two parameters as a function of one pair."""

    handle: Callable[..., Any]

    def __call__(self, pair: tuple[Any, Any]) -> Any:
        return self.handle(*pair)


def decoded_columns(
    messages: Sequence[Message], value: Decoder, key: Decoder
) -> tuple[tuple[list[Any], list[Any]], BaseException | None]:
    """Decoded values and keys of the leading messages, and what decoding the next one has ended by: whatever a decoder
    raises, and a time-out, is of its record alone.

    Raises `NotDecodableYet`, and `DrainDeadline`.
    """
    # Which one cannot be decoded is found out only when one cannot: looking at each would cost every batch.
    decoded: list[Any] = []
    decoded_keys: list[Any] = []
    try:
        decoded.extend(value.each(messages))
        decoded_keys.extend(key.each(messages))
        if len(decoded) == len(decoded_keys) == len(messages):
            return (decoded, decoded_keys), None
    except (DrainDeadline, GeneratorExit):
        raise
    except BaseException as failure:
        if isinstance(failure, Exception) and not isinstance(failure, NotDecodableYet):
            return _one_by_one(messages, value, key)
        # It is not asked again: what hangs, or waits for who is away, would do so again, and only one time-out comes in
        # a call.
        leading = len(decoded) if len(decoded) < len(messages) else len(decoded_keys)
        columns, sooner = decoded_columns(messages[:leading], value, key)
        if sooner is None and isinstance(failure, NotDecodableYet):
            raise
        return columns, sooner or failure
    return _one_by_one(messages, value, key)


def _one_by_one(
    messages: Sequence[Message], value: Decoder, key: Decoder
) -> tuple[tuple[list[Any], list[Any]], BaseException | None]:
    decoded: list[Any] = []
    decoded_keys: list[Any] = []
    for message in messages:
        try:
            pair = one(value, message, Part.VALUE), one(key, message, Part.KEY)
        except (NotDecodableYet, DrainDeadline, GeneratorExit):
            raise
        except BaseException as failure:
            return (decoded, decoded_keys), failure
        decoded.append(pair[0])
        decoded_keys.append(pair[1])
    return (decoded, decoded_keys), None


BYTES = "bytes"
_DECODES = "takes bytes and returns what they hold"


def form_of(handle: Callable[..., Any], mode: str, decoding: Decoding) -> Form:
    """Form for `handle`. Imports what the settings name. Raises `HandlerLoadError`."""
    if mode == "arrow":
        return _columns(handle, decoding)
    key = decoder_of(decoding.key, Part.KEY, decoding)
    if (model := model_of(handle, mode)) is not None:
        return Modelled(_of_model(model, decoding), key, model.with_record)
    if decoding.value == decoding.key == BYTES:
        return Plain()
    return Decoded(decoder_of(decoding.value, Part.VALUE, decoding), key)


def need_arrow() -> None:
    """Raise `HandlerLoadError`, with what to install, if there is no pyarrow."""
    try:
        importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise HandlerLoadError(f'handler.mode = "arrow" needs pyarrow ({error}): {install_extra("arrow")}') from error


def _columns(handle: Callable[..., Any], decoding: Decoding) -> Form:
    need_arrow()
    from kunicorn.handler.arrow import columns_form

    model_of(handle, "arrow")
    return columns_form(decoding)


def decoder_of(name: str, part: Part, decoding: Decoding) -> Decoder:
    """Decoder that `handler.value` or `handler.key` names. Raises `HandlerLoadError`."""
    if name == BYTES:
        return Raw(part)
    if name in NAMED:
        return OfBytes(part, *NAMED[name])
    if name.partition(":")[0] not in REGISTERED:
        return OfBytes(part, f"input of {name}", named_function(name, f"handler.{part.value}"))
    from kunicorn.handler.decode.schema_registry import registered

    return registered(name, part, decoding.schema_registry)


def _of_model(model: Model, decoding: Decoding) -> Decoder:
    refused = "" if model.takes_null else _no_null(model.name)
    if decoding.value in (BYTES, "json"):
        # Straight from the bytes: twice as fast as by way of Python's own objects.
        return OfBytes(Part.VALUE, f"JSON of {model.name}", model.from_json, refused, model.names)
    if decoding.value == "text":
        raise HandlerLoadError(
            f'handler.value = "text" makes texts, but the handler\'s parameter wants {model.name}; remove the setting, '
            f"or the annotation"
        )
    first = decoder_of(decoding.value, Part.VALUE, decoding)
    return Then(first, f"{model.name}, or {first.form}", model.from_object, refused, model.names)


def _no_null(model: str) -> str:
    return f"it is null (a tombstone); a parameter annotated with '{model} | None' gets None for those"


def named_object(name: str, setting: str) -> Any:
    """What package.module:attribute names, imported. Raises `HandlerLoadError`, which names the setting."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        why = f"{type(error).__name__}: {error_message(error)}\n{user_traceback(error)}".rstrip()
        raise HandlerLoadError(f"{setting} = {name!r} cannot be imported: {why}") from error
    return found


def named_function(name: str, setting: str, example: Any = b"", role: str = _DECODES) -> Callable[[Any], Any]:
    """Plain function of one argument, such as `example`, that package.module:function names. `role`: what it is for.
    Raises `HandlerLoadError`.
    """
    found = named_object(name, setting)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise HandlerLoadError(f"{setting} = {name!r} is no plain function; name one that {role}")
    try:
        inspect.signature(found).bind(example)
    except TypeError as error:
        raise HandlerLoadError(f"{setting} = {name!r} is called with one argument: {error}") from error
    except ValueError:
        pass  # Written in C and silent about its arguments.
    function: Callable[[Any], Any] = found
    return function
