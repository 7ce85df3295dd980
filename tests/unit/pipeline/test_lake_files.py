"""Files that a range writes into a lake, and what they take of a machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message
from pyarrow.dataset import dataset

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA, records_batch
from kunicorn.handler.config import Decoding
from kunicorn.handler.messages import Run
from kunicorn.handler.record import offset_of
from kunicorn.pipeline.lake import files as files_module
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.files import (
    NO_DATE,
    Bounds,
    PartitionedFiles,
    Partitioning,
    file_name,
    hidden_partitioning,
    parquet_writer,
    partitioning,
    values_in,
)
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange

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


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.pipeline.test_lake_files import files_of, record

with files_of(Path(sys.argv[1])) as files:
    for day in range(400):
        files.add([record(day, day % 20, 10_000)])
    disk = os.environ["TMPDIR"]
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    there = [each for each in opened if each.startswith(disk)] + os.listdir(disk)
    print("on the disk" if there else "nowhere", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_nothing_on_the_machines_disk(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    environment = {**os.environ, "TMPDIR": str(disk)}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "lake")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "on the disk\n"), ended.stderr
    assert [*disk.iterdir()] == []


def test_late_records_keep_none_in_memory_that_were_fetched_with_them(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    with files_of(tmp_path) as files:
        for at in range(0, 5_000, 100):
            files.add([record(offset, 19 if offset == at else 20, 1_000) for offset in range(at, at + 100)])
            assert pa.total_allocated_bytes() - before <= SMALL.held_bytes * 3 / 2
        assert [each.records for each in files.close()] == [50, 4_950]


class AsFetched:
    """Gives the columns that were fetched, a part of them at a time, as where a rate limits a task."""

    schema = SCHEMA

    def __init__(self, fetched: pa.RecordBatch) -> None:
        self.fetched = fetched

    def batch(self, run: Run) -> pa.RecordBatch:
        return self.fetched[offset_of(run[0]) : offset_of(run[-1]) + 1]


def test_what_a_rate_cuts_off_a_fetched_batch_does_not_keep_the_rest_of_it_in_memory(tmp_path: Path) -> None:
    before, target = pa.total_allocated_bytes(), Directory(str(tmp_path))
    run = [record(offset, 19 if offset == 0 else 20, 1_000) for offset in range(1_000)]
    columns = AsFetched(records_batch(run))
    with PartitionedFiles(target, lambda part: f"{part}/a.parquet", columns, bounds=SMALL) as files:
        for at in range(0, 1_000, 100):
            files.add(run[at : at + 1])
            files.add(run[at + 1 : at + 100])
        del columns.fetched
        assert pa.total_allocated_bytes() - before <= SMALL.held_bytes * 3 / 2
        assert [each.records for each in files.close()] == [1, 999]


def test_small_records_of_many_days_take_about_the_memory_of_their_bytes(tmp_path: Path) -> None:
    before = pa.total_allocated_bytes()
    with files_of(tmp_path, Bounds()) as files:
        for at in range(0, 5_000, 50):
            files.add([record(at + day, day, 10) for day in range(50)])
        assert pa.total_allocated_bytes() - before <= 4 * files.held_bytes
        written = files.close()
    for each in written:
        (day,) = {offset % 50 for offset in pq.ParquetFile(tmp_path / each.path).read(["offset"])["offset"].to_pylist()}
        assert (each.records, each.path) == (100, f"date={date(1970, 1, 1) + timedelta(day)}/range.parquet")


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


class Forbidding:
    """Columns of which one is null where its type has none: Parquet refuses them."""

    schema = SCHEMA.set(SCHEMA.get_field_index("key"), pa.field("key", pa.binary(), nullable=False))

    def batch(self, run: Run) -> pa.RecordBatch:
        """See `Columns.batch`."""
        return pa.RecordBatch.from_arrays(records_batch(run).columns, schema=self.schema)


def test_what_parquet_refuses_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    def refused() -> None:
        with PartitionedFiles(
            Directory(str(tmp_path)), lambda part: f"{part}/r.parquet", Forbidding(), None, SMALL
        ) as files:
            for offset in range(200):
                files.add([record(offset, offset % 2, 10_000)])

    with pytest.raises(pa.ArrowInvalid, match="'key' is declared non-nullable but contains nulls"):
        refused()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_range_without_records_writes_nothing(tmp_path: Path) -> None:
    with files_of(tmp_path) as files:
        assert files.close() == []


TOPIC_ID = "wSxxVB44ToOXA7+nwvf/WQ"


@pytest.mark.parametrize("topic", ["_orders", ".orders", "orders", "__"])
def test_readers_of_a_directory_find_the_files_of_every_topic(tmp_path: Path, topic: str) -> None:
    target = Directory(str(tmp_path))
    name = file_name(OffsetRange(topic, 0, 0, 3), TOPIC_ID)
    with PartitionedFiles(target, lambda part: f"{part}/{name}", COLUMNS) as files:
        files.add([record(offset, 1, 10) for offset in range(3)])
        (written,) = files.close()
    assert dataset(tmp_path, partitioning="hive").count_rows() == 3
    assert target.names(".parquet") == [written.path], "and those who merge or delete them"


def test_the_longest_topic_has_files_of_its_own(tmp_path: Path) -> None:
    longest = [OffsetRange(f"{first}{'x' * 247}{last}", 2**31 - 1, 0, 3) for first in "a_" for last in "yz"]
    ended = ("", f"-{'f' * 32}")
    names = {file_name(whole, TOPIC_ID, attempt) for whole in longest for attempt in ended}
    assert len(names) == len(longest) * len(ended)
    for name in sorted(names):
        with PartitionedFiles(Directory(str(tmp_path)), partial("{1}/{0}".format, name), COLUMNS) as files:
            files.add([record(1, 1, 10)])
            files.close()
    assert all(len(file_name(each, TOPIC_ID)) + len("-merged") <= 255 for each in longest)
    fits = "x" * 130
    assert file_name(OffsetRange(fits, 0, 0, 3), TOPIC_ID).startswith(f"{fits}-0-"), "a name that fits stays as it is"


class Regions:
    """Makes columns of records whose values are texts: of each a field of values that are columns."""

    schema = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", pa.struct([("region", pa.string())])))

    def batch(self, run: Run) -> pa.RecordBatch:
        rows = records_batch(run)
        texts = rows["value"].cast(pa.string())
        values = pa.StructArray.from_arrays([texts], ["region"])
        at = self.schema.get_field_index("value")
        return pa.RecordBatch.from_arrays([*rows.columns[:at], values, *rows.columns[at + 1 :]], schema=self.schema)


@pytest.mark.parametrize("name", ["topic", "Topic", "TIMESTAMPTYPE"])
def test_a_field_that_an_engine_takes_for_a_column_of_the_lake_is_no_partitioning(name: str) -> None:
    """Spark, which takes no notice of capitals, would have the directory's value in place of the record's own."""
    with pytest.raises(ConfigError, match=f"the lake has a column '{name}' of its own; choose another field"):
        partitioning(f"value.{name}")


BY_REGION = [partitioning("value.region"), hidden_partitioning("value.region", typed=True)]


def by_region(target: Path, cut: Partitioning) -> PartitionedFiles:
    return PartitionedFiles(Directory(str(target)), lambda part: f"{part}/a.parquet", Regions(), cut)


def region(value: str | None) -> Message:
    return Message(
        topic="orders", partition=3, offset=0, value=None if value is None else value.encode(), timestamp=(1, DAY_MS)
    )


@pytest.mark.parametrize("cut", BY_REGION)
def test_a_field_has_so_many_values_in_a_range_however_few_are_in_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: Partitioning
) -> None:
    monkeypatch.setattr(files_module, "_MOST_VALUES", 10)
    with by_region(tmp_path, cut) as files:
        for first in range(0, 10, 2):
            files.add([region(str(first)), region(str(first + 1)), region("0")])
        with pytest.raises(ConfigError, match=r"--partition-by value.region has more than 10 values in one range"):
            files.add([region("10")])


def test_days_may_be_as_many_as_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MOST_VALUES", 10)
    with files_of(tmp_path) as files:
        files.add([record(offset, offset, 1) for offset in range(20)])
        assert len(files.close()) == 20


def test_what_many_days_cost_grows_with_their_number_and_not_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, days, list_directory = [0], 1_000, Path.iterdir

    class Days(dict[str, Any]):
        def items(self) -> Any:
            looked_at[0] += len(self)
            return super().items()

    def listed(self: Path) -> Iterator[Path]:
        found = [*list_directory(self)]
        looked_at[0] += len(found)
        yield from found

    monkeypatch.setattr(Path, "iterdir", listed)
    with files_of(tmp_path) as files:
        monkeypatch.setattr(files, "_days", Days())
        for day in range(days):
            files.add([record(day, day, 1_000)])
            assert files.held_bytes <= SMALL.held_bytes
    assert 0 < looked_at[0] < 30 * days


@pytest.mark.parametrize("cut", BY_REGION)
def test_a_value_that_no_directory_can_be_named_by_is_refused_in_words(tmp_path: Path, cut: Partitioning) -> None:
    with by_region(tmp_path, cut) as files:
        files.add([region("x" * 200)])
        with pytest.raises(
            ConfigError, match=r"value.region has a value whose directory would have a name of 30\d bytes"
        ):
            files.add([region("é" * 50)])


@pytest.mark.parametrize("cut", BY_REGION)
def test_a_text_that_looks_as_null_is_written_is_none(tmp_path: Path, cut: Partitioning) -> None:
    with by_region(tmp_path, cut) as files:
        files.add([region(None), region(NO_DATE)])
        paths = [each.path for each in files.close()]
    assert {values_in(path)["region"] for path in paths} == {None, NO_DATE}
