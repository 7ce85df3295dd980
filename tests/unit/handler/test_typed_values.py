"""Values that become a column of structs by a schema."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2, timestamp_pb2

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.config import Decoding
from kunicorn.handler.decode import Undecodable
from kunicorn.handler.decode.decoders import OfBytes, Part
from kunicorn.handler.decode.struct_columns import fields_of_mappings, fields_of_messages
from kunicorn.handler.decode.typed import DecodedValues, typed_values
from kunicorn.pipeline.lake.files import parquet_writer

ORDER = pa.schema([("id", pa.int64()), ("region", pa.string())])
WRITTEN = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
READER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "region", "type": ["null", "string"], "default": None},
        {"name": "price", "type": ["null", DECIMAL], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "by", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
TEXT = json.dumps(READER)
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
LONG_DECIMAL = {"type": "record", "name": "L", "fields": [{"name": "a", "type": {**DECIMAL, "precision": 64}}]}
NO_DECIMAL = {"type": "record", "name": "L", "fields": [{"name": "a", "type": {**DECIMAL, "precision": 0}}]}
VIEWS = pa.schema([("seen", pa.map_(pa.string(), pa.list_view(pa.int32())))])
CHOICE = {"type": "record", "name": "C", "fields": [{"name": "a", "type": ["string", "long"]}]}


def records(*values: bytes | None) -> tuple[list[Message], pa.Array]:
    found = [Message(topic="orders", partition=3, offset=at, value=value) for at, value in enumerate(values)]
    return found, pa.array(values, pa.binary())


def avro(raw: bytes) -> Any:
    """As the registry's deserialiser reads it: by the writer's schema, for the reader's."""
    return fastavro.schemaless_reader(io.BytesIO(raw), WRITTEN, READER)


def written(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, WRITTEN, {"id": number})
    return out.getvalue()


def test_json_becomes_columns_and_a_misfit_is_named() -> None:
    values = typed_values(Decoding(value="json"), f"{__name__}:ORDER")
    found = values.read(*records(b'{"id": 1, "region": "eu", "more": 2}', None))
    assert found.to_pylist() == [{"id": 1, "region": "eu"}, None]
    with pytest.raises(Undecodable, match="orders-3@1"):
        values.read(*records(b'{"id": 1}', b'{"id": "x"}', b'{"id": 3}'))


