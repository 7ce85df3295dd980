"""Kafka messages for tests: any of kio's classes, filled at random or with as little as it takes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache, lru_cache
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode

from kunicorn.kafka.codec import encode
from kunicorn.kafka.versions import RESPONSES, Api, Schema, field_type

_BLANK: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(),
    "timedelta_i64": timedelta(),
}


def blank(schema: Schema, **values: Any) -> Any:
    """A message with defaults and zeros, except for `values`; an `error_code` may be a plain integer."""
    if "error_code" in values:
        values["error_code"] = ErrorCode(values["error_code"])
    return schema(**{**_blank_fields(schema), **values})


@cache
def _blank_fields(schema: Schema) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for field in fields(schema):
        inner, array = field_type(field)
        if field.default is not MISSING:
            given[field.name] = field.default
        elif array:
            given[field.name] = ()
        else:
            given[field.name] = blank(inner) if is_dataclass(inner) else _BLANK.get(field.metadata["kafka_type"], 0)
    return given


@cache
def nested(schema: Schema, name: str) -> Schema:
    """The class of the structures in the array field `name`."""
    return next(field_type(field)[0] for field in fields(schema) if field.name == name)


def response_frame(correlation_id: int, message: Any) -> bytes:
    """The message as the broker sends it, without the length."""
    try:
        body = _encoded(message)
    except TypeError:
        # A list where kio has a tuple, which a test may write.
        body = encode(message)
    return correlation_id.to_bytes(4, "big", signed=True) + _rest_of_header(message.__header_schema__) + body


@lru_cache(maxsize=256)
def _encoded(message: Any) -> bytes:
    """Brokers say the same again and again, and kio's writers are slow."""
    return encode(message)


@cache
def _rest_of_header(schema: Schema) -> bytes:
    return encode(schema(correlation_id=0))[4:]


def blank_response(api: Api, version: int, **values: Any) -> Any:
    return blank(RESPONSES[api, version], **values)


def sample(schema: Schema, rng: Random) -> Any:
    """A message with something at random in every field."""
    return schema(**{field.name: _sample_field(field, rng) for field in fields(schema)})


def _sample_field(field: Any, rng: Random) -> Any:
    inner, array = field_type(field)
    if array:
        return tuple(_sample_value(field, inner, rng) for _ in range(rng.randrange(4)))
    return _sample_value(field, inner, rng)


def _sample_value(field: Any, inner: Schema, rng: Random) -> Any:
    if is_dataclass(inner):
        return sample(inner, rng)
    kind = field.metadata["kafka_type"]
    integers = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
    if kind in integers:
        return rng.randrange(-(2 ** integers[kind]), 2 ** integers[kind])
    values: dict[str, Callable[[], Any]] = {
        "uint16": lambda: rng.randrange(2**16),
        "string": lambda: "".join(rng.choices("aä-.0", k=rng.randrange(40))),
        "bytes": lambda: rng.randbytes(rng.randrange(40)),
        "bool": lambda: rng.random() < 0.5,
        "uuid": lambda: uuid.UUID(int=rng.getrandbits(128) | 1),
        "error_code": lambda: rng.choice(list(ErrorCode)),
        "timedelta_i32": lambda: timedelta(milliseconds=rng.randrange(2**31)),
        "timedelta_i64": lambda: timedelta(milliseconds=rng.randrange(2**40)),
    }
    return values[kind]()
