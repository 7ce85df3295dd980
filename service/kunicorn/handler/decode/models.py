"""Models as handler parameters: `def handle(order: Order)`, `def handle(orders: list[Order])`.

Models are pydantic's (also its dataclasses), `msgspec.Struct`s and dataclasses. `Order | None` takes tombstones, too;
`Order | Refund` is a choice as the library understands it. A second parameter gets the record, or the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Union, get_args, get_origin

import msgspec

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.record import Batch, Record

_LISTS = (list, Sequence, Collection, Iterable)


@dataclass(frozen=True, slots=True)
class Model:
    """Model that the handler's first parameter is annotated with."""

    name: str
    takes_null: bool
    from_json: Callable[[bytes], Any]
    from_object: Callable[[Any], Any]
    """Makes the model of another decoder's result, such as a dict."""
    with_record: bool
    """Whether the handler takes the record (the batch) as well."""
    names: Collection[str] = ()
    """Those in its fields' places, where a record's own keys may be, too."""


def model_of(handle: Callable[..., Any], mode: str) -> Model | None:
    """Model of the handler's parameter; None if it takes records. Raises `HandlerLoadError`."""
    parameters = _positional(handle)
    if not parameters:
        return None
    hint = _hint(handle, parameters[0])
    item = get_args(hint)[0] if get_origin(hint) in _LISTS and get_args(hint) else None
    told = item is not None and _is_model(item)
    if (mode == "arrow" or told != (mode == "batch")) and (_is_model(hint) or _is_model(item)):
        raise HandlerLoadError(_wrong_mode(handle, parameters[0], mode))
    wanted = hint if item is None else item
    if not _is_model(wanted):
        return None
    with_record = len(parameters) > 1 and _takes_record(handle, parameters[1])
    try:
        from_json, from_object, names = _decoding(_without_none(wanted))
    except Exception as error:
        text = f"{_name(handle)}: its parameter {parameters[0].name!r} cannot be decoded to {_shown(wanted)}: {error}"
        raise HandlerLoadError(text) from error
    takes_null = type(None) in _members(wanted)
    return Model(_shown(_without_none(wanted)), takes_null, from_json, from_object, with_record, names)


def takes_model_and_record(handle: Callable[..., Any]) -> bool:
    """Whether the handler has two parameters, the first of a model. Raises `HandlerLoadError`."""
    parameters = _positional(handle)
    if len(parameters) != 2:
        return False
    hint = _hint(handle, parameters[0])
    return _is_model(hint) or (get_origin(hint) in _LISTS and any(map(_is_model, get_args(hint))))


def _positional(handle: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(handle).parameters.values()
    except (TypeError, ValueError):
        return []  # Written in C and silent about its arguments.
    return [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _takes_record(handle: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty or _hint(handle, parameter) in (Record, Batch)


def _hint(handle: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Annotation of the parameter, evaluated if it is a string (PEP 563). Raises `HandlerLoadError`."""
    if parameter.annotation is parameter.empty:
        return Any
    stand_in = types.SimpleNamespace(__annotations__={"wanted": parameter.annotation})
    try:
        return typing.get_type_hints(stand_in, _names_of(handle), include_extras=False)["wanted"]
    except Exception as error:
        if str(parameter.annotation).rpartition(".")[2] in (Record.__name__, Batch.__name__):
            return Any  # Imported for type checkers only; needed by nobody else.
        raise HandlerLoadError(
            f"{_name(handle)}: the annotation {parameter.annotation!r} of its parameter {parameter.name!r}, which says "
            f"what records are decoded to, cannot be evaluated: {error}; import the name outside of 'if TYPE_CHECKING'"
        ) from error


def _names_of(handle: Callable[..., Any]) -> dict[str, Any]:
    """Global names of the handler's module, found through wrappers, partials, methods and objects with `__call__`."""
    function: Any = inspect.unwrap(handle)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(getattr(function, "__func__", function), "__globals__"):
        function = inspect.unwrap(type(function).__call__)
    names: dict[str, Any] = getattr(getattr(function, "__func__", function), "__globals__", {})
    return names


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _without_none(hint: Any) -> Any:
    members = tuple(each for each in _members(hint) if each is not type(None))
    return Union[members]  # noqa: UP007 - made of a tuple


def _is_model(hint: Any) -> bool:
    members = [each for each in _members(hint) if each is not type(None)]
    return bool(members) and all(isinstance(each, type) and is_model_class(each) for each in members)


def is_model_class(kind: type) -> bool:
    """Whether objects of that class are models."""
    if issubclass(kind, Record):
        return False
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or _is_pydantic(kind)


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_validator__")


def _decoding(hint: Any) -> tuple[Callable[[bytes], Any], Callable[[Any], Any], Collection[str]]:
    """Functions that make the model from JSON and from an object, the library's own fastest ones, and the model's
    names where its errors have those beside the record's keys."""
    pydantics = [_is_pydantic(each) for each in _members(hint)]
    if all(pydantics):
        from pydantic import TypeAdapter

        adapter = TypeAdapter(hint)
        validator = adapter.validator
        return validator.validate_json, validator.validate_python, frozenset(_names_in(adapter.core_schema))
    if any(pydantics):
        raise TypeError("a choice between models of pydantic and others; use one kind")

    def convert(decoded: Any) -> Any:
        return msgspec.convert(decoded, hint)

    return msgspec.json.Decoder(hint).decode, convert, ()


def _names_in(schema: object) -> Iterator[str]:
    """Names in a core schema of pydantic's, in which nothing is a record's: fields, aliases, tags, kinds, classes."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, type):
        yield schema.__name__
    elif isinstance(schema, Mapping):
        yield from chain.from_iterable(map(_names_in, chain(schema, schema.values())))
    elif isinstance(schema, list | tuple):
        yield from chain.from_iterable(map(_names_in, schema))


_CALLED_WITH = {
    "record": ("one record", 'the model itself, or set handler.mode = "batch"'),
    "batch": ("a batch of records", "list[…] of the model"),
    "arrow": ("columns", 'pyarrow.RecordBatch, or set handler.mode = "record" or "batch"'),
}
"""By mode: what a handler is called with, and what its parameter may be annotated with."""


def _wrong_mode(handle: Callable[..., Any], parameter: inspect.Parameter, mode: str) -> str:
    said, right = _CALLED_WITH[mode]
    return (
        f"{_name(handle)} is called with {said} (handler.mode = {mode!r}), but its parameter {parameter.name!r} is "
        f"annotated with {_shown(parameter.annotation)}; annotate it with {right}"
    )


def _name(handle: Callable[..., Any]) -> str:
    module, name = getattr(handle, "__module__", None), getattr(handle, "__qualname__", None)
    return f"{module}:{name}" if module and name else repr(handle)


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