@pytest.mark.parametrize("name", ["READER", "TEXT"])
def test_avro_is_read_by_the_pinned_schema_whatever_it_was_written_with(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked = []

    def registered(decoder: str, part: Part, properties: Any) -> Any:
        asked.append(decoder)
        return OfBytes(part, "Avro", avro)

    monkeypatch.setattr("kunicorn.handler.decode.schema_registry.registered", registered)
    values = typed_values(Decoding(value="avro"), f"{__name__}:{name}")
    assert json.loads(asked[0].removeprefix("avro:")) == READER
    found = values.read(*records(written(7), None))
    assert found[0].as_py()["id"] == 7
    assert (found[0].as_py()["region"], found[0].as_py()["tags"], found[1].as_py()) == (None, [], None)
    assert found[0].as_py()["by"] == []
    assert found.type.field("price").type == pa.decimal128(9, 2)
    assert found.type.field("at").type == pa.timestamp("us", "UTC")
    with pytest.raises(Undecodable, match="orders-3@1"):
        values.read(*records(written(7), b""))


EVENING = 1_767_299_696_789
"""Milliseconds: 2026-01-01T20:34:56.789Z."""
EVENING_US = datetime.datetime(2026, 1, 1, 20, 34, 56, 789000, datetime.UTC)


def logical(of: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": of, "logicalType": name, **more}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL, TIME = logical("long", "local-timestamp-millis"), logical("int", "time-millis")
FIXED = {"type": "fixed", "name": "F", "size": 2}
BY_NAME = {"type": "map", "values": MILLIS}
WITHIN = {"type": "record", "name": "W", "fields": [{"name": "at", "type": {"type": "array", "items": MILLIS}}]}


def read_by(monkeypatch: pytest.MonkeyPatch, reader: Any, *writers: tuple[Any, Any], default: Any = None) -> list[Any]:
    """The field x, of that type in the reader schema, of values that were written with these types of it; None: it was
    not written."""

    def record(of: Any, **more: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [] if of is None else [{"name": "x", "type": of, **more}]}

    wanted = record(reader) if default is None else record(reader, default=default)
    values, schemas = [], {}
    for at, (writer, value) in enumerate(writers):
        out = io.BytesIO(b"%d" % at)
        out.seek(1)
        fastavro.schemaless_writer(out, record(writer), {"x": value})
        values.append(out.getvalue())
        schemas[b"%d" % at] = record(writer)

    def decode(raw: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(raw[1:]), schemas[raw[:1]], wanted)

    monkeypatch.setattr(
        "kunicorn.handler.decode.schema_registry.registered", lambda *_: OfBytes(Part.VALUE, "Avro", decode)
    )
    monkeypatch.setattr(f"{__name__}.WANTED", wanted, raising=False)
    read: Any = typed_values(Decoding(value="avro"), f"{__name__}:WANTED").read(*records(*values))
    return [row["x"] for row in read.to_pylist()]


@pytest.mark.parametrize(
    ("reader", "writer", "number", "meant"),
    [
        (MILLIS, "long", EVENING, EVENING_US),
        (MILLIS, "int", 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)),
        (MICROS, "long", EVENING * 1000, EVENING_US),
        (LOCAL, "long", EVENING, EVENING_US.replace(tzinfo=None)),
        (TIME, "int", 3_600_001, datetime.time(1, 0, 0, 1000)),
        (logical("long", "time-micros"), "long", 3_600_000_001, datetime.time(1, 0, 0, 1)),
        (logical("int", "date"), "int", 1, datetime.date(1970, 1, 2)),
        (MILLIS, MICROS, EVENING * 1000 + 1, EVENING_US.replace(microsecond=789001)),
        (MILLIS, MILLIS, EVENING, EVENING_US),
        ({"type": "array", "items": MILLIS}, {"type": "array", "items": "long"}, [EVENING], [EVENING_US]),
        (BY_NAME, {"type": "map", "values": "long"}, {"a": EVENING}, [("a", EVENING_US)]),
        (DECIMAL, "bytes", b"\x04\xd2", decimal.Decimal("12.34")),
    ],
    ids=str,
)
def test_what_only_the_reader_schema_has_a_logical_type_for_has_its_unit(
    monkeypatch: pytest.MonkeyPatch, reader: Any, writer: Any, number: Any, meant: Any
) -> None:
    assert read_by(monkeypatch, reader, (writer, number)) == [meant]


@pytest.mark.parametrize(
    ("reader", "default", "meant"),
    [
        ("bytes", "\u00ff\u0000a", b"\xff\x00a"),
        (FIXED, "\u00ff\u0080", b"\xff\x80"),
        ({"type": "array", "items": "bytes"}, ["\u00e9"], [b"\xe9"]),
        (DECIMAL, "\u0004\u00d2", decimal.Decimal("12.34")),
        ({**DECIMAL, "precision": 38, "scale": 0}, "\u0001" + 14 * "\u0000", decimal.Decimal(256**14)),
        (MILLIS, EVENING, EVENING_US),
        (TIME, 1, datetime.time(0, 0, 0, 1000)),
        (WITHIN, {"at": [EVENING]}, {"at": [EVENING_US]}),
        ("string", "\u00ff", "\u00ff"),
    ],
    ids=str,
)
def test_a_default_has_the_meaning_that_avro_gives_it(
    monkeypatch: pytest.MonkeyPatch, reader: Any, default: Any, meant: Any
) -> None:
    assert read_by(monkeypatch, reader, (None, None), default=default) == [meant]


def test_a_default_stands_beside_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written_with = [(MILLIS, EVENING), (None, None), ("long", 1000)]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert read_by(monkeypatch, MILLIS, *written_with, default=0) == [
        EVENING_US,
        epoch,
        epoch + datetime.timedelta(seconds=1),
    ]
    assert read_by(monkeypatch, "bytes", ("bytes", b"\xff"), (None, None), default="\u00e9") == [b"\xff", b"\xe9"]


@pytest.mark.parametrize("reader", [MILLIS, MICROS], ids=str)
def test_nanoseconds_which_the_decoder_does_not_know_are_refused(monkeypatch: pytest.MonkeyPatch, reader: Any) -> None:
    with pytest.raises(Undecodable, match="orders-3@0: its value is no Avro: x: it does not fit the type timestamp"):
        read_by(monkeypatch, reader, (logical("long", "timestamp-nanos"), EVENING * 10**6))


def test_protobuf_gives_the_fields_that_are_wanted_and_null_for_what_is_not_set() -> None:
    kind = pa.struct([("string_value", pa.string()), ("number_value", pa.float64()), ("missing", pa.int64())])
    decoder = OfBytes(Part.VALUE, "Protobuf", struct_pb2.Value.FromString)
    values = DecodedValues(kind, decoder, fields_of_messages)
    found = values.read(*records(struct_pb2.Value(string_value="a").SerializeToString(), None))
    assert found.to_pylist() == [{"string_value": "a", "number_value": None, "missing": None}, None]


NOON = datetime.datetime(2026, 1, 1, 12, 0, 0, 1500, datetime.UTC)
UTC_MS, UTC_US = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")


def given(kind: pa.DataType, *objects: Any) -> Any:
    """The field x of records in which a decoder has found these objects, as a column of that type."""
    found = [b"%d" % at for at in range(len(objects))]
    decoder = OfBytes(Part.VALUE, "Avro", lambda raw: {"x": objects[int(raw)]})
    values = DecodedValues(pa.struct([("x", kind)]), decoder, fields_of_mappings)
    return values.read(*records(*found)).field("x")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int64(), 7.0, 1.99),
        (pa.int64(), decimal.Decimal("7.00"), decimal.Decimal("1.5")),
        (pa.int64(), 7, float("nan")),
        (pa.int32(), 7.0, 2.0**40),
        (pa.float32(), 0.5, 1e300),
        (pa.date32(), datetime.datetime(2026, 1, 1), NOON),
        (UTC_MS, NOON.replace(microsecond=1000), NOON),
        (pa.timestamp("s"), NOON.replace(microsecond=0), NOON),
        (pa.time32("ms"), datetime.time(1, 2, 3, 4000), datetime.time(1, 2, 3, 4)),
        (UTC_US, 5, "2026-01-01"),
        (pa.list_(pa.int64()), [7.0], [7.0, 1.99]),
        (pa.list_(pa.string()), ["ab"], "ab"),
        (pa.large_list(pa.int32()), [7.0], [7.0, 1.99]),
        (pa.large_list(pa.float32()), [0.5], [1e300]),
        (pa.large_list(pa.struct([("y", pa.int64())])), [{"y": 7.0}], [{"y": 1.99}]),
        (pa.list_(pa.date32(), 1), [datetime.date(2026, 1, 1)], [NOON]),
        (pa.list_(UTC_MS, 1), [NOON.replace(microsecond=1000)], [NOON]),
        (pa.list_(pa.int64(), 2), [7, 8], [7]),
        (pa.dictionary(pa.int8(), pa.int32()), 7.0, 1.99),
        (pa.struct([("y", pa.int64())]), {"y": 7.0}, {"y": 1.99}),
        (pa.map_(pa.string(), pa.float32()), {"y": 7.0}, {"y": 1e300}),
    ],
)
def test_a_value_that_its_column_would_change_is_refused_and_its_field_is_named(
    kind: pa.DataType, good: Any, bad: Any
) -> None:
    assert given(kind, good, None).null_count == 1
    with pytest.raises(Undecodable, match=r"orders-3@1: its value is no Avro: x.*: it does not fit the type"):
        given(kind, good, bad)


