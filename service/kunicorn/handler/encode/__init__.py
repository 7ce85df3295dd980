"""Encoding of outputs: values, keys and headers of what a handler sends, by the encoders that [producing] names.

An output that cannot be encoded fails its record with `Unencodable`, before anything of the record is sent. Its message
names topic, part, field and reason, never the content, as those of decoding do not (`kunicorn.handler.decode`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from kunicorn.handler.decode import NotDecodableYet, explained
from kunicorn.handler.outcome import NotToBeSent

_LONGEST = 500
_TOLD = 3
"""Fields of one value that are told; the others are counted."""


class Unencodable(NotToBeSent):
    """Output that cannot be encoded as [producing] says: it does not fit its schema, or the registry refuses that.
    Fails its record like any other exception.
    """

    __module__ = "kunicorn"
    """As users import it and write it in [[handler.failures]], and as dead letters tell it."""


class NotEncodableYet(NotDecodableYet):
    """A service that encoding needs, such as the schema registry, is away: the record waits until it is back, however
    long that takes, and its handler is then called again. An encoder of the user's may raise it, too.
    """

    __module__ = "kunicorn"


class Misfit(ValueError):
    """Reason that is told as it is; it quotes nothing of the content."""


def unencodable(topic: str, part: str, form: str, error: BaseException) -> Unencodable:
    """`Unencodable` for an output to that topic. `part` is "value", "key" or "header ...", `form` what it should
    become.
    """
    failure = Unencodable(f"an output for topic {topic!r}: its {part} cannot be {form}: {reason_of(error)[:_LONGEST]}")
    # Where it was raised, for an encoder of the user's; the log shows the user's frames only.
    return failure.with_traceback(error.__traceback__)


def reason_of(error: BaseException) -> str:
    """Reason of an encoding error, without the payload; of an unknown error only its class."""
    if isinstance(error, Misfit):
        return str(error)
    if isinstance(error, TypeError) and str(error).startswith("Encoding objects of type "):
        return str(error)  # msgspec's: it names the type alone.
    if any(kind.__name__ == "ParseError" for kind in type(error).__mro__):
        # Of protobuf's json_format: which field; behind the first colon it quotes the content.
        return re.split(r": |\n", str(error))[0]
    return explained(error)


def fields_told(fields: Iterable[tuple[str, Any, type]]) -> str:
    """Text for fields with what their schema expects and what they are."""
    every: dict[str, tuple[list[str], type]] = {}
    for name, expected, found in fields:
        every.setdefault(name or "the whole", ([], found))[0].append(_kind(expected))
    texts = [
        f"{name}: expected {' or '.join(kinds)}, got {_found(kinds, found)}" for name, (kinds, found) in every.items()
    ]
    more = len(texts) - _TOLD
    return "; ".join(texts[:_TOLD]) + (f"; and {more} more" if more > 0 else "")


def _found(kinds: Collection[str], found: type) -> str:
    return "a number out of its range" if found is int and not {"int", "long"}.isdisjoint(kinds) else found.__name__


def _kind(schema: Any) -> str:
    """Name of an Avro type."""
    if isinstance(schema, dict):
        return str(schema.get("name") or schema.get("logicalType") or _kind(schema.get("type")))
    return " or ".join(map(_kind, schema)) if isinstance(schema, list) else str(schema)


__all__ = ["NotEncodableYet", "Unencodable"]
