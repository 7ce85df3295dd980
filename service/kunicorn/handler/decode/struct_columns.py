"""Arrow columns of structs: made of the objects of a decoder, and what the schema does not allow in them.

1. A value has the meaning that it had, or it is refused: pyarrow alone would make 1 of 1.99 where integers are wanted,
   and cut times to the unit of their column. So a column is built of its objects' own type, and then cast.
2. Fields become columns one by one, and each is cast as a whole: a value more costs no call more.
3. Avro's decoder gives objects by the writer's schema: what only the reader's has a logical type for comes as a number
   or bytes, and a default as it stands in JSON. With `given` these get the reader's meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Context, Decimal
from itertools import accumulate, chain
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from kunicorn.handler.decode import FieldRefused, NullRefused

Fields = Callable[[Sequence[Any], str], list[Any]]
"""The field of that name of each object; null of null."""


def objects_as_column(
    found: Sequence[Any], kind: pa.DataType, fields: Fields, path: str = "", given: pa.DataType | None = None
) -> pa.Array:
    """A column of that type. Raises `FieldRefused`, which names the field and not its value. `given`: of a reader
    schema of Avro's, the type with the units that its numbers have; the column's own may be finer.
    """
    try:
        if pa.types.is_struct(kind):
            return _structs(found, kind, fields, path, given)
        if pa.types.is_map(kind):
            return _maps(found, kind, fields, path, given)
        if _is_list(kind):
            return _lists(found, kind, fields, path, given)
        if pa.types.is_dictionary(kind):
            return _encoded(objects_as_column(found, kind.value_type, fields, path), kind)
        return _plain(found if given is None else _as_read(found, kind, given), kind)
    except FieldRefused:
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise FieldRefused(f"{path or 'it'}: it does not fit the type {str(kind).partition('<')[0]}") from error


def fields_of_mappings(found: Sequence[Any], name: str) -> list[Any]:
    """As `Fields`, of Avro's records. One that lacks the field has null."""
    return [None if each is None else each.get(name) for each in found]


def fields_of_messages(found: Sequence[Any], name: str) -> list[Any]:
    """As `Fields`, of Protobuf's messages. One that is not set is null where it can tell (`optional`, messages), else
    its default.
    """
    first = next((each for each in found if each is not None), None)
    descriptor = None if first is None else first.DESCRIPTOR.fields_by_name.get(name)
    if descriptor is None:
        return [None] * len(found)
    if descriptor.has_presence:
        return [getattr(each, name) if each is not None and each.HasField(name) else None for each in found]
    return [None if each is None else getattr(each, name) for each in found]


