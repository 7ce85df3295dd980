"""Values that are JSON, decoded to a column of structs: what fits, which row does not, and what schemas there are."""

from __future__ import annotations

import datetime
import enum
import json
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.decode import explained
from kunicorn.handler.decode.arrow_types import struct_named
from kunicorn.handler.decode.json_columns import JsonReader
from tests.compiled import compiled
from tests.markdown import ROOT

UTC = datetime.UTC


class Colour(enum.Enum):
    """Of a line."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    """A dataclass within a model."""

    sku: str
    count: int = 1


class Customer(pydantic.BaseModel):
    """One of pydantic's, with another name in JSON."""

    number: int = pydantic.Field(gt=0, alias="customerNumber")


class Order(msgspec.Struct, rename="camel"):
    """A model of models."""

    order_id: int
    total: float
    placed_at: datetime.datetime
    lines: list[Line]
    customer: Customer | None = None
    day: datetime.date | None = None
    colour: Colour | None = None


class Itself(msgspec.Struct):
    """It has no end."""

    again: list[Itself]


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("json_columns_shop")
    module.__dict__.update(
        Order=Order,
        Itself=Itself,
        Choice=dataclass(type("Choice", (), {"__annotations__": {"either": int | str}})),
        SCHEMA=pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())]),
        DATES=pa.schema([("of", pa.dictionary(pa.int32(), pa.string()))]),
        number=5,
    )
    monkeypatch.setitem(sys.modules, "json_columns_shop", module)