def test_what_fits_keeps_its_value() -> None:
    assert given(pa.int64(), 7.0, 2**62, None).to_pylist() == [7, 2**62, None], "whatever stands beside it"
    assert given(pa.float32(), float("inf"), 0.5).to_pylist() == [float("inf"), 0.5]
    assert given(pa.date32(), datetime.date(2026, 1, 1), None).to_pylist() == [datetime.date(2026, 1, 1), None]
    assert given(UTC_US, NOON, 5).to_pylist() == [NOON, datetime.datetime.fromtimestamp(5e-6, datetime.UTC)]
    assert given(pa.string(), uuid.UUID(int=1), None).to_pylist() == [str(uuid.UUID(int=1)), None]
    nested = pa.map_(pa.string(), pa.list_(pa.struct([("y", pa.int64())])))
    objects: list[Any] = [{"a": [{"y": 1}, None], "b": []}, None, {}, {"c": None}]
    assert given(nested, *objects).to_pylist() == [None if each is None else [*each.items()] for each in objects]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.large_list(pa.int64()), [[1, None], None, []]),
        (pa.list_(pa.int64(), 2), [[1, None], None, [3, 4]]),
        (pa.list_(pa.large_list(pa.string()), 1), [[["a", "b"]], None, [None]]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
        (pa.dictionary(pa.int16(), pa.int64()), [7, None, 7]),
    ],
)
def test_lists_of_every_kind_and_dictionaries_keep_their_values(kind: pa.DataType, values: list[Any]) -> None:
    assert given(kind, *values).type == kind
    assert given(kind, *values).to_pylist() == values


