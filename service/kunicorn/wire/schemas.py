"""kio's message classes for every API and version that we speak, each loaded when it is first asked for.

One API's take ten milliseconds on the event loop, once; those of all APIs in one version would take longer than a start
has to wait for anything else.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field
from typing import Any, TypeAlias

from kio.index import load_request_schema, load_response_schema

from kunicorn.wire.versions import OURS, Api

Schema: TypeAlias = Any
"""A kio dataclass (the class). Its fields differ from version to version: their types are known at run time only."""


class Schemas(Mapping[tuple[Api, int], Schema]):
    """The classes by API and version; its keys are what we speak."""

    def __init__(self, load: Callable[[Api, int], Schema]) -> None:
        self._load = load
        self._loaded: dict[tuple[Api, int], Schema | None] = {
            (api, version): None for api, ours in OURS.items() for version in range(ours.low, ours.high + 1)
        }

    def __getitem__(self, key: tuple[Api, int]) -> Schema:
        schema = self._loaded[key]
        if schema is None:
            schema = self._loaded[key] = self._load(*key)
        return schema

    def __iter__(self) -> Iterator[tuple[Api, int]]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


REQUESTS = Schemas(load_request_schema)
RESPONSES = Schemas(load_response_schema)


def field_type(field: Field[Any]) -> tuple[Schema, bool]:
    """The field's type without "or None" and without the array around it; and whether there is an array."""
    annotation: Any = field.type
    if isinstance(annotation, types.UnionType):
        (annotation,) = (each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True
    return annotation, False
