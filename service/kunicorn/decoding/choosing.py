"""Which decoders a handler gets, by the settings and by its parameter's type."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from kunicorn.decoding.decoders import NAMED, Decoder, OfBytes, Part, Raw, Then
from kunicorn.decoding.forms import Decoded, Form, Modelled, Plain
from kunicorn.decoding.models import Model, model_of
from kunicorn.errors import HandlerLoadError
from kunicorn.handlers import user_traceback
from kunicorn.pipes.orders import REGISTERED, Decoding

BYTES = "bytes"


def form_of(handle: Callable[..., Any], mode: str, decoding: Decoding) -> Form:
    """What `handle` is called with. Imports what the settings name. Raises `HandlerLoadError`."""
    key = decoder_of(decoding.key, Part.KEY, decoding)
    if (model := model_of(handle, mode)) is not None:
        return Modelled(_of_model(model, decoding), key, model.with_record)
    if decoding.value == decoding.key == BYTES:
        return Plain()
    return Decoded(decoder_of(decoding.value, Part.VALUE, decoding), key)


def decoder_of(name: str, part: Part, decoding: Decoding) -> Decoder:
    """The decoder that `handler.value` or `handler.key` names. Raises `HandlerLoadError`."""
    if name == BYTES:
        return Raw(part)
    if name in NAMED:
        return OfBytes(part, *NAMED[name])
    if name.partition(":")[0] not in REGISTERED:
        return OfBytes(part, f"input of {name}", _function(name, f"handler.{part.value}"))
    from kunicorn.decoding.registry import registered

    return registered(name, part, decoding.schema_registry)


def _of_model(model: Model, decoding: Decoding) -> Decoder:
    refused = "" if model.takes_null else _no_null(model.name)
    if decoding.value in (BYTES, "json"):
        # Straight from the bytes: twice as fast as by way of Python's own objects.
        return OfBytes(Part.VALUE, f"JSON of {model.name}", model.from_json, refused)
    if decoding.value == "text":
        raise HandlerLoadError(
            f'handler.value = "text" makes texts, but the handler\'s parameter wants {model.name}; remove the setting, '
            f"or the annotation"
        )
    first = decoder_of(decoding.value, Part.VALUE, decoding)
    return Then(first, f"{model.name}, or {first.form}", model.from_object, refused)


def _no_null(model: str) -> str:
    return f"it is null (a tombstone); a parameter annotated with '{model} | None' gets None for those"


def _function(name: str, setting: str) -> Callable[[bytes], Any]:
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        why = f"{type(error).__name__}: {error}\n{user_traceback(error)}".rstrip()
        raise HandlerLoadError(f"{setting} = {name!r} cannot be imported: {why}") from error
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise HandlerLoadError(
            f"{setting} = {name!r} is no plain function; name one that takes bytes and returns what they hold"
        )
    try:
        inspect.signature(found).bind(b"")
    except TypeError as error:
        raise HandlerLoadError(f"{setting} = {name!r} is called with one argument, the bytes: {error}") from error
    except ValueError:
        pass  # Written in C and silent about its arguments.
    decode: Callable[[bytes], Any] = found
    return decode
