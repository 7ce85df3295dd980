"""Typed columns of a DataFrame, by a schema of the values."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kunicorn.handler.columns import RECORD_COLUMNS
from kunicorn.pipeline.lake.columns import NotExportable
from kunicorn.pipeline.source import KunicornDataSource, RangePartition, SourceOptions
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.positions import OffsetRange
from tests.unit.settings.files import LEAST

PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("ms", tz="UTC"))])
ODD = pa.schema(
    [
        ("order-id", pa.int64()),
        ("@type", pa.string()),
        ("2fa", pa.list_(pa.struct([("a b", pa.bool_())]))),
    ]
)
FINE = pa.schema([("at", pa.timestamp("ns", tz="UTC"))])
CONFIG = f'{LEAST}value = "json"\n'


def source(tmp_path: Path, name: str) -> KunicornDataSource:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return KunicornDataSource({"config": str(path), "valueSchema": f"tests.unit.pipeline.test_typed_frames:{name}"})


def test_spark_is_told_fields_whose_names_are_no_plain_identifiers(tmp_path: Path) -> None:
    made = source(tmp_path, "ODD")
    schema = made.schema()
    assert isinstance(schema, StructType), "text would have to be parsed"
    value = StructType(
        [
            StructField("order-id", LongType()),
            StructField("@type", StringType()),
            StructField("2fa", ArrayType(StructType([StructField("a b", BooleanType())]))),
        ]
    )
    assert schema["value"].dataType == value
    assert StructType.fromJson(schema.jsonValue()) == schema
    made.reader(schema)


def test_the_columns_of_a_typed_frame_are_those_of_one_that_is_not_but_for_its_value(tmp_path: Path) -> None:
    made = source(tmp_path, "PLAIN")
    schema = made.schema()
    assert isinstance(schema, StructType)
    value = schema["value"].dataType
    assert isinstance(value, StructType)
    assert value.simpleString() == SourceOptions.of(made.options).value_type == "struct<id:bigint,at:timestamp>"
    columns = RECORD_COLUMNS.replace("value binary", f"value {value.simpleString()}")
    assert [f"{each.name} {each.dataType.simpleString()}" for each in schema] == columns.split(", ")
    assert all(each.nullable for each in schema), "as where the columns are told as text"
    assert all(each.nullable for each in value)


def test_a_time_that_spark_has_no_room_for_ends_the_query_and_its_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = ("2026-01-02T03:04:05.000006Z", "2026-01-02T03:04:05.000006007Z")
    fetched = [
        Message(topic="orders", partition=0, offset=7 + at, value=b'{"at": "%s"}' % time.encode(), timestamp=(1, 5))
        for at, time in enumerate(times)
    ]
    left = [fetched[:1], fetched]
    reads = SimpleNamespace(read=lambda *_, **__: iter([left.pop(0)]))
    monkeypatch.setattr(SettingsFile, "records", lambda *_, **__: reads)
    made = source(tmp_path, "FINE")
    schema = made.schema()
    assert isinstance(schema, StructType)
    task: Any = made.reader(StructType([schema["value"]]))
    whole = RangePartition(OffsetRange("orders", 0, 7, 9))
    (batch,) = task.read(whole)
    assert batch.schema.names == ["value"]
    with pytest.raises(NotExportable, match=r"^orders-0@8: its value does not fit Spark's types, .*would lose data"):
        list(task.read(whole))
