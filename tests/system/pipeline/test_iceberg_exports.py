"""Exports into an Iceberg table, on a real Kafka and a real Spark; read by pyiceberg, and by Spark's own reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyiceberg.expressions import EqualTo

from kunicorn.pipeline.lake.iceberg import ROUND, IcebergLake
from tests.system.pipeline.desk import MASTER, TIME, Desk
from tests.system.pipeline.iceberg_catalog import NAME, catalogued, iceberg_table
from tests.system.pipeline.versions import UNPACKED

pytestmark = pytest.mark.usefixtures("one_context")

SPARK = "4.1.4"
JARS = ("iceberg-spark-runtime-4.1_2.13-1.12.0.jar", "sqlite-jdbc-3.50.3.0.jar")
REGIONS = ["eu", "us", "", "a/b c", None]


class Killed(Exception):
    """The driver's end, where a test wants it."""


def order(number: int) -> bytes | None:
    """The record of this number: every seventh is a tombstone."""
    if number % 7 == 6:
        return None
    return json.dumps({"id": number, "region": REGIONS[number % len(REGIONS)]}).encode()


def send(desk: Desk, numbers: range) -> None:
    sender = Producer({"bootstrap.servers": desk.kafka.bootstrap})
    for number in numbers:
        sender.produce(desk.topic, order(number), b"k%d" % number, number % 2, timestamp=TIME, headers=[("n", b"1")])
    assert sender.flush(60) == 0


def wanted(numbers: range) -> list[dict[str, Any] | None]:
    return [None if (told := order(number)) is None else {**json.loads(told), "at": None} for number in numbers]


def found(desk: Desk, **scan: Any) -> list[dict[str, Any] | None]:
    """Values by the numbers that they were sent with."""
    table = iceberg_table(desk).scan(**scan).to_arrow()
    rows = sorted(table.to_pylist(), key=lambda row: int(row["key"][1:]))
    assert len({row["key"] for row in rows}) == len(rows), "each once"
    return [row["value"] for row in rows]


@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_typed_values_by_a_field_and_a_driver_that_ends_beside_a_commit(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    desk = desk_of(2, {"handler": {"value": "json"}, "pipeline": {"max_offsets_per_trigger": 40}})
    command = (
        "export", str(desk.directory / "lake"), "--to", "iceberg", "--table", catalogued(desk), "--master", MASTER,
        "--columns", "tests.system.pipeline.typed:ORDER", "--partition-by", "value.region",
    )  # fmt: skip
    send(desk, range(100))
    desk.said(*command)
    assert found(desk) == wanted(range(100)), "after several rounds"
    assert found(desk, row_filter=EqualTo(term="value.region", value="a/b c")) == [
        each for each in wanted(range(100)) if each is not None and each["region"] == "a/b c"
    ]
    send(desk, range(100, 130))
    real = IcebergLake.commit

    def killed(self: IcebergLake, *arguments: Any) -> None:
        """With the files there, and before the manifest says so."""
        if moment == "after":
            real(self, *arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(IcebergLake, "commit", killed)
        with pytest.raises(Killed):
            desk.said(*command)
    assert found(desk) == wanted(range(130 if moment == "after" else 100))
    desk.said(*command)
    assert found(desk) == wanted(range(130))
    assert "has everything already" in desk.said(*command)
    rounds = [int(each.summary[ROUND] or 0) for each in iceberg_table(desk).snapshots() if each.summary is not None]
    assert rounds == [*range(1, len(rounds) + 1)], "each round has one snapshot"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", ["day", "hour", "value.region"])
def test_sparks_own_reader_finds_every_record_by_the_same_catalog(desk_of: Callable[..., Desk], by: str) -> None:
    jars = [UNPACKED / "jars" / each for each in JARS]
    if missing := [each for each in [*jars, UNPACKED / SPARK / "pyspark"] if not each.exists()]:
        pytest.skip(f"{missing[0]} is not there: mvn dependency:copy, and pip install --target, as its name says")
    desk = desk_of(2, {"handler": {"value": "json"}})
    send(desk, range(100))
    desk.said(
        "export", str(desk.directory / "lake"), "--to", "iceberg", "--table", catalogued(desk), "--master", MASTER,
        "--columns", "tests.system.pipeline.typed:ORDER", "--partition-by", by,
    )  # fmt: skip
    rows = spark_rows(desk, jars)
    assert [row["value"] for row in rows] == wanted(range(100))
    ours = iceberg_table(desk).scan().to_arrow()
    assert [row["offset"] for row in rows] == _by_key(ours, "offset")
    assert [row["micros"] for row in rows] == [TIME * 1000] * 100
    assert {row["headers"] for row in rows} == {"n=1"}


def _by_key(table: pa.Table, column: str) -> list[Any]:
    return [row[column] for row in sorted(table.to_pylist(), key=lambda row: int(row["key"][1:]))]


def spark_rows(desk: Desk, jars: list[Path]) -> list[dict[str, Any]]:
    """The table as Spark reads it."""
    path = os.pathsep.join([str(UNPACKED / SPARK), str(Path(__file__).parents[3])])
    command = [
        sys.executable, "-m", "tests.system.pipeline.read_iceberg", str(desk.directory), NAME, *map(str, jars)
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    told: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return told
