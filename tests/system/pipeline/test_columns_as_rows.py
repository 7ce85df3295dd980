"""What jobs read as columns is what they read as messages, record by record, whatever the log has. Of the codecs each
test has another: `tests/system/columns` reads every one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from kunicorn.clients.range_reader import RangeReader
from kunicorn.handler.arrow import rows_of
from kunicorn.handler.columns import records_batch
from kunicorn.handler.config import Decoding
from kunicorn.handler.messages import columns as as_columns
from kunicorn.pipeline.lake.columns import Form, NotExportable
from kunicorn.pipeline.lake.files import PartitionedFiles
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange
from tests.kafka import KafkaCluster
from tests.system.pipeline.desk import TIME
from tests.system.pipeline.ranges import access, end_of
from tests.system.producing import producer, transaction

BEYOND = (253_402_300_800_000, 1_763_900_000_000_000, 2**62)
"""Milliseconds: the first of the year 10000, microseconds written for milliseconds, and more than microseconds hold."""


def fill(kafka: KafkaCluster, topic: str, codec: str) -> None:
    """Nulls, empty ones, headers of every kind, several days, and times that no calendar has."""
    written: dict[str, str | int] = {"compression.type": codec, "linger.ms": 20}
    sender = producer(kafka.bootstrap, **written)
    named: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("café", b"")]
    for number in range(600):
        sender.produce(
            topic,
            None if number % 7 == 0 else "ä".encode() * (number % 50),
            key=None if number % 5 == 0 else b"" if number % 6 == 0 else b"key %d" % number,
            headers=named[: number % 4],
            timestamp=BEYOND[number % 3] if number % 11 == 0 else TIME - number * 3_600_000,
            partition=0,
        )
    assert sender.flush(60) == 0


def both(kafka: KafkaCluster, topic: str, start: int = 0, stop: int | None = None) -> tuple[pa.Table, pa.Table]:
    """The range as export and the data source have it, by each reader."""
    given = access(kafka, topic)
    whole = OffsetRange(topic, 0, start, end_of(given) if stop is None else stop)
    consumer, columns = given.consumer(), given.columns(timestamp_types=True)
    try:
        messages = [records_batch(each) for each in filter(len, RangeReader(consumer).read(whole))]
        rows = [records_batch(each) for each in filter(len, columns.read(whole))]
    finally:
        consumer.close()
        columns.close()
    return pa.Table.from_batches(messages), pa.Table.from_batches(rows)


def create(kafka: KafkaCluster, topic: str, **config: str) -> None:
    """With any time: brokers refuse times that are ahead, where nobody says otherwise."""
    kafka.create_topic(topic, config={"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1", **config})


def test_columns_are_the_messages_columns(kafka: KafkaCluster, topic: str) -> None:
    create(kafka, topic)
    fill(kafka, topic, "gzip")
    messages, rows = both(kafka, topic)
    assert rows.num_rows == 600
    assert rows.equals(messages)
    messages, rows = both(kafka, topic, 123, 456)
    assert rows["offset"].to_pylist() == [*range(123, 456)]
    assert rows.equals(messages)


def test_times_of_the_broker_are_told_from_the_producers(kafka: KafkaCluster, topic: str) -> None:
    create(kafka, topic, **{"message.timestamp.type": "LogAppendTime"})
    fill(kafka, topic, "none")
    messages, rows = both(kafka, topic)
    assert set(rows["timestampType"].to_pylist()) == {1}
    assert rows.equals(messages)


def test_transactions_leave_the_same_gaps(kafka: KafkaCluster, topic: str) -> None:
    create(kafka, topic)
    transaction(kafka.bootstrap, topic, 50, commit=True)
    transaction(kafka.bootstrap, topic, 30, commit=False)
    fill(kafka, topic, "zstd")
    transaction(kafka.bootstrap, topic, 10, commit=True)
    messages, rows = both(kafka, topic)
    assert rows.num_rows == 660
    assert rows.equals(messages)


def test_a_handler_of_columns_gets_the_same_batches(kafka: KafkaCluster, topic: str) -> None:
    create(kafka, topic)
    fill(kafka, topic, "lz4")
    given = access(kafka, topic)
    whole = OffsetRange(topic, 0, 0, 600)
    consumer, columns = given.consumer(), given.columns()
    try:
        messages = pa.Table.from_batches([rows_of(each) for each in filter(len, RangeReader(consumer).read(whole))])
        found = filter(None, map(as_columns, columns.read(whole)))
        rows = pa.Table.from_batches([each.batch for each in found])
    finally:
        consumer.close()
        columns.close()
    assert rows.unify_dictionaries().equals(messages.unify_dictionaries())


def lake(target: Path, form: Form, runs: Any) -> dict[str, pa.Table]:
    """Files of a range, by their path."""
    with PartitionedFiles(
        Directory(str(target)), lambda part: f"{part}/range.parquet", form.columns(Decoding())
    ) as files:
        for run in filter(len, runs):
            files.add(run)
        return {each.path: pq.ParquetFile(target / each.path).read() for each in files.close()}


@pytest.mark.parametrize("value", ["bytes", "text"])
def test_a_lakes_files_are_the_same(kafka: KafkaCluster, topic: str, tmp_path: Path, value: str) -> None:
    create(kafka, topic)
    fill(kafka, topic, "snappy")
    given, whole, form = access(kafka, topic), OffsetRange(topic, 0, 0, 600), Form(value=value)
    consumer, columns = given.consumer(), given.columns(timestamp_types=True)
    try:
        messages = lake(tmp_path / "messages", form, RangeReader(consumer).read(whole))
        rows = lake(tmp_path / "rows", form, columns.read(whole))
    finally:
        consumer.close()
        columns.close()
    assert len(rows) > 20
    assert rows == messages


def test_a_value_that_is_no_text_is_named(kafka: KafkaCluster, topic: str) -> None:
    create(kafka, topic)
    sender = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in (b"a", b"\xff", b"b"):
        sender.produce(topic, value, partition=0)
    assert sender.flush(60) == 0
    columns = access(kafka, topic).columns(timestamp_types=True)
    try:
        (rows,) = filter(len, columns.read(OffsetRange(topic, 0, 0, 3)))
        with pytest.raises(NotExportable, match=f"{topic}-0@1"):
            Form(value="text").columns(Decoding()).batch(rows)
    finally:
        columns.close()