def _structs(
    found: Sequence[Any], kind: pa.StructType, fields: Fields, path: str, given: pa.DataType | None
) -> pa.StructArray:
    columns = [
        objects_as_column(fields(found, each.name), each.type, fields, f"{path}.{each.name}".lstrip("."), below)
        for each, below in zip(kind, _given(given, kind.num_fields), strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=_absent(found))


def _given(given: pa.DataType | None, number: int = 1) -> list[pa.DataType | None]:
    """What is given of each type below."""
    return [None] * number if given is None else [each.type for each in _below(given)]


def _is_list(kind: pa.DataType) -> bool:
    return any(each(kind) for each in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _lists(found: Sequence[Any], kind: pa.DataType, fields: Fields, path: str, given: pa.DataType | None) -> pa.Array:
    if {*map(type, found)} & {str, bytes, dict}:
        raise TypeError("it has items, but is no list")
    absent = _absent(found)
    if fixed := pa.types.is_fixed_size_list(kind):
        # Such a column has items where it has no list, too.
        found = [[None] * kind.list_size if each is None else each for each in found]
        if any(len(each) != kind.list_size for each in found):
            raise ValueError("it has not as many items as the type")
    items = [*chain.from_iterable(each for each in found if each is not None)]
    column = objects_as_column(items, kind.value_type, fields, f"{path}[]", *_given(given))
    if fixed:
        return pa.FixedSizeListArray.from_arrays(column, type=kind, mask=absent)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(_offsets(found).cast(pa.int64()), column, type=kind)
    return pa.ListArray.from_arrays(_offsets(found), column, type=kind)


def _encoded(found: pa.Array, kind: pa.DictionaryType) -> pa.DictionaryArray:
    each = found.dictionary_encode()
    return pa.DictionaryArray.from_arrays(each.indices.cast(kind.index_type), each.dictionary, ordered=kind.ordered)


def _maps(found: Sequence[Any], kind: pa.MapType, fields: Fields, path: str, given: pa.DataType | None) -> pa.MapArray:
    pairs = [*chain.from_iterable(each.items() for each in found if each is not None)]
    keys = objects_as_column([key for key, _ in pairs], kind.key_type, fields, f"{path}[]")
    items = objects_as_column([item for _, item in pairs], kind.item_type, fields, f"{path}[]", *_given(given))
    return pa.MapArray.from_arrays(_offsets(found), keys, items, type=kind)


def _absent(found: Sequence[Any]) -> pa.Array:
    return pa.array([each is None for each in found], pa.bool_())


def _offsets(found: Sequence[Any]) -> pa.Array:
    """Where each one's items begin, and the end of all; null where there is none."""
    ends = list(accumulate((0 if each is None else len(each) for each in found), initial=0))
    begins = [None if each is None else end for each, end in zip(found, ends, strict=False)]
    return pa.array([*begins, ends[-1]], pa.int32())


_YEAR_10000 = 253_402_300_800_000_000
"""In microseconds since 1970. Neither Python nor engines have later times; nanoseconds of today would be one."""


def _as_read(found: Sequence[Any], kind: pa.DataType, given: pa.DataType) -> Sequence[Any]:
    """The objects with the meaning that the reader schema gives them, where the writer's has said nothing."""
    types = {*map(type, found)}
    has_digits = pa.types.is_decimal(kind)
    if str in types and (has_digits or pa.types.is_binary(kind)):
        # A default: JSON has no bytes, and Avro's specification has a character for each (ISO 8859-1).
        found = [each.encode("latin-1") if isinstance(each, str) else each for each in found]
    if has_digits and types & {str, bytes}:
        found = [_decimal(each, kind) if isinstance(each, bytes) else each for each in found]
    if int in types and (pa.types.is_timestamp(kind) or pa.types.is_time(kind)):
        unit = 1000 if given.unit == "ms" and kind.unit == "us" else 1
        found = [each * unit if isinstance(each, int) else each for each in found]
        if any(isinstance(each, int) and abs(each) >= _YEAR_10000 for each in found):
            raise ValueError("a time that no calendar has: its writer counts in another unit")
    return found


def _decimal(unscaled: bytes, kind: pa.Decimal128Type) -> Decimal:
    return Decimal(int.from_bytes(unscaled, signed=True)).scaleb(-kind.scale, Context(prec=kind.precision))


def _plain(found: Sequence[Any], kind: pa.DataType) -> pa.Array:
    types = {*map(type, found)}
    if pa.types.is_integer(kind) and types & {float, Decimal}:
        return pa.array(found).cast(kind)
    if pa.types.is_floating(kind) and float in types and kind != pa.float64():
        return narrowed(pa.array(found, pa.float64()), kind)
    if pa.types.is_date(kind) and datetime in types:
        return _whole_days(pa.array(found, pa.timestamp("us")), kind)
    if pa.types.is_string(kind) and UUID in types:
        return pa.array([str(each) if isinstance(each, UUID) else each for each in found], kind)
    if pa.types.is_temporal(kind) and not pa.types.is_date(kind):
        return _times(found, kind, types)
    return pa.array(found, kind)


def _times(found: Sequence[Any], kind: pa.DataType, types: set[type]) -> pa.Array:
    """Times of the objects' own unit, in that of the type."""
    if int in types:
        # A number has no unit but the column's.
        if types - {int, type(None)}:
            raise TypeError("numbers and times in one column")
        return pa.array(found, kind)
    if any(hasattr(each, "ToNanoseconds") for each in types):
        # Protobuf's. Python's times have microseconds: nanoseconds are left out unless the column has them.
        of = "ToNanoseconds" if kind.unit == "ns" else "ToMicroseconds"
        found = [None if each is None else getattr(each, of)() for each in found]
    return pa.array(found, _finest(kind)).cast(kind)


def _finest(kind: pa.DataType) -> pa.DataType:
    """The type with the unit that objects have."""
    unit = "ns" if kind.unit == "ns" else "us"
    if pa.types.is_timestamp(kind):
        return pa.timestamp(unit, kind.tz)
    return pa.duration(unit) if pa.types.is_duration(kind) else pa.time64(unit)


def _whole_days(found: pa.TimestampArray, kind: pa.DataType) -> pa.Array:
    days = found.cast(kind)
    if not days.cast(found.type).equals(found):
        raise pa.ArrowInvalid("a time of day would be lost")
    return days


def narrowed(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """Floating-point numbers, plain or within structs and lists, as a smaller type: rounded, but none that is finite
    becomes infinite. Raises `pa.ArrowInvalid`.
    """
    small = found.cast(kind)
    if _infinite(small) != _infinite(found):
        raise pa.ArrowInvalid("Failed to convert JSON to float, as it is too large")
    return small


def _infinite(found: pa.Array) -> int:
    """How many infinite numbers are in it."""
    if pa.types.is_struct(found.type):
        return sum(map(_infinite, found.flatten()))
    if pa.types.is_list(found.type):
        return _infinite(found.flatten())
    return pc.sum(pc.is_inf(found)).as_py() or 0 if pa.types.is_floating(found.type) else 0


@dataclass(frozen=True, slots=True)
class FirstMisfit:
    """The first value that does not fit, and what does not."""

    row: int
    error: Exception


_NOT_BUILT = (
    pa.types.is_list_view,
    pa.types.is_large_list_view,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
    lambda kind: isinstance(kind, pa.BaseExtensionType),
)


def not_built(kind: pa.DataType) -> pa.DataType | None:
    """A type in it of which no column is built here: pyarrow alone would build one, and change values."""
    if any(each(kind) for each in _NOT_BUILT):
        return kind
    below = [kind.key_type] if pa.types.is_map(kind) else [kind.value_type] if pa.types.is_dictionary(kind) else []
    below += [each.type for each in _below(kind)]
    return next((found for each in below if (found := not_built(each)) is not None), None)


def requires(kind: pa.DataType) -> bool:
    """Whether something in it may not be null."""
    return any(not each.nullable or requires(each.type) for each in _below(kind))


def _below(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def first_missing(found: pa.StructArray, kind: pa.StructType) -> FirstMisfit | None:
    """The first row with a null where the type has none."""
    rows = pa.array(range(len(found)), pa.int64()) if len(found) else pa.array([], pa.int64())
    missing = min(_missing(found, kind, rows, ""), default=None)
    if missing is None:
        return None
    row, path = missing
    return FirstMisfit(row, NullRefused(f"{path}: it is null or missing, and has to be there"))


def _missing(found: pa.Array, kind: pa.DataType, rows: pa.Array, path: str) -> Iterator[tuple[int, str]]:
    """Rows with a null where there may be none, the first of each field. `rows`: of each element."""
    present = found.is_valid()
    found, rows = found.filter(present), rows.filter(present)
    if pa.types.is_struct(kind):
        below = [(each, found.field(at), rows, f"{path}.{each.name}".lstrip(".")) for at, each in enumerate(kind)]
    elif _is_list(kind):
        below = [(kind.value_field, found.flatten(), rows.take(pc.list_parent_indices(found)), f"{path}[]")]
    elif pa.types.is_map(kind):
        items = pa.ListArray.from_arrays(found.offsets, found.items)
        below = [(kind.item_field, items.flatten(), rows.take(pc.list_parent_indices(items)), f"{path}[]")]
    else:
        return
    for field, column, of, name in below:
        if not field.nullable and column.null_count:
            yield of.filter(column.is_null())[0].as_py(), name
        if requires(field.type):
            yield from _missing(column, field.type, of, name)


def filled(found: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as `kind`, of which it differs by nothing but by what may be null, and of which `first_missing` finds
    nothing. Below a value that is null, fields that may not be null have an empty value, which nobody reads: casts and
    Parquet refuse a null there, whatever is above it.
    """
    if not requires(kind):
        return found
    if pa.types.is_struct(kind):
        columns = [_filled_field(found.field(at), each) for at, each in enumerate(kind)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=found.is_null())
    if pa.types.is_fixed_size_list(kind):
        items = found.values.slice(found.offset * kind.list_size, len(found) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(
            _filled_field(items, kind.value_field), type=kind, mask=found.is_null()
        )
    present = pa.concat_arrays([found.is_valid(), pa.array([True])])
    offsets = pc.if_else(present, found.offsets, pa.scalar(None, found.offsets.type))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, found.keys, _filled_field(found.items, kind.item_field), type=kind)
    lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return lists.from_arrays(offsets, _filled_field(found.values, kind.value_field), type=kind)


def _filled_field(column: pa.Array, field: pa.Field) -> pa.Array:
    if not field.nullable and column.null_count:
        rows = pc.if_else(column.is_valid(), pa.array(range(len(column)), pa.int64()), len(column))
        column = pa.concat_arrays([column, _empty(column.type)]).take(rows)
    return filled(column, field.type)


def _empty(kind: pa.DataType) -> pa.Array:
    """One value of that type that is not null."""
    if pa.types.is_dictionary(kind):
        return _encoded(_empty(kind.value_type), kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(_empty(kind.value_type).take([0] * kind.list_size), type=kind)
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.StructArray.from_arrays([_empty(each.type) for each in kind], fields=list(kind))
    # Arrow's builder has one below a null. For the types above it would have an index of a dictionary that is not set.
    return pa.array([None], pa.struct([pa.field("", kind, nullable=False)])).field(0)
