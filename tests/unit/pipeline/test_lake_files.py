"""Files that a range writes into a lake, and what they take of a machine."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message

from kunicorn.handler.config import Decoding
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.files import Bounds, PartitionedFiles, parquet_writer
from kunicorn.pipeline.storage import Directory

COLUMNS = Form().columns(Decoding())
SMALL = Bounds(held_bytes=200_000, row_group=300, open_files=3)
DAY_MS = 86_400_000


def record(offset: int, day: int, size: int) -> Message:
    return Message(topic="orders", partition=3, offset=offset, value=bytes(size), timestamp=(1, day * DAY_MS))


def files_of(target: Path, bounds: Bounds = SMALL) -> PartitionedFiles:
    return PartitionedFiles(Directory(str(target)), lambda part: f"{part}/range.parquet", COLUMNS, bounds=bounds)


def test_memory_is_bounded_by_bytes_whatever_the_records_size_and_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk := tmp_path / "disk").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    rng = random.Random(7)
    days = [rng.randrange(20) for _ in range(2000)]
    with files_of(tmp_path / "lake") as files:
        for at in range(0, 2000, 50):
            files.add([record(offset, days[offset], 10_000) for offset in range(at, at + 50)])
            assert files.held_bytes <= SMALL.held_bytes
            assert len([*tmp_path.glob("lake/date=*/_unfinished-*")]) <= SMALL.open_files
        written = files.close()
        assert files.held_bytes == 0
    assert [*disk.iterdir()] == [], "nothing stays on the machine's disk"
    assert len(written) == 20
    assert sum(each.records for each in written) == 2000
    for each in written:
        path = tmp_path / "lake" / each.path
        assert path.stat().st_size == each.size
        offsets = pq.ParquetFile(path).read(["offset"])["offset"].to_pylist()
        of_day = [offset for offset in range(2000) if days[offset] == days[offsets[0]]]
        assert offsets == of_day, "each record once, in the range's order"


def test_a_row_group_is_as_large_as_readers_like_it(tmp_path: Path) -> None:
    with files_of(tmp_path, Bounds(row_group=300)) as files:
        for at in range(0, 1000, 100):
            files.add([record(offset, 1, 10) for offset in range(at, at + 100)])
        (written,) = files.close()
    told = pq.ParquetFile(tmp_path / written.path).metadata
    assert [told.row_group(number).num_rows for number in range(told.num_row_groups)] == [300, 300, 300, 100]


def test_what_hardly_repeats_has_no_dictionary(tmp_path: Path) -> None:
    with files_of(tmp_path) as files:
        files.add([record(offset, 1, 10) for offset in range(100)])
        (written,) = files.close()
    group = pq.ParquetFile(tmp_path / written.path).metadata.row_group(0)
    of = {(column := group.column(at)).path_in_schema: column.has_dictionary_page for at in range(group.num_columns)}
    assert (of["topic"], of["partition"], of["offset"], of["value"]) == (True, True, False, False)
    told = {group.column(at).path_in_schema for at in range(group.num_columns) if group.column(at).is_stats_set}
    assert "value" not in told
    assert told >= {"topic", "partition", "offset", "timestamp"}


def test_fields_of_values_that_are_columns_have_dictionaries() -> None:
    region = pa.struct([pa.field("region", pa.string()), pa.field("value", pa.string())])
    schema = pa.schema([pa.field("offset", pa.int64()), pa.field("value", region)])
    written = pa.BufferOutputStream()
    rows = [{"offset": at, "value": {"region": "eu", "value": "same"}} for at in range(100)]
    with parquet_writer(written, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    group = pq.ParquetFile(pa.BufferReader(written.getvalue())).metadata.row_group(0)
    assert [group.column(at).has_dictionary_page for at in range(3)] == [False, True, True]


def test_a_row_group_is_bounded_by_bytes_however_many_large_records_come_at_once(tmp_path: Path) -> None:
    with files_of(tmp_path) as files:
        files.add([record(offset, 1, 10_000) for offset in range(250)])
        (written,) = files.close()
    told = pq.ParquetFile(tmp_path / written.path).metadata
    rows = [told.row_group(number).num_rows for number in range(told.num_row_groups)]
    assert sum(rows) == 250
    assert max(rows) * 10_000 <= SMALL.held_bytes * 5 / 4


def test_a_range_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with files_of(tmp_path) as files:
            for offset in range(200):
                files.add([record(offset, offset % 20, 10_000)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_range_without_records_writes_nothing(tmp_path: Path) -> None:
    with files_of(tmp_path) as files:
        assert files.close() == []
