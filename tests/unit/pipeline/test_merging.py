"""A Delta table with a row for each key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.schema import PrimitiveType
from deltalake.table import TableMerger
from hypothesis import given, settings
from hypothesis import strategies as st

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.export import round_size
from kunicorn.pipeline.lake.columns import Asked, Form, form_asked
from kunicorn.pipeline.lake.files import CHANGES, LakeFile, changes
from kunicorn.pipeline.lake.newest import PART_BYTES, newest_in_parts
from kunicorn.pipeline.lake.tables import MergedDelta, NotCommitted
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import TopicPartition

ENDS = {TopicPartition("orders", 0): 7}
TEXTS = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", pa.string()))


def rows(*records: tuple[int, str, str | None], partition: int = 0, topic: str = "orders") -> pa.Table:
    """Records of one partition: offset, key, value; the time follows the offset."""
    found = [
        {
            "topic": topic, "partition": partition, "offset": offset, "key": key.encode(), "value": value,
            "timestamp": offset * 1000, "timestampType": 0,
        }
        for offset, key, value in records
    ]  # fmt: skip
    return pa.Table.from_pylist(found, schema=TEXTS)


class Table:
    """A table, and rounds that are merged into it."""

    def __init__(self, place: Path, part_bytes: int = PART_BYTES) -> None:
        self._place, self._number, self._part_bytes = place, 0, part_bytes

    def merge(self, *files: pa.Table, again: bool = False, name: str = "") -> dict[tuple[str, str], str]:
        """One round; the table by topic and key after that. `again`: the one that was merged last. `name`: of a
        driver of two, each of which leaves the other's files.
        """
        self._number += not again
        (self._place / CHANGES).mkdir(parents=True, exist_ok=True)
        written = []
        for number, table in enumerate(files):
            path = f"{CHANGES}/{name}{self._number}-{number}.parquet"
            pq.write_table(table, self._place / path)
            written.append(LakeFile(path, 1, len(table)))
        lake = self._lake()
        lake.commit(self._number, written, ENDS)
        if not name:
            lake.clear()
            assert [*(self._place / CHANGES).iterdir()] == []
        return self.rows()

    def rounds(self) -> int:
        return self._lake().committed().rounds

    def _lake(self) -> MergedDelta:
        lake = MergedDelta(Directory(str(self._place)), TEXTS, self._part_bytes)
        lake.open()
        return lake

    def rows(self) -> dict[tuple[str, str], str]:
        found = deltalake.DeltaTable(str(self._place)).to_pyarrow_table().to_pylist()
        by_key = {(row["topic"], row["key"].decode()): row["value"] for row in found}
        assert len(by_key) == len(found), "one row for each key"
        return by_key


def test_the_newest_record_of_a_key_is_its_row_and_a_tombstone_deletes_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert table.merge(rows((0, "a", "1"), (1, "b", "1"), (2, "a", "2"))) == {
        ("orders", "a"): "2",
        ("orders", "b"): "1",
    }
    assert table.merge(rows((3, "a", None), (4, "c", "1"), (5, "x", None))) == {
        ("orders", "b"): "1", ("orders", "c"): "1",
    }  # fmt: skip
    assert table.merge(rows((6, "a", "3"), (7, "b", None), (8, "b", "4"))) == {
        ("orders", "a"): "3", ("orders", "b"): "4", ("orders", "c"): "1",
    }  # fmt: skip
    assert table.merge(rows((0, "c", "5"), topic="refunds")) == {
        ("orders", "a"): "3", ("orders", "b"): "4", ("orders", "c"): "1", ("refunds", "c"): "5",
    }, "another topic's key is another"  # fmt: skip


def test_a_round_that_is_merged_is_not_merged_again_whatever_came_behind_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.merge(rows((0, "a", "1")))
    table.merge(rows((1, "a", None)))
    assert table.merge(rows((1, "a", "wrong")), again=True) == {}
    assert table.merge() == {}, "a round without a record"
    assert table.rounds() == 3


def test_a_table_that_was_dropped_and_made_anew_is_not_gone_on_with_as_if_it_had_everything(tmp_path: Path) -> None:
    Table(tmp_path).merge(rows((0, "a", "1")))
    with pytest.raises(ConfigError, match="has 1 rounds, of the 2 that were exported to it"):
        MergedDelta(Directory(str(tmp_path)), TEXTS).open(2)


def test_a_topic_that_was_created_anew_goes_on_from_lower_offsets(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.merge(rows((100, "a", "old")))
    assert table.merge(rows((0, "a", "new"))) == {("orders", "a"): "new"}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["1", "2", None])), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_rounds_come_to_what_the_records_come_to_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[str, str | None]]]
) -> None:
    table, wanted, offset = Table(tmp_path_factory.mktemp("table")), dict[tuple[str, str], str](), 0
    for some in rounds:
        records = []
        for key, value in some:
            records.append((offset, key, value))
            offset += 1
            wanted.pop(("orders", key), None)
            if value is not None:
                wanted["orders", key] = value
        # In two files, the later one first: the order of files is nobody's.
        assert table.merge(rows(*records[3:]), rows(*records[:3])) == wanted


def test_a_table_from_which_no_row_may_go_is_refused_before_a_rounds_tasks(tmp_path: Path) -> None:
    target = Directory(str(tmp_path))
    MergedDelta(target, SCHEMA).open()
    deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(ConfigError, match=r"\(delta.appendOnly\), and --merge-by key replaces rows"):
        MergedDelta(target, SCHEMA).open()


def test_a_table_with_a_generated_column_is_refused_as_a_merged_row_would_keep_the_former_value(tmp_path: Path) -> None:
    generated = deltalake.Field(
        "year", PrimitiveType("integer"), metadata={"delta.generationExpression": "YEAR(timestamp)"}
    )
    columns = deltalake.Schema.from_arrow(SCHEMA).fields
    deltalake.DeltaTable.create(str(tmp_path), deltalake.Schema([*columns, generated]))
    with pytest.raises(ConfigError, match="has a column 'year' that is generated"):
        MergedDelta(Directory(str(tmp_path)), SCHEMA).open()


def test_of_a_key_in_two_partitions_the_latest_time_counts(tmp_path: Path) -> None:
    late, early = rows((9, "a", "late"), partition=0), rows((3, "a", "early"), (2, "b", "1"), partition=1)
    assert Table(tmp_path).merge(late, early) == {("orders", "a"): "late", ("orders", "b"): "1"}


@pytest.mark.parametrize("timed", [0, 1])
def test_a_record_without_a_time_is_older_than_one_with_a_time(tmp_path: Path, timed: int) -> None:
    found = [rows((9, "a", "1"), partition=0), rows((9, "a", "2"), partition=1)]
    at = TEXTS.get_field_index("timestamp")
    found[1 - timed] = found[1 - timed].set_column(at, TEXTS.field(at), pa.nulls(1, TEXTS.field(at).type))
    assert Table(tmp_path).merge(*found) == {("orders", "a"): ["1", "2"][timed]}


def test_of_a_key_in_two_topics_of_one_round_each_has_its_newest(tmp_path: Path) -> None:
    found = Table(tmp_path).merge(rows((9, "a", "1")), rows((3, "a", "2"), topic="refunds"))
    assert found == {("orders", "a"): "1", ("refunds", "a"): "2"}


def written(place: Path, tables: Sequence[pa.Table]) -> list[str]:
    for number, table in enumerate(tables):
        pq.write_table(table, place / f"{number}.parquet", row_group_size=3)
    return [f"{number}.parquet" for number in range(len(tables))]


RECORD = st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.sampled_from(["1", "2" * 500, None]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(RECORD, max_size=9), min_size=1, max_size=4), st.sampled_from([1, 700, 10**6]))
def test_parts_have_the_newest_record_of_each_key_once_however_many_bytes_a_part_has(
    tmp_path_factory: pytest.TempPathFactory, partitions: list[list[tuple[str, int, str | None]]], part_bytes: int
) -> None:
    wanted: dict[str, tuple[int, int, int]] = {}
    tables = []
    for partition, records in enumerate(partitions):
        last = {key: (time, partition, offset) for offset, (key, time, _) in enumerate(records)}
        for key, at in last.items():
            wanted[key] = max(wanted.get(key, at), at)
        table = rows(*((offset, key, value) for offset, (key, _, value) in enumerate(records)), partition=partition)
        field = table.schema.field("timestamp")
        times = pa.array([time for _, time, _ in records], pa.int64()).cast(field.type)
        tables.append(table.set_column(table.schema.get_field_index("timestamp"), field, times))
    place = tmp_path_factory.mktemp("round")
    parts = list(newest_in_parts(Directory(str(place)), written(place, tables), part_bytes))
    found = [row for part in parts for row in part.rows.to_pylist()]
    assert sorted((row["key"].decode(), row["partition"], row["offset"]) for row in found) == sorted(
        (key, partition, offset) for key, (_, partition, offset) in wanted.items()
    )
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True] * bool(parts)
    assert all(part.rows.nbytes <= part_bytes or part.rows.num_rows == 1 for part in parts)


LARGE, PART, GROUP = 64 * 1024, 1024 * 1024, 512 * 1024


def large_changes(place: Path, first: int) -> LakeFile:
    """A file of 256 keys with 64 KiB each, in row groups of 512 KiB."""
    path = f"{CHANGES}/{first}.parquet"
    (place / CHANGES).mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(place / path, TEXTS) as writer:
        for start in range(first, first + 256, GROUP // LARGE):
            some = range(start, start + GROUP // LARGE)
            writer.write_table(rows(*((at, f"{at}", f"{at:064}" * (LARGE // 64)) for at in some)))
    return LakeFile(path, 1, 256)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that Arrow has in memory when a part is merged."""
    found: list[int] = []
    before, merge = pa.total_allocated_bytes(), deltalake.DeltaTable.merge

    def seen(self: deltalake.DeltaTable, source: pa.Table, *given: Any, **options: Any) -> Any:
        found.append(pa.total_allocated_bytes() - before)
        return merge(self, source, *given, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "merge", seen)
    return found


