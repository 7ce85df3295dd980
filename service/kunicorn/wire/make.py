"""Building kio's request for whichever version was negotiated, from one description.

kio has one class for each version, which takes exactly that version's fields and checks none of their types: a
field too many is a TypeError that shows only against the one broker that negotiates the version, and a string where
a tuple of strings is meant goes out as its letters. Everything is built here, so that a test finds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast

from kunicorn.wire.schemas import REQUESTS, Schema, field_type
from kunicorn.wire.versions import Api

Fields = Mapping[str, object]
"""A message's fields by kio's names; nested structures are mappings again, arrays any iterable but a string."""

IGNORABLE: frozenset[tuple[Api, str]] = frozenset(
    {
        (Api.API_VERSIONS, "client_software_name"),
        (Api.API_VERSIONS, "client_software_version"),
        (Api.JOIN_GROUP, "reason"),
        (Api.SYNC_GROUP, "protocol_type"),
        (Api.SYNC_GROUP, "protocol_name"),
        (Api.LEAVE_GROUP, "reason"),
        (Api.LIST_OFFSETS, "timeout"),
        (Api.OFFSET_FOR_LEADER_EPOCH, "replica_id"),
    }
)
"""Fields that an older version may lose although they are set: "ignorable" in Kafka's message definitions."""

_NEUTRAL: tuple[object, ...] = (None, False, 0, -1, "", (), [])
"""Values that say nothing: a version without the field says the same."""


def make(api: Api, version: int, values: Fields) -> Any:
    """kio's request message.

    A field that the version lacks is dropped if its value is neutral or the protocol lets it go unsaid; otherwise
    `ValueError`: an answer to something else than what was asked is worse than none.
    """
    return _build(api, REQUESTS[api, version], values)


@cache
def _types(schema: Schema) -> dict[str, tuple[Schema, bool]]:
    return {field.name: field_type(field) for field in fields(schema)}


def _build(api: Api, schema: Schema, values: Fields) -> Any:
    known = _types(schema)
    for name, value in values.items():
        if name not in known and value not in _NEUTRAL and (api, name) not in IGNORABLE:
            raise ValueError(f"{schema.__name__} v{schema.__version__} cannot carry {name} = {value!r}")
    return schema(**{name: _value(api, known[name], name, values[name]) for name in known if name in values})


def _value(api: Api, kind: tuple[Schema, bool], name: str, value: object) -> object:
    inner, array = kind
    if value is None:
        return None
    if not array:
        return _build(api, inner, cast(Fields, value)) if is_dataclass(inner) else value
    if isinstance(value, str | bytes | Mapping):
        raise TypeError(f"{api.title}: {name} is an array, not {type(value).__name__}")
    items = cast("Iterable[Any]", value)
    return tuple(_build(api, inner, item) if is_dataclass(inner) else item for item in items)