@pytest.mark.parametrize(
    "inner",
    [
        lambda kind: kind,
        pa.list_,
        pa.large_list,
        lambda kind: pa.list_(kind, 1),
        lambda kind: pa.map_(pa.string(), kind),
    ],
)
def test_a_null_where_the_schema_has_none_is_refused_and_its_record_is_named(
    inner: Callable[[pa.DataType], pa.DataType],
) -> None:
    kind = inner(pa.struct([pa.field("y", pa.int64(), nullable=False)]))
    several: dict[Any, Any] = {pa.StructType: lambda each: each, pa.MapType: lambda each: {"k": each}}
    of = several.get(type(kind), lambda each: [each])
    assert given(kind, of({"y": 1}), None).null_count == 1
    with pytest.raises(Undecodable, match=r"orders-3@1: .*y: it is null or missing, and has to be there"):
        given(kind, of({"y": 1}), of({}), of({"y": None}))


FIELD = pa.field("y", pa.int64(), nullable=False)
KEEPS = pa.struct([FIELD, pa.field("z", pa.dictionary(pa.int8(), pa.string()), nullable=False)])
"""A field of this type may be null, and nothing within it."""
STRICT = pa.schema(
    [
        FIELD,
        pa.field("text", pa.string(), nullable=False),
        pa.field("price", pa.decimal128(9, 2), nullable=False),
        pa.field("at", UTC_US, nullable=False),
        pa.field("deep", pa.struct([pa.field("deeper", KEEPS, nullable=False)]), nullable=False),
        pa.field("may", KEEPS),
        pa.field("list", pa.list_(pa.field("item", KEEPS)), nullable=False),
        pa.field("large", pa.large_list(pa.field("item", KEEPS, nullable=False))),
        pa.field("map", pa.map_(pa.string(), pa.field("value", KEEPS)), nullable=False),
    ]
)
AS_JSON = pa.schema([STRICT.field(name) for name in ("y", "text", "at")])
AS_JSON = AS_JSON.append(pa.field("in", pa.list_(pa.field("item", pa.struct([FIELD]), nullable=False)), nullable=False))
AS_JSON = AS_JSON.append(pa.field("may", pa.struct([FIELD])))


def strict(inner: Any) -> dict[str, Any]:
    """An object as STRICT has them. `inner`: where null may stand, too."""
    some = {"y": 1, "z": "a"}
    return {
        "y": 1, "text": "a", "price": decimal.Decimal("1.10"), "at": NOON, "deep": {"deeper": some}, "may": inner,
        "list": [some, inner], "large": None if inner is None else [some], "map": {"k": inner},
    }  # fmt: skip


