"""The Arrow type of values that are decoded to columns: a schema of the user's, or what a model's fields amount to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.inspect as mi
import pyarrow as pa

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.load import located

_SETTING = "handler.value_schema"
_PLAIN: Mapping[type[mi.Type], pa.DataType] = {
    mi.BoolType: pa.bool_(),
    mi.IntType: pa.int64(),
    mi.FloatType: pa.float64(),
    mi.StrType: pa.string(),
    mi.UUIDType: pa.string(),
    mi.DateTimeType: pa.timestamp("us", "UTC"),
    mi.DateType: pa.timestamp("s"),
}
_LISTS = (mi.ListType, mi.CollectionType, mi.VarTupleType, mi.SetType, mi.FrozenSetType)


def struct_named(name: str) -> pa.StructType:
    """The type of the values, from what `package.module:NAME` is. Raises `HandlerLoadError`."""
    found = located(f"{_SETTING} = {name!r}", name)
    if isinstance(found, pa.Schema):
        return pa.struct(list(found))
    if isinstance(found, pa.StructType):
        return found
    try:
        return _struct(found, ())
    except (TypeError, RecursionError) as error:
        raise HandlerLoadError(f"{_SETTING} = {name!r} gives no columns: {error}") from error


def _struct(model: Any, within: tuple[Any, ...]) -> pa.StructType:
    """Raises `TypeError`."""
    if model in within:
        raise TypeError(f"{model.__name__} has itself among its fields, and columns have an end; give a pyarrow.Schema")
    if hasattr(model, "model_fields"):
        return pa.struct([_of_pydantic(name, each, (*within, model)) for name, each in model.model_fields.items()])
    is_struct = isinstance(model, type) and issubclass(model, msgspec.Struct)
    if not is_struct and not dataclasses.is_dataclass(model):
        raise TypeError(
            f"it is {model!r}; name a pyarrow.Schema, or a model: a dataclass, a msgspec.Struct or one of pydantic's"
        )
    fields = mi.type_info(model).fields  # type: ignore[attr-defined]
    return pa.struct([_field(each.encode_name, each.type, each.required, (*within, model)) for each in fields])


def _of_pydantic(name: str, field: Any, within: tuple[Any, ...]) -> pa.Field:
    alias = field.validation_alias or field.alias or name
    if not isinstance(alias, str):
        raise TypeError(f"the field {name!r} has several names in JSON; give a pyarrow.Schema")
    return _field(alias, mi.type_info(field.annotation), field.is_required(), within)


def _field(name: str, kind: mi.Type, required: bool, within: tuple[Any, ...]) -> pa.Field:
    try:
        arrow, nullable = _type(kind, within)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    return pa.field(name, arrow, nullable=nullable or not required)


def _type(kind: mi.Type, within: tuple[Any, ...]) -> tuple[pa.DataType, bool]:
    """The Arrow type, and whether null will do. Raises `TypeError`."""
    if isinstance(kind, mi.UnionType):
        others = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        if len(others) == 1:
            return _type(others[0], within)[0], len(others) < len(kind.types)
        raise TypeError("a choice between types has no column; give a pyarrow.Schema")
    if isinstance(kind, mi.Metadata):
        return _type(kind.type, within)
    if (plain := _PLAIN.get(type(kind))) is not None:
        return plain, False
    if isinstance(kind, _LISTS):
        item, nullable = _type(kind.item_type, within)
        return pa.list_(pa.field("item", item, nullable=nullable)), False
    if isinstance(kind, mi.StructType | mi.DataclassType | mi.CustomType):
        return _struct(kind.cls, within), False
    if isinstance(kind, mi.LiteralType | mi.EnumType):
        values = kind.values if isinstance(kind, mi.LiteralType) else [each.value for each in kind.cls]
        return _of_values(values), False
    raise TypeError(f"{type(kind).__name__.removesuffix('Type')} has no column of its own; give a pyarrow.Schema")


def _of_values(values: Any) -> pa.DataType:
    for python, arrow in ((str, pa.string()), (int, pa.int64())):
        if all(isinstance(each, python) for each in values):
            return arrow
    raise TypeError("a choice of values that are neither all texts nor all numbers; give a pyarrow.Schema")
