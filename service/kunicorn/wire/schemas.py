"""kio's message classes for every API and version that we speak, loaded when this module is imported.

Not on demand: the first JoinGroup would otherwise import its modules on the event loop, and heartbeats would wait.
"""

from __future__ import annotations

import types
import typing
from dataclasses import Field
from typing import Any, TypeAlias

from kio.index import load_request_schema, load_response_schema

from kunicorn.wire.versions import OURS, Api

Schema: TypeAlias = Any
"""A kio dataclass (the class). Its fields differ from version to version: their types are known at run time only."""

_VERSIONS = [(api, version) for api, ours in OURS.items() for version in range(ours.low, ours.high + 1)]

REQUESTS: dict[tuple[Api, int], Schema] = {key: load_request_schema(*key) for key in _VERSIONS}
RESPONSES: dict[tuple[Api, int], Schema] = {key: load_response_schema(*key) for key in _VERSIONS}


def field_type(field: Field[Any]) -> tuple[Schema, bool]:
    """The field's type without "or None" and without the array around it; and whether there is an array."""
    annotation: Any = field.type
    if isinstance(annotation, types.UnionType):
        (annotation,) = (each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True
    return annotation, False