def test_null_stands_above_fields_that_may_not_be_null_and_parquet_takes_it(tmp_path: Path) -> None:
    some = {"y": 2, "z": "b"}
    objects = [None, strict(some), None, strict(None)]
    kind = pa.struct([("x", pa.struct(list(STRICT)))])
    decoder = OfBytes(Part.VALUE, "Avro", lambda raw: {"x": objects[int(raw)]})
    values = DecodedValues(kind, decoder, fields_of_mappings)
    found = values.read(*records(b"0", b"1", None, b"2", b"3"))
    wanted = [each and {**each, "map": [*each["map"].items()]} for each in objects]
    found.validate(full=True)
    assert found.to_pylist() == [{"x": wanted[0]}, {"x": wanted[1]}, None, {"x": None}, {"x": wanted[3]}]
    assert kept(found, kind, tmp_path) == found.to_pylist()
    # Such as a row group begins with, which is cut of a batch.
    assert kept(found[1:4], kind, tmp_path) == found[1:4].to_pylist()


def test_null_stands_above_fields_that_may_not_be_null_in_lists_of_a_length_too() -> None:
    kind = pa.struct([pa.field("pair", pa.list_(pa.field("item", KEEPS, nullable=False), 2), nullable=False)])
    some = {"pair": [{"y": 1, "z": "a"}, {"y": 2, "z": "b"}]}
    found = given(kind, some, None, some)
    assert found.to_pylist() == [some, None, some]
    assert found.cast(kind).field("pair").null_count == 0


def test_null_stands_above_fields_that_may_not_be_null_in_json_too(tmp_path: Path) -> None:
    values = typed_values(Decoding(value="json"), f"{__name__}:AS_JSON")
    text = b'{"y": 1, "text": "a", "at": "2026-01-01T00:00:00Z", "in": [{"y": 2}], "may": %s}'
    for given in ([None, text % b'{"y": 3}', None, text % b"null"], [None, None], [text % b"null"]):
        found = values.read(*records(*given))
        assert found.is_valid().to_pylist() == [each is not None for each in given]
        assert kept(found, values.kind, tmp_path) == found.to_pylist()


def kept(found: pa.StructArray, kind: pa.DataType, directory: Path) -> list[Any]:
    """The column as a lake keeps it: written, and read and written again as by a compaction."""
    schema = pa.schema([("value", kind)])
    rows = pa.Table.from_batches([pa.RecordBatch.from_arrays([found], schema=schema)])
    for _ in range(2):
        with parquet_writer(directory / "kept.parquet", schema) as writer:
            writer.write_table(rows.take(list(range(rows.num_rows))[::-1]))
        rows = pq.ParquetFile(directory / "kept.parquet").read()
    return list(rows["value"].to_pylist())


def order_message() -> Any:
    """Class of a Protobuf message."""
    uses = [timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name]
    file = descriptor_pb2.FileDescriptorProto(name="typed.proto", package="typed", syntax="proto3", dependency=uses)
    told = file.message_type.add(name="Order")
    told.field.add(name="at", number=1, type=11, type_name=".google.protobuf.Timestamp", label=1)
    told.field.add(name="took", number=2, type=11, type_name=".google.protobuf.Duration", label=1)
    told.field.add(name="price", number=3, type=1, label=1)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("typed.Order"))


ORDER_MESSAGE = order_message()


def of_protobuf(kind: pa.DataType, name: str, *messages: Any) -> Any:
    decoder = OfBytes(Part.VALUE, "Protobuf", ORDER_MESSAGE.FromString)
    values = DecodedValues(pa.struct([(name, kind)]), decoder, fields_of_messages)
    return values.read(*records(*(each.SerializeToString() for each in messages))).field(name)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_of_protobuf_is_the_same_time_in_a_column_of_any_unit(unit: str) -> None:
    order = ORDER_MESSAGE()
    order.at.FromDatetime(datetime.datetime(2026, 1, 1))
    order.took.FromSeconds(90)
    at = of_protobuf(pa.timestamp(unit, "UTC"), "at", order, ORDER_MESSAGE())
    assert at.cast(UTC_US).to_pylist() == [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), None]
    took = of_protobuf(pa.duration(unit), "took", order)
    assert took.cast(pa.duration("us")).to_pylist() == [datetime.timedelta(seconds=90)]