@pytest.fixture(autouse=True, params=["compiled", "pyarrow"])
def who_reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled reader before pyarrow's, and pyarrow's alone."""
    if request.param == "compiled":
        compiled()
    else:
        monkeypatch.setitem(sys.modules, "kunicorn_columns", None)


def named(name: str) -> pa.StructType:
    return struct_named(f"json_columns_shop:{name}")


def read(*values: bytes | None, kind: pa.StructType | None = None) -> tuple[list[Any], Any]:
    reader = JsonReader(kind or named("SCHEMA"))
    found, misfit = reader.read(pa.array(values, pa.binary()))
    return found.to_pylist(), misfit


def test_a_models_fields_are_columns_by_their_names_in_json() -> None:
    line = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("count", pa.int64())])
    customer = pa.struct([pa.field("customerNumber", pa.int64(), nullable=False)])
    assert named("Order") == pa.struct(
        [
            pa.field("orderId", pa.int64(), nullable=False),
            pa.field("total", pa.float64(), nullable=False),
            pa.field("placedAt", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("lines", pa.list_(pa.field("item", line, nullable=False)), nullable=False),
            pa.field("customer", customer),
            pa.field("day", pa.timestamp("s")),
            pa.field("colour", pa.string()),
        ]
    )


def test_values_are_structs_and_null_stays_null() -> None:
    order = b'{"orderId": 7, "total": 2, "placedAt": "2024-01-01T02:00:00+02:00", "lines": [{"sku": "a"}], "more": [1]}'
    (first, second), misfit = read(order, None, kind=named("Order"))
    assert misfit is None
    assert second is None
    assert first["placedAt"] == datetime.datetime(2024, 1, 1, tzinfo=UTC)
    assert (first["orderId"], first["total"], first["lines"]) == (7, 2.0, [{"sku": "a", "count": None}])


GOOD = b'{"id": 1, "note": "x"}'
MISFITS = {
    b"": "Invalid value",
    b"nonsense": "Invalid value",
    b"5": "it is of the kind number, and object is wanted",
    b'{"id": "1"}': "/id",
    b'{"id": 1.5}': "a value in it is no int64",
    b'{"id": 1, "note": "\xff"}': "",
    b'{"id": 1} {"id": 2}': "",
    b'{"id": 1},{"id": 2}': "",
    b'{"id": 1': "",
    b'1}\n{"v": {"id": 1}': "",
    b'{"id": 1},"w":[1]': "",
    b'{"id": 1} ,\n"w":{"id": 2}': "",
    b'{"id": 1}],"w":[1': "",
    b'{"id": 1}],"v":[{"id": 2}': "",
    b'null,"w":{"id": 1}': "",
    b'null ],"w": [ 1': "",
    b'{"id": 1, "more": "\xff"}': "",
    b'{"id": 1, "m\xff": 1}': "",
    b'{"id": 1, "more": {"of": [1,]}}': "",
    b'{"note": "secret"}': "id: it is null or missing",
    b'{"id": null}': "id: it is null or missing",
}


@pytest.mark.parametrize("value", MISFITS)
@pytest.mark.parametrize("at", [0, 1, 4, 7])
def test_the_first_value_that_does_not_fit_is_known_by_its_row(value: bytes, at: int) -> None:
    values = [GOOD] * 8
    values[at] = value
    found, misfit = read(*values, b"later nonsense")
    assert (misfit.row, len(found)) == (at, at)
    assert found == [{"id": 1, "note": "x"}] * at


def test_fields_that_nobody_has_asked_for_may_stand_behind_objects_and_null_may_be_json() -> None:
    value = b'{"a": {"b": [{}, {"c": "}, \\"w\\": "}]} , "id": 1, "d": {}, "note": "x"}'
    found, misfit = read(value, b"null", None, b" " + GOOD + b"\n")
    assert (found, misfit) == ([{"id": 1, "note": "x"}, None, None, {"id": 1, "note": "x"}], None)


PIECES = st.sampled_from([b"{", b"}", b"[", b"]", b",", b'"id":', b'"w":', b'"', b"1", b"null", b"\n", b'{"v":', b"{}"])


@given(st.lists(PIECES, max_size=9).map(b"".join))
def test_a_value_is_read_only_where_it_is_one_json_value(value: bytes) -> None:
    _, misfit = read(value, kind=pa.struct([("id", pa.int64())]))
    if misfit is None:
        json.loads(value)


def test_a_row_that_two_values_could_make_together_is_none() -> None:
    _, misfit = read(GOOD, b'{"id": 1}{"id": 2}', b"")
    assert misfit.row == 1


@given(st.lists(st.one_of(st.none(), st.just(b"bad"), st.builds(lambda n: b'{"id": %d}' % n, st.integers(0, 9)))))
def test_what_is_read_is_what_stands_before_the_first_misfit(values: list[bytes | None]) -> None:
    if not values:
        return
    found, misfit = read(*values, kind=pa.struct([pa.field("id", pa.int64(), nullable=False)]))
    first = values.index(b"bad") if b"bad" in values else None
    assert found == [None if each is None else json.loads(each) for each in values[:first]]
    assert (misfit and misfit.row) == first


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("number", "name a pyarrow.Schema, or a model"),
        ("Nothing", "has no 'Nothing'"),
        ("Itself", "has itself among its fields"),
        ("Choice", "either: a choice between types"),
    ],
)
def test_what_gives_no_columns_is_refused_with_what_would(name: str, why: str) -> None:
    with pytest.raises(HandlerLoadError, match=why):
        named(name)


def test_a_type_that_json_is_not_read_to_is_refused_at_the_start() -> None:
    with pytest.raises(HandlerLoadError, match="dictionary"):
        JsonReader(named("DATES"))


@pytest.mark.parametrize("kind", [pa.float32(), pa.list_(pa.float32()), pa.struct([("y", pa.float32())])])
def test_a_number_that_would_become_infinite_is_a_misfit(kind: pa.DataType) -> None:
    shown = {pa.ListType: "[%s]", pa.StructType: '{"y": %s}'}.get(type(kind), "%s")
    values = [f'{{"x": {shown % number}}}'.encode() for number in ("0.1", "Infinity", "1e39", "1")]
    found, misfit = JsonReader(pa.struct([("x", kind)])).read(pa.array(values))
    assert (len(found), found.type.field("x").type) == (2, kind)
    assert misfit is not None
    assert (misfit.row, explained(misfit.error)) == (2, "a value in it is no float")


def test_the_page_of_what_is_no_json_and_is_taken_says_what_the_reader_does() -> None:
    page = " ".join((ROOT / "docs" / "decoding.md").read_text().split())
    taken = re.search(r"That reader takes (.*?) in a `float` field", page)
    refused = re.search(r"anything behind the object \(`(.*?)`\)", page)
    assert taken
    assert refused
    reader = JsonReader(pa.struct([("a", pa.float64())]))
    for number in re.findall(r"`(.*?)`", taken[1]):
        _, misfit = reader.read(pa.array([f'{{"a": {number}}}'.encode()]))
        assert misfit is None, number
    for value in (refused[1].encode(), b'{"a": 1, "left out": "\xff"}', b'{"a": 1, "a": 1}'):
        _, misfit = reader.read(pa.array([value]))
        assert misfit is not None, value
    assert "bytes that are no utf-8, also in a field that is left out" in page.lower()
