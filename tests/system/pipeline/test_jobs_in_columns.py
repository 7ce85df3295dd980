"""Jobs that read columns, on Spark and a real Kafka: an arrow backfill, the data source, an export, its compaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.pipeline.spark import open_session
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import executor_process
from kunicorn.positions import TopicPartition
from kunicorn.settings import load
from tests.system.pipeline.desk import MASTER, TIME, Desk, send, tiles

pytestmark = pytest.mark.usefixtures("one_context")

ARROW = {"handler": {"entrypoint": "tests.system.pipeline.handlers:obedient_columns", "mode": "arrow"}}


def session(desk: Desk) -> SparkSession:
    desk.configure({"pipeline": {"spark": {"spark.sql.python.filterPushdown.enabled": "true"}}})
    return open_session(load(desk.config, {}), MASTER, desk.topic)


def test_an_arrow_backfill_handles_every_record_with_its_rows_outcomes(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2, ARROW)
    values = {number: [f"{at}" for at in range(900)] for number in range(2)}
    values[1][500] = "skip"
    send(desk.kafka.bootstrap, desk.topic, values)
    told = desk.said("backfill", "--master", MASTER, "--run", "columns", "--json")
    assert json.loads(told.splitlines()[-1])["records"] == 1_799
    rows = desk.outcomes("columns")
    assert tiles(rows, {TopicPartition(desk.topic, number): range(900) for number in range(2)})
    assert [(row["partition"], row["offset"]) for row in rows if row["status"] == "skip"] == [(1, 500)]


def test_without_the_compiled_decoder_a_job_says_so_in_one_sentence_and_reads_as_before(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(1, ARROW)
    send(desk.kafka.bootstrap, desk.topic, {0: ["a", "b"]})
    monkeypatch.setattr(executor_process, "without_columns", lambda _: "records are fetched one by one, as a test says")
    told = desk.said("backfill", "--master", MASTER, "--run", "messages")
    assert told.count("records are fetched one by one, as a test says") == 1
    assert sum(row["records"] for row in desk.outcomes("messages")) == 2


def test_the_source_reads_typed_columns_the_ones_asked_for_and_what_filters_leave(
    desk_of: Callable[..., Desk],
) -> None:
    desk = desk_of(2, {"handler": {"value": "json"}})
    values = {
        number: [json.dumps({"id": at, "region": "eu" if at % 2 else "us", "more": 1}) for at in range(50)]
        for number in range(2)
    }
    send(desk.kafka.bootstrap, desk.topic, values)
    spark = session(desk)
    try:
        source = spark.read.format("kunicorn").option("config", str(desk.config)).option("pushFilters", "true")
        frame = source.option("valueSchema", "tests.system.pipeline.typed:ORDER").load()
        found = frame.where("partition = 1 and offset >= 10 and offset < 20 and value.region = 'eu'")
        rows = found.select("offset", "value.id", "value.at").collect()
        told = sorted((row["offset"], row["id"], row["at"]) for row in rows)
        assert told == [(at, at, None) for at in range(11, 20, 2)]
        assert found.rdd.getNumPartitions() == 1, "the other partition is not read"
        late = datetime.fromtimestamp(TIME / 1000, UTC) + timedelta(seconds=1)
        assert frame.where(frame.timestamp >= late).count() == 0
        assert frame.where(frame.timestamp < late).count() == 100
        pruned = source.schema("offset bigint, partition int").load()
        assert pruned.columns == ["offset", "partition"]
        assert pruned.where("offset in (3, 7)").count() == 4
        with pytest.raises(Exception, match="the schema's column 'offset' is string"):
            source.schema("offset string").load().collect()
    finally:
        spark.stop()


def test_an_export_by_a_field_of_typed_columns_is_compacted_and_goes_on(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1, {"handler": {"value": "json"}})
    lake = desk.directory / "lake"
    columns = ("--columns", "tests.system.pipeline.typed:ORDER", "--partition-by", "value.region")
    command = ("export", str(lake), "--master", MASTER, *columns)
    for begin in (0, 20, 40):
        rows = [json.dumps({"id": at, "region": ["eu", "us/east"][at % 2]}) for at in range(begin, begin + 20)]
        send(desk.kafka.bootstrap, desk.topic, {0: rows})
        desk.said(*command)
    assert sorted(each.name for each in lake.glob("region=*")) == ["region=eu", "region=us%2Feast"]
    told = CliRunner().invoke(app, ["pipeline", "compact", str(lake)])
    assert "6 of 6 files have become 2" in told.stdout
    send(desk.kafka.bootstrap, desk.topic, {0: [json.dumps({"id": 60, "region": "eu"})]})
    desk.said(*command)
    tables = [pq.ParquetFile(lake / path).read() for path in Directory(str(lake)).names(".parquet")]
    ids = [row["value"]["id"] for table in tables for row in table.to_pylist()]
    assert sorted(ids) == [*range(61)]
    assert len(tables) == 3
