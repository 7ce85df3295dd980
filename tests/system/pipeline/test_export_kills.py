"""Exports that are killed: the lake equals the topic byte for byte, each record once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Coordinates
from deltalake import DeltaTable

from kunicorn.handler.columns import records_batch
from tests.system.pipeline.desk import Desk
from tests.system.pipeline.iceberg_catalog import catalogued, iceberg_table
from tests.system.pipeline.killing import START_SECONDS, finish, kill
from tests.system.procfs import running
from tests.system.producing import producer
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RECORDS = 20_000
CLUSTER = "local-cluster[2,1,1024]"
PROGRAMS = {"executor": "CoarseGrainedExecutorBackend", "python": "pyspark.worker"}


@pytest.fixture
def desk(desk_of: Callable[..., Desk]) -> Desk:
    """Records that differ from one another, on two partitions; rounds of a tenth of them."""
    made = desk_of(2, {"pipeline": {"max_offsets_per_trigger": RECORDS // 10}})
    sender = producer(made.kafka.bootstrap)
    for number in range(RECORDS):
        value = None if number % 97 == 0 else os.urandom(100)
        sender.produce(made.topic, value, b"%d" % number, number % 2, headers=[("n", b"%d" % number)])
        sender.poll(0)
    assert sender.flush(60) == 0
    return made


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
@pytest.mark.parametrize("victim", ["driver", "executor", "python"])
def test_an_export_that_loses_a_process_equals_the_topic(desk: Desk, form: str, victim: str) -> None:
    lake = desk.directory / "lake"
    command = ("export", str(lake), "--to", form, *(("--table", catalogued(desk)) if form == "iceberg" else ()))
    process = desk.start(*command, "--master", CLUSTER)
    wait_until(lambda: rounds(lake, desk, process) >= 2, "two rounds", START_SECONDS, every=0.02)
    if victim == "driver":
        kill(process)
        finish(desk, *command, master=CLUSTER)
    else:
        # The latest: one that is at work, not the one that forks them.
        os.kill(running(PROGRAMS[victim], session=process.pid)[-1].pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=START_SECONDS)
        assert process.returncode == 0, out
    names = ["partition", "offset", "key", "value", "timestamp", "timestampType", "headers"]
    assert exported(desk, lake, form).select(names).to_pylist() == written(desk).select(names).to_pylist()


def rounds(lake: Path, desk: Desk, process: Any) -> int:
    """Rounds that the manifest has; the process has to live."""
    assert process.poll() is None, process.stdout.read() if process.stdout else ""
    manifest = Desk.told(lake / "_kunicorn")
    return 0 if manifest is None else int(manifest["rounds"])


def exported(desk: Desk, lake: Path, form: str) -> pa.Table:
    """All that the lake has, by place."""
    if form == "iceberg":
        table = iceberg_table(desk).scan().to_arrow()
    elif form == "delta":
        table = DeltaTable(str(lake)).to_pyarrow_table()
    else:
        files = sorted(lake.glob("date=*/[!_.]*.parquet"))
        table = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])


def written(desk: Desk) -> pa.Table:
    """All that the topic has, by place, as the broker gives it."""
    consumer = Consumer({"bootstrap.servers": desk.kafka.bootstrap, "group.id": "x", "enable.auto.commit": False})
    try:
        consumer.assign([Coordinates(desk.topic, number, 0) for number in range(2)])
        found: list[Any] = []
        while len(found) < RECORDS:
            found += consumer.consume(RECORDS - len(found), 10)
    finally:
        consumer.close()
    table = pa.Table.from_batches([records_batch(found)])
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])