def test_the_driver_holds_one_part_of_a_round_however_large_its_records_are(tmp_path: Path, held: list[int]) -> None:
    files = [large_changes(tmp_path, first) for first in (0, 256)]
    lake = MergedDelta(Directory(str(tmp_path)), TEXTS, PART)
    lake.open()
    lake.commit(1, files, ENDS)
    assert lake.committed().rounds == 1
    assert len(deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["key"])) == 512
    assert max(held) < PART + 8 * GROUP, "of 32 MiB: a part, and a row group as it is read and taken from"
    assert 512 * LARGE // PART < len(held) < 40, "parts are nearly as large as they may be"


class Killed(Exception):
    """In place of the driver's end."""


ROUND = [(number, f"{number % 5}", None if number % 7 == 3 else f"{number}") for number in range(10, 25)]


@pytest.mark.parametrize("step", range(10))
def test_killed_before_or_after_any_part_the_round_comes_to_the_same_when_it_is_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    table, whole = Table(tmp_path / "killed", part_bytes=1), Table(tmp_path / "whole")
    before = rows(*((number, f"{number % 5}", "before") for number in range(5)))
    table.merge(before)
    whole.merge(before)
    steps = count()
    execute = TableMerger.execute

    def killing(self: TableMerger) -> Any:
        if next(steps) == step:
            raise Killed
        done = execute(self)
        if next(steps) == step:
            raise Killed
        return done

    with monkeypatch.context() as moment:
        moment.setattr(TableMerger, "execute", killing)
        with pytest.raises(Killed):
            table.merge(rows(*ROUND))
    assert table.rounds() == (2 if step == 9 else 1), "the last part counts the round"
    assert table.merge(rows(*ROUND), again=True) == whole.merge(rows(*ROUND))
    assert table.rounds() == 2
    assert table.merge(rows((30, "0", None))) == whole.merge(rows((30, "0", None)))


