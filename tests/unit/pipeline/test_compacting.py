"""Small files of a lake that are merged: every record once in the end, wherever it is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.handler.config import Decoding
from kunicorn.pipeline.export import _clear, _Known
from kunicorn.pipeline.lake import compact as job
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.compact import (
    Piece,
    compact,
    compact_delta,
    covered,
    merges,
    pieces_of,
    remove,
    sources_in,
)
from kunicorn.pipeline.lake.files import Bounds, PartitionedFiles, file_name
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory, Overtaken
from kunicorn.positions import OffsetRange, TopicPartition

DAY_MS = 86_400_000
COLUMNS = Form().columns(Decoding())
RECORDS, STEP = 60, 5
TP = TopicPartition("orders", 0)


def lake(place: Path, records: int = RECORDS) -> Directory:
    """A lake of an export for each five records, over two days, of which all but the last one counts."""
    target = Directory(str(place))
    for start in range(0, records, STEP):
        export(target, start, start + STEP)
    whole = OffsetRange(*TP, 0, records)
    state = RunState((whole,), {TP: records - STEP}, underway=(whole._replace(start=records - STEP),))
    _Known(target, Form(), SCHEMA).save(state)
    return target


def export(target: Directory, start: int, stop: int) -> None:
    name = file_name(OffsetRange(*TP, start, stop), None)
    with PartitionedFiles(target, lambda part: f"{part}/{name}", COLUMNS) as files:
        times = [(at % 2 + 1) * DAY_MS for at in range(start, stop)]
        files.add(
            [
                Message(topic="orders", partition=0, offset=at, value=b"v", timestamp=(1, ms))
                for at, ms in zip(range(start, stop), times, strict=True)
            ]
        )
        files.close()


def held(target: Directory) -> list[int]:
    """Every offset that a reader of the directory finds."""
    found = [pq.ParquetFile(f"{target.url}/{path}").read(["offset"]) for path in target.names(".parquet")]
    return sorted(offset for table in found for offset in table["offset"].to_pylist())


def test_neighbours_become_one_file_and_what_is_underway_is_left_alone(tmp_path: Path) -> None:
    target = lake(tmp_path)
    told = compact(target, 10**9, dry=True)
    assert (told.files, told.merged, told.made) == (22, 22, 2)
    assert len(target.names(".parquet")) == 24, "a dry run changes nothing"
    compact(target, 10**9, dry=False)
    assert len(target.names(".parquet")) == 4
    assert held(target) == [*range(RECORDS)]
    for path in target.names("-merged.parquet"):
        offsets = pq.ParquetFile(f"{target.url}/{path}").read(["offset"])["offset"].to_pylist()
        assert offsets == sorted(offsets), "in the log's order"
    assert compact(target, 10**9, dry=False).merged == 0


class Killed(Exception):
    """In place of a process's end."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake to copy."""
    place = tmp_path_factory.mktemp("lake")
    lake(place)
    return place


STEPS = [0, 9, *range(11, 23), 29]
"""Eleven files are read and then deleted for the first merge, and as many for the second. Reads leave the directory as
it is: of eleven there are two, for both commands that may come next."""


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_every_record_is_there_once_after_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: Path, step: int
) -> None:
    target = Directory(str(shutil.copytree(original, tmp_path / "lake")))
    left = step

    def killing(called: Any) -> Any:
        def call(self: Directory, *given: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return called(self, *given)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "delete", killing(Directory.delete))
        patched.setattr(Directory, "batches", killing(Directory.batches))
        with pytest.raises(Killed):
            compact(target, 10**9, dry=False)
    assert set(held(target)) == {*range(RECORDS)}, "nothing is lost"
    if step % 2:
        compact(target, 10**9, dry=False)
    else:  # As an export does that goes on.
        pieces = pieces_of(target.sizes(".parquet"))
        remove(target, covered(pieces, sources_in(target, pieces)))
    assert held(target) == [*range(RECORDS)]


