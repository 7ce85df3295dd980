"""Typed columns of a DataFrame, by a schema of the values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from kunicorn.handler.columns import RECORD_COLUMNS
from kunicorn.pipeline.source import KunicornDataSource, SourceOptions

PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("ms", tz="UTC"))])
ODD = pa.schema(
    [
        ("order-id", pa.int64()),
        ("@type", pa.string()),
        ("2fa", pa.list_(pa.struct([("a b", pa.bool_())]))),
    ]
)
CONFIG = """
[kafka]
bootstrap_servers = ["localhost:1"]
[group]
id = "orders"
topics = ["orders"]
[handler]
entrypoint = "tests.handlers:unused"
value = "json"
"""


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
