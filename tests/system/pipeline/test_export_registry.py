"""An export whose values a schema registry's schemas decode, on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kunicorn.pipeline.spark import JobFailed
from tests.contract.decoding.shop_schemas import SCHEMAS, avro, framed
from tests.fakes.schema_registry import registry
from tests.system.pipeline.desk import MASTER, Desk, lake_rows, send_values

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ORDERS = [{"id": number, "by": f"customer {number}"} for number in range(500)]


def exported(lake: Path) -> list[Any]:
    """The values in the lake, by offset."""
    return [json.loads(value) for _, value in lake_rows(lake, "offset", "value")]


def test_tasks_log_in_to_the_registry_and_a_record_of_an_unknown_schema_ends_the_export(
    desk_of: Callable[..., Desk], tmp_path: Path
) -> None:
    schemas, password = tmp_path / "schemas.json", tmp_path / "password"
    schemas.write_text(json.dumps(SCHEMAS))
    password.write_text("hush")
    with registry(schemas, "hush") as url:
        login = {"url": url, "username": "orders", "password_file": str(password)}
        desk = desk_of(1, {"handler": {"value": "avro"}, "schema_registry": login})
        send_values(desk, [framed(1, avro(order)) for order in ORDERS])
        lake = desk.directory / "lake"
        desk.said("export", str(lake), "--master", MASTER)
        assert exported(lake) == ORDERS
        send_values(desk, [framed(9, b"whatever")])
        unknown = rf"{desk.topic}-0@{len(ORDERS)}: its value is no avro .*Schema 9 not found .*--value bytes"
        with pytest.raises(JobFailed, match=unknown):
            desk.said("export", str(lake), "--master", MASTER)
        assert exported(lake) == ORDERS