def test_a_task_that_ends_too_late_doubles_nothing_for_longer_than_to_the_next_command(tmp_path: Path) -> None:
    target = lake(tmp_path)
    compact(target, 10**9, dry=False)
    export(target, 10, 15)
    assert len(held(target)) == RECORDS + 5
    assert compact(target, 10**9, dry=False).covered == 2
    assert held(target) == [*range(RECORDS)]


def test_a_file_that_a_late_task_writes_of_a_range_that_was_given_up_is_merged_into_none(tmp_path: Path) -> None:
    target = lake(tmp_path)
    known = _Known(target, Form(), SCHEMA)
    state = known.read()
    known.given_up = frozenset({file_name(OffsetRange(*TP, 8, 13), None)})
    known.save(state)
    export(target, 8, 13)
    assert compact(target, 10**9, dry=True).covered == compact(target, 10**9, dry=False).covered == 2, "of two days"
    assert held(target) == [*range(RECORDS)]


def begin(command: str, target: Directory) -> None:
    """What the command does before it merges or exports anything."""
    if command == "compact":
        compact(target, 1, dry=False)
    else:
        go_on(target, {})


@pytest.mark.parametrize("command", ["export", "compact"])
def test_of_a_lake_that_is_compacted_no_footers_are_read_but_of_files_around_one_that_came_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    target, read, footer = lake(tmp_path), list[str](), Directory.footer
    compact(target, 3 * max(target.sizes(".parquet").values()), dry=False)
    assert len(target.names("-merged.parquet")) > 4

    def counted(self: Directory, name: str) -> pq.FileMetaData:
        read.append(name)
        return footer(self, name)

    monkeypatch.setattr(Directory, "footer", counted)
    begin(command, target)
    assert read == []
    export(target, 10, 15)
    begin(command, target)
    assert len(read) == 2, "one of each day"
    assert held(target) == [*range(RECORDS)]


@pytest.mark.parametrize("command", ["export", "compact"])
def test_whoever_finds_a_file_gone_that_another_has_merged_meanwhile_says_that_it_is_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    target, footer = lake(tmp_path), Directory.footer
    compact(target, 10**9, dry=False)
    export(target, 10, 15)

    def beside(self: Directory, name: str) -> pq.FileMetaData:
        other = _Known(target, Form(), SCHEMA)
        other.save(other.read())
        target.delete(name)
        return footer(self, name)

    monkeypatch.setattr(Directory, "footer", beside)
    with pytest.raises(Overtaken):
        begin(command, target)


def test_a_file_that_is_gone_though_nobody_else_is_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, footer = lake(tmp_path), Directory.footer

    def gone(self: Directory, name: str) -> pq.FileMetaData:
        target.delete(name)
        return footer(self, name)

    monkeypatch.setattr(Directory, "footer", gone)
    with pytest.raises(ConfigError, match="cannot be used"):
        compact(target, 10**9, dry=False)


def test_offsets_that_are_other_records_since_a_truncation_are_not_taken_for_covered(tmp_path: Path) -> None:
    target = lake(tmp_path)
    compact(target, 10**9, dry=False)
    export(target, 40, 43)
    told = compact(target, 10**9, dry=False)
    assert (told.covered, told.merged) == (0, 4)
    assert held(target) == sorted([*range(RECORDS), 40, 41, 42])
    assert compact(target, 10**9, dry=False).covered == 0


def test_other_records_in_a_file_named_as_one_that_was_merged_before_a_truncation_stay(tmp_path: Path) -> None:
    target = lake(tmp_path)
    compact(target, 8 * max(target.sizes(".parquet").values()), dry=False)
    assert len(target.names("-merged.parquet")) > 2, "the truncation is in one of a day's"
    export(target, 40, 45)
    go_on_behind_a_truncation_at(target, 40)
    assert held(target) == [*range(RECORDS)], "what is covered until then is removed"
    export(target, 40, 45)
    # Once more, as if the first one had been killed before it wrote that into the manifest.
    go_on_behind_a_truncation_at(target, 40)
    export(target, 0, 5)
    assert compact(target, 10**9, dry=False).covered == 2, "of both days the file with the first records"
    assert held(target) == sorted([*range(RECORDS), *range(40, 45)])
    assert compact(target, 10**9, dry=False).covered == 0


