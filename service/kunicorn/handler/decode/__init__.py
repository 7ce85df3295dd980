"""Decoding of values and keys: by a named decoder, by a function of the user's, or by the type of the handler's
parameter.

A value or key that cannot be decoded fails its record with `Undecodable`, which `[[handler.failures]]` can name as
`kunicorn.Undecodable`. Its message names record, part and reason, never the content: errors of decoders often quote the
payload, which does not belong in logs. So they are reworded here, and not simply quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from json import JSONDecodeError
from typing import Any, get_args

from confluent_kafka import Message
from msgspec import MsgspecError

_TOLD = 3
"""Problems of one value that are told; the others are counted."""
_LONGEST = 500


class Undecodable(Exception):
    """Value or key that is not in the expected format. Another try would not help, so that the record goes where
    `handler.on_undecodable` says, or else `on_failure`. A handler may raise it, too.
    """

    __module__ = "kunicorn"
    """As users import it and write it in [[handler.failures]], and as dead letters tell it."""


class NotDecodableYet(Exception):
    """A service that decoding needs, such as the schema registry, is away: the record waits until it is back, however
    long that takes. A handler, or a decoder of the user's, may raise it, too.
    """

    __module__ = "kunicorn"


class NullRefused(ValueError):
    """Null where there has to be something: a tombstone for a handler whose parameter may not be None, or a field."""


class FieldRefused(ValueError):
    """A field has a value that its column would change. The message names the field, never the value."""


def undecodable(message: Message, part: str, form: str, error: Exception, names: Collection[str] = ()) -> Undecodable:
    """`Undecodable` for this record. `part` is "value" or "key", `form` what it should have been. `names`: those in its
    model, which may be told.
    """
    place = f"{message.topic()}-{message.partition()}@{message.offset()}"
    failure = Undecodable(f"{place}: its {part} is no {form}: {explained(error, names)[:_LONGEST]}")
    # Where it was raised, for a decoder of the user's; the log shows the user's frames only.
    return failure.with_traceback(error.__traceback__)


def explained(error: BaseException, names: Collection[str] = ()) -> str:
    """Reason of a decoding error, without the payload; of an unknown error only its class. `names`: those that a
    model has; keys in the payload are told as `[...]`.
    """
    if _is(error, _PYDANTICS):
        return _invalid(error, names)
    return next((tell(error) for kind, tell in _TOLD_OF.items() if _is(error, kind)), _name(error))


def _is(error: BaseException, kind: type[BaseException] | str) -> bool:
    """Whether the error is of that class; given by name where the library may not be installed."""
    if isinstance(kind, str):
        return any(f"{each.__module__}.{each.__qualname__}" == kind for each in type(error).__mro__)
    return isinstance(error, kind)


def _name(error: BaseException) -> str:
    return type(error).__name__


def _bad_text(error: Any) -> str:
    return f"{error.reason} at byte {error.start}"


_QUOTING = re.compile(
    r"(Invalid enum value|Invalid value|Object contains unknown field) .*?( - at `[^`]*`(?: in `[^`]*`)?)?", re.DOTALL
)
"""Messages of msgspec that have an enum's value, a tag or a key in them, however that is quoted, and then a place."""


def _unquoted(error: BaseException) -> str:
    """Message of a msgspec error, without what it quotes; of what a model's `__post_init__` raises, only its class and
    its place: such a text is msgspec's message as it stands, and may have the record's values in it.
    """
    text = str(error)
    if (cause := error.__cause__) is not None:
        said = str(cause)
        place = text.removeprefix(said) if text.startswith(said) else ""
        return f"refused by a validator ({_name(cause)}){place}"
    if (found := _QUOTING.fullmatch(text)) is not None:
        return f"{found[1]} '…'{found[2] or ''}"
    return re.sub(r"'.*'", "'…'", text, flags=re.DOTALL)


_PYDANTICS = "pydantic_core._pydantic_core.ValidationError"
_TAG = "union_tag_invalid"


def _invalid(error: Any, names: Collection[str]) -> str:
    """Message of a pydantic error: where and what, without the input."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    more = len(problems) - _TOLD
    told = [_problem(each, names) for each in problems[:_TOLD]]
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def _problem(problem: Mapping[str, Any], names: Collection[str]) -> str:
    from pydantic_core import core_schema  # It is there, as this is its error.

    kind, what = problem["type"], problem["msg"]
    if kind in {"value_error", "assertion_error"} or kind not in get_args(core_schema.ErrorType):
        what = f"refused by a validator ({kind})"
    elif kind == _TAG:
        what = "its tag is none of those that are known"
    where = _place(problem["loc"], names)
    return f"{where}: {what}" if where else str(what)


def _place(path: Iterable[object], names: Collection[str]) -> str:
    """Place in a payload, by the names that its model or schema has."""
    return ".".join(str(each) if isinstance(each, int) or each in names else "[...]" for each in path)


def _violation(error: Any) -> str:
    """Message of a jsonschema error: where, and which rule."""
    names = {name for kind, name in pairwise(error.absolute_schema_path) if kind == "properties"}
    where = ".".join(filter(None, ("$", _place(error.absolute_path, names))))
    return f"{where} breaks the rule {error.validator!r} of its schema"


def _caused(error: BaseException) -> str:
    """Message of an error of confluent-kafka's deserialisers. They wrap what they met; without a cause the framing is
    wrong.
    """
    inner = error.__cause__ or error.__context__
    return explained(inner) if inner is not None else str(error)


def _misfit(error: BaseException) -> str:
    """Message of pyarrow's JSON reader, without the value that it quotes."""
    text = str(error)
    if (found := re.search(r"Column\(/v/?(.*)\) changed from (\w+) to (\w+)", text)) is not None:
        where, wanted, what = found.groups()
        return f"{where or 'it'} is of the kind {what}, and {wanted} is wanted"
    if (found := re.search(r"Failed (?:to convert|of conversion of) JSON to ([^,]+)", text)) is not None:
        return f"a value in it is no {found[1]}"
    if (found := re.match(r"JSON parse error: (.*?) in row", text)) is not None:
        return found[1].replace("/v/", "").rstrip(".")
    return _name(error)


_TOLD_OF: Mapping[type[BaseException] | str, Callable[[Any], str]] = {
    NullRefused: str,
    FieldRefused: str,
    JSONDecodeError: str,
    UnicodeDecodeError: _bad_text,
    MsgspecError: _unquoted,
    RecursionError: lambda _: "nested too deeply",
    "pyarrow.lib.ArrowInvalid": _misfit,
    "jsonschema.exceptions.ValidationError": _violation,
    "confluent_kafka.schema_registry.error.SchemaRegistryError": str,
    "confluent_kafka.serialization.SerializationError": _caused,
}
"""The first that an error is an instance of."""


__all__ = ["NotDecodableYet", "Undecodable"]