def test_a_time_of_protobuf_has_nanoseconds_where_its_column_has_them_and_its_microseconds_are_not_cut() -> None:
    order = ORDER_MESSAGE(price=1.99)
    order.at.seconds, order.at.nanos = 1, 2_003_004
    ns, us = (of_protobuf(pa.timestamp(unit), "at", order).cast(pa.int64())[0].as_py() for unit in ("ns", "us"))
    assert (ns, us) == (1_002_003_004, 1_002_003)
    with pytest.raises(Undecodable, match=r"orders-3@0: its value is no Protobuf: at: it does not fit"):
        of_protobuf(pa.timestamp("ms"), "at", order)
    with pytest.raises(Undecodable, match=r"price: it does not fit the type int64"):
        of_protobuf(pa.int64(), "price", order)


def round_trip(kind: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> pa.StructArray:
    """A record with this field x, written and read by a reader schema of Avro."""
    schema = {"type": "record", "name": "R", "namespace": "com.x", "fields": [{"name": "x", "type": kind}]}
    monkeypatch.setattr(f"{__name__}.SCHEMA", schema)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"x": value})

    def registered(decoder: str, part: Part, properties: Any) -> Any:
        return OfBytes(part, "Avro", lambda raw: fastavro.schemaless_reader(io.BytesIO(raw), schema, schema))

    monkeypatch.setattr("kunicorn.handler.decode.schema_registry.registered", registered)
    return typed_values(Decoding(value="avro"), f"{__name__}:SCHEMA").read(*records(out.getvalue()))


SCHEMA: Any = None
MONEY = {"type": "record", "name": "Money", "fields": [{"name": "v", "type": "long"}]}
A, B = {"name": "a", "type": MONEY}, {"name": "b", "type": "com.x.Money"}
PAIR = {"type": "record", "name": "Pair", "fields": [A, B]}
OTHER = {**MONEY, "namespace": "other", "fields": [{"name": "w", "type": "string"}]}
C, D, E = {"name": "b", "type": OTHER}, {"name": "c", "type": "Money"}, {"name": "d", "type": "other.Money"}
BOTH = {**PAIR, "fields": [A, C, D, E]}
NAIVE = datetime.datetime(2026, 1, 1, 12, 0, 0, 1000)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), str(uuid.UUID(int=7))),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, NAIVE, NAIVE),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, NAIVE, NAIVE),
        ({"type": "string", "logicalType": "timestamp-millis"}, "a", "a"),
        (PAIR, {"a": {"v": 1}, "b": {"v": 2}}, {"a": {"v": 1}, "b": {"v": 2}}),
        (BOTH, *[{"a": {"v": 1}, "b": {"w": "e"}, "c": {"v": 2}, "d": {"w": "f"}}] * 2),
    ],
)
def test_usual_reader_schemas_of_avro_give_columns(
    monkeypatch: pytest.MonkeyPatch, kind: Any, value: Any, found: Any
) -> None:
    assert round_trip(kind, value, monkeypatch).field("x").to_pylist() == [found]


@pytest.mark.parametrize(
    ("value", "schema", "why"),
    [
        ("text", "ORDER", "says nothing of which columns are made"),
        ("avro", "TREE", "has itself among its fields"),
        ("avro", "CHOICE", "a union of several types has no column"),
        ("avro", "LONG_DECIMAL", "a decimal of 64 digits has no column, as engines have 38"),
        ("avro", "NO_DECIMAL", "gives no columns"),
        ("protobuf:shop:Order", "VIEWS", r"has list_view<item: int32>, and no column of that type is made"),
        ("json", "nowhere", "nowhere"),
    ],
)
def test_what_gives_no_columns_is_refused_in_words(value: str, schema: str, why: str) -> None:
    with pytest.raises(HandlerLoadError, match=why):
        typed_values(Decoding(value=value), f"{__name__}:{schema}")
