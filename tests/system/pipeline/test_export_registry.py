"""An export whose values a schema registry's schemas decode, on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kunicorn.pipeline.spark import JobFailed
from tests.contract.decoding.shop_schemas import AVRO, SCHEMAS, avro, framed
from tests.fakes.schema_registry import registry
from tests.system.pipeline.desk import MASTER, Desk
from tests.system.producing import producer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ORDERS = [{"id": number, "by": f"customer {number}"} for number in range(500)]


def send(desk: Desk, *values: bytes) -> None:
    sender = producer(desk.kafka.bootstrap)
    for value in values:
        sender.produce(desk.topic, value, partition=0)
    assert sender.flush(60) == 0


def exported(lake: Path) -> list[Any]:
    """The values in the lake, by offset."""
    files = [pq.ParquetFile(file).read(["offset", "value"]) for file in lake.glob("date=*/[!_]*.parquet")]
    return [json.loads(value) for value in pa.concat_tables(files).sort_by("offset")["value"].to_pylist()]


def test_tasks_log_in_to_the_registry_and_a_record_of_an_unknown_schema_ends_the_export(
    desk_of: Callable[..., Desk], tmp_path: Path
) -> None:
    schemas, password = tmp_path / "schemas.json", tmp_path / "password"
    schemas.write_text(json.dumps(SCHEMAS))
    password.write_text("hush")
    with registry(schemas, "hush") as url:
        login = {"url": url, "username": "orders", "password_file": str(password)}
        desk = desk_of(1, {"handler": {"value": "avro"}, "schema_registry": login})
        send(desk, *(framed(1, avro(order)) for order in ORDERS))
        lake = desk.directory / "lake"
        desk.said("export", str(lake), "--master", MASTER)
        assert exported(lake) == ORDERS
        send(desk, framed(9, b"whatever"))
        unknown = rf"{desk.topic}-0@{len(ORDERS)}: its value is no avro .*Schema 9 not found .*--value bytes"
        with pytest.raises(JobFailed, match=unknown):
            desk.said("export", str(lake), "--master", MASTER)
        assert exported(lake) == ORDERS


def test_values_of_several_schemas_become_the_columns_of_one_reader_schema(
    desk_of: Callable[..., Desk], tmp_path: Path
) -> None:
    schemas = tmp_path / "schemas.json"
    wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "region", "type": "string"}]}
    schemas.write_text(json.dumps({**SCHEMAS, "4": {"schema": json.dumps(wider)}}))
    with registry(schemas) as url:
        desk = desk_of(1, {"handler": {"value": "avro"}, "schema_registry": {"url": url}})
        send(
            desk, framed(1, avro({"id": 1, "by": "Ann"})), framed(4, avro({"id": 2, "by": "Bo", "region": "eu"}, wider))
        )
        lake = desk.directory / "lake"
        columns = ("--columns", "tests.system.pipeline.typed:AVRO_ORDER", "--partition-by", "value.region")
        desk.said("export", str(lake), "--master", MASTER, *columns)
    found = {
        each.parent.name: pq.ParquetFile(each).read(["value"]).to_pylist() for each in lake.glob("region=*/*.parquet")
    }
    assert found == {
        "region=nowhere": [{"value": {"id": 1, "customer": "Ann", "region": "nowhere"}}],
        "region=eu": [{"value": {"id": 2, "customer": "Bo", "region": "eu"}}],
    }