def test_a_driver_that_stood_still_between_two_parts_replaces_no_newer_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, execute = Table(tmp_path, part_bytes=1), TableMerger.execute
    steps = count()

    def overtaken(self: TableMerger) -> Any:
        done = execute(self)
        if next(steps) == 0:  # The other one goes on with the round that is underway, and with the one after it.
            with monkeypatch.context() as moment:
                moment.setattr(TableMerger, "execute", execute)
                other.merge(rows((1, "a", "1"), (2, "b", "1")), name="other")
                other.merge(rows((3, "b", "2")), name="other")
        return done

    monkeypatch.setattr(TableMerger, "execute", overtaken)
    with pytest.raises(NotCommitted, match=r"(?s)does not take round 1: .*\. Another export has committed it; "):
        Table(tmp_path, part_bytes=1).merge(rows((1, "a", "1"), (2, "b", "1")))
    assert other.rows() == {("orders", "a"): "1", ("orders", "b"): "2"}


@pytest.mark.parametrize("part", range(5))
def test_a_part_whose_answer_was_lost_is_merged_again_unless_it_counted_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    table, execute, parts = Table(tmp_path, part_bytes=1), TableMerger.execute, count()

    def answered(self: TableMerger) -> Any:
        done = execute(self)
        if next(parts) == part:
            raise deltalake.exceptions.DeltaError("the connection was reset")
        return done

    one = rows(*((number, f"{number}", "1") for number in range(5)))
    with monkeypatch.context() as moment:
        moment.setattr(TableMerger, "execute", answered)
        lost = nullcontext() if part == 4 else pytest.raises(NotCommitted, match=r"is merged again; .*export again")
        with lost:
            table.merge(one)
    assert table.rounds() == (1 if part == 4 else 0)
    assert len(table.merge(one, again=True)) == 5


@pytest.mark.parametrize(
    ("wanted", "merged", "size"),
    [(None, True, 200_000), (50, True, 50), (5_000_000, True, 1_000_000), (5_000_000, False, 5_000_000)],
)
def test_a_round_that_is_merged_has_no_more_offsets_than_its_index_may_have(
    wanted: int | None, merged: bool, size: int
) -> None:
    assert round_size(wanted, merged=merged) == size
    assert round_size(None, merged=False) is None, "as many for each partition"


def test_a_record_without_a_key_is_named() -> None:
    table = rows((4, "a", "1"), (5, "b", "1"))
    table = table.set_column(table.schema.get_field_index("key"), "key", pa.array([b"a", None], pa.binary()))
    with pytest.raises(ConfigError, match="orders-0@5 has no key"):
        list(changes().split(table.to_batches()[0]))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked("delta", merge_by="id"), "rows are merged by key"),
        (Asked("parquet", merge_by="key"), "say --to delta"),
        (Asked("delta", merge_by="key", partition_by="hour"), "leave out --partition-by"),
    ],
)
def test_what_cannot_be_merged_is_refused(asked: Asked, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        form_asked(None, asked)  # type: ignore[arg-type]
    assert Form.of(Form(True, merge_by="key").as_json()).merge_by == "key"
    assert "merge_by" not in Form(True).as_json(), "a lake that was begun before goes on"
