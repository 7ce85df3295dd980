"""Models as outputs: which objects are models, and the plain objects that encoders write of them.

Models are those that decoding makes (`handler.decode.models`) and Protobuf messages; a dict is a model, too. Pure.
"""

from __future__ import annotations

import functools
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from kunicorn.handler.decode.models import is_model_class
from kunicorn.handler.encode import Misfit
from kunicorn.handler.outcome import Send
from kunicorn.handler.record import Batch, Record

_OF_PYTHON = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
"""Types that Avro's writer takes as they are: for logical types, and bytes."""


def is_model(item: object) -> bool:
    """Whether a handler that returns this means it to be sent."""
    kind: Any = type(item)
    return _is_model(kind)


@functools.lru_cache(maxsize=1024)
def _is_model(kind: Any) -> bool:
    if issubclass(kind, Send | Batch):
        return False
    return issubclass(kind, dict) or is_model_class(kind) or is_message_class(kind)


def is_message_class(kind: type) -> bool:
    """Whether objects of that class are Protobuf messages; without loading that library."""
    return hasattr(kind, "DESCRIPTOR") and hasattr(kind, "SerializeToString")


def as_json(item: object) -> bytes:
    """The object as JSON, which has neither NaN nor infinity: they become null, but for models of pydantic's that say
    otherwise. Raises what the model's library raises."""
    if hasattr(item, "__pydantic_serializer__"):
        written: bytes = item.__pydantic_serializer__.to_json(item, by_alias=True)
        return written
    return msgspec.json.encode(item, enc_hook=_jsonable)


def json_objects(item: object) -> Any:
    """The object as dicts, lists, texts and numbers."""
    return msgspec.to_builtins(item, enc_hook=_jsonable)


def python_objects(item: object) -> Any:
    """The object as dicts and lists of Python's own objects: dates, decimals and bytes stay what they are."""
    return msgspec.to_builtins(item, builtin_types=_OF_PYTHON, enc_hook=_plain)


def _jsonable(item: Any) -> Any:
    return _dumped(item, "json")


def _plain(item: Any) -> Any:
    return _dumped(item, "python")


def _dumped(item: Any, mode: str) -> Any:
    """What msgspec does not know: models of pydantic, within others, too."""
    if isinstance(item, Record | Batch):
        raise Misfit("it is the record itself; to send that as it was, return Send.of(record, topic)")
    if hasattr(item, "__pydantic_serializer__"):
        return item.__pydantic_serializer__.to_python(item, mode=mode, by_alias=True)
    raise TypeError(f"Encoding objects of type {type(item).__name__} is unsupported")