def go_on_behind_a_truncation_at(target: Directory, end: int) -> None:
    """What an export does that goes on with `fail_on_data_loss = false`."""
    go_on(target, {str(TP): end})


def go_on(target: Directory, ends: Mapping[str, int]) -> None:
    known = _Known(target, Form(), SCHEMA)
    known.read()
    _clear(target, (), ends, known.check)


def test_of_an_export_and_a_compaction_at_once_the_one_that_began_earlier_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = lake(tmp_path)
    merge = job._row_groups

    def beside(*given: Any) -> Iterator[Any]:
        yield from merge(*given)
        other = _Known(target, Form(), SCHEMA)
        other.save(other.read())

    monkeypatch.setattr(job, "_row_groups", beside)
    with pytest.raises(Overtaken):
        compact(target, 10**9, dry=False)
    assert target.names("-merged.parquet") == []
    assert held(target) == [*range(RECORDS)]


def test_neighbours_with_other_columns_stay_as_they_are_and_the_rest_is_merged(tmp_path: Path) -> None:
    target = lake(tmp_path)
    path = target.names(".parquet")[3]
    other = pq.read_table(f"{target.url}/{path}", partitioning=None).drop_columns(["headers"])
    pq.write_table(other, f"{target.url}/{path}")
    for dry in (True, False):
        told = compact(target, 10**9, dry=dry)
        assert (told.files, told.merged, told.made) == (22, 11, 1)
        assert told.unlike == [
            f"{path} has other columns than {path.rpartition('/')[0]}/orders-0-{0:020}-{5:020}.parquet: headers is gone"
        ]
        assert f"warning: {told.unlike[0]}" in list(told.lines())
    assert held(target) == [*range(RECORDS)]


MIB = 1024 * 1024


def test_memory_is_bounded_by_bytes_however_large_records_are_and_however_often_they_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, held = Directory(str(tmp_path)), list[int]()
    monkeypatch.setattr(job, "_ROW_GROUP_BYTES", MIB)
    for start in range(0, 256, 16):
        export_large(target, start, start + 16)
    _Known(target, Form(), SCHEMA).save(RunState((OffsetRange(*TP, 0, 256),), {TP: 256}))
    before, write = pa.total_allocated_bytes(), pq.ParquetWriter.write_table

    def seen(self: pq.ParquetWriter, table: pa.Table) -> None:
        held.append(pa.total_allocated_bytes() - before)
        write(self, table)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", seen)
    assert [compact(target, size, dry=False).made for size in (9 * MIB, 10**9)] == [2, 1]
    (path,) = target.names(".parquet")
    told = target.footer(path)
    sizes = [told.row_group(each).total_byte_size for each in range(told.num_row_groups)]
    assert sum(sizes) > 16 * MIB
    assert max(sizes) <= MIB, "no larger than before, or the next compaction would hold more"
    assert max(held) < 6 * MIB, "of 16 MiB: a row group that is read, and two that are written"


def test_a_delta_table_of_large_records_has_row_groups_that_are_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_ROW_GROUP_BYTES", MIB)
    for size, rows in ((100, 10), *[(64 * 1024, 16)] * 4):
        values = pa.array([os.urandom(size) for _ in range(rows)], pa.binary())
        write_deltalake(str(tmp_path), pa.table({"value": values}), mode="append")
    assert compact_delta(Directory(str(tmp_path)), 10**9, dry=False).merged == 5
    (path,) = DeltaTable(str(tmp_path)).file_uris()
    told = pq.read_metadata(path)
    sizes = [told.row_group(each).total_byte_size for each in range(told.num_row_groups)]
    assert told.num_rows == 74
    assert sum(sizes) > 4 * MIB
    assert max(sizes) <= 1.1 * MIB, "which the library holds until they are whole"


@pytest.mark.parametrize("sizes", [[100, 60, 50, 30, 20, 10, 300], [60, 300, 30, 10], [90] * 3, [10] * 12], ids=str)
def test_the_plan_for_a_delta_table_is_what_becomes_of_it(tmp_path: Path, sizes: Sequence[int]) -> None:
    for number, size in enumerate(sizes):
        row = {"value": pa.array([os.urandom(size * 1000)], pa.binary()), "date": ["ab"[number % 3 == 0]]}
        write_deltalake(str(tmp_path), pa.table(row), mode="append", partition_by=["date"])
    target = Directory(str(tmp_path))
    planned = compact_delta(target, 120_000, dry=True)
    assert replace(planned, dry=False) == compact_delta(target, 120_000, dry=False)


@pytest.mark.parametrize(
    ("why", "told", "words"),
    [
        (
            CommitFailedError("a concurrent transaction deleted the same data your transaction deletes"),
            Overtaken,
            r"was changed while its files were merged.*deletes; start the command again",
        ),
        (
            DeltaError("Column mapping is not supported for write operation 'OPTIMIZE' yet"),
            ConfigError,
            r"is not merged, and stays as it is: Column mapping is not supported",
        ),
    ],
    ids=["changed", "refused"],
)
def test_a_delta_table_that_is_not_merged_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: Exception, told: type[Exception], words: str
) -> None:
    """As somebody else changes it meanwhile, or as the library, or the store, refuses it."""
    write_deltalake(str(tmp_path), pa.table({"value": [1]}))

    def refused(**_: object) -> None:
        raise why

    played = SimpleNamespace(
        get_add_actions=DeltaTable(str(tmp_path)).get_add_actions, optimize=SimpleNamespace(compact=refused)
    )
    monkeypatch.setattr(job, "delta_table", lambda target: played)
    with pytest.raises(told, match=words):
        compact_delta(Directory(str(tmp_path)), 10**9, dry=False)


def export_large(target: Directory, start: int, stop: int) -> None:
    """Records of 64 KiB, in row groups of 512 KiB."""
    name, bounds = file_name(OffsetRange(*TP, start, stop), None), Bounds(held_bytes=MIB // 2)
    with PartitionedFiles(target, lambda part: f"{part}/{name}", COLUMNS, bounds=bounds) as files:
        values = {at: os.urandom(64 * 1024) for at in range(start, stop)}
        files.add(
            [
                Message(topic="orders", partition=0, offset=at, value=value, timestamp=(1, DAY_MS))
                for at, value in values.items()
            ]
        )
        files.close()


def test_a_manifest_of_another_version_is_named_with_the_one_that_wrote_it(tmp_path: Path) -> None:
    target = Directory(str(tmp_path))
    target.write("_kunicorn/manifest-00000001.json", b'{"kunicorn": "9.1.0", "delta": false}')
    with pytest.raises(ConfigError, match=r"_kunicorn is no manifest of kunicorn .*: finish it with kunicorn 9\.1\.0"):
        compact(target, 10**9, dry=True)


def test_a_directory_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no target of kunicorn pipeline export"):
        compact(Directory(str(tmp_path)), 10**9, dry=False)


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(1, 60))
def test_merges_keep_the_order_and_the_target_size(sizes: list[int], target: int) -> None:
    pieces = [Piece("date=x", "orders-0", at * 10, at * 10 + 10, False, size) for at, size in enumerate(sizes)]
    planned = merges(pieces, target)
    taken = [each for merge in planned for each in merge.sources]
    assert taken == sorted(taken)
    assert len(taken) == len(set(taken))
    for merge in planned:
        assert len(merge.sources) > 1
        assert merge.into.size == sum(each.size for each in merge.sources) <= target
        between = pieces[pieces.index(merge.sources[0]) : pieces.index(merge.sources[-1]) + 1]
        assert list(merge.sources) == between, "nothing lies between two that are merged"


def test_files_of_two_days_or_logs_are_never_merged_and_a_file_does_not_cover_itself() -> None:
    pieces = [Piece(day, log, 0, 10, False, 1) for day in ("date=a", "date=b") for log in ("orders-0", "orders-1")]
    assert merges(pieces, 100) == []
    merged = pieces[0]._replace(merged=True)
    assert covered([*pieces, merged], {merged: frozenset({pieces[0].name, merged.name})}) == [pieces[0]]
