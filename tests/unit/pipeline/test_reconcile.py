"""Tables against topics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.errors import ConfigError, ExitCode
from kunicorn.pipeline.reconcile import (
    ComparePartitions,
    Difference,
    Found,
    ReadTable,
    columns_of,
    files_of,
    of_partition,
    ranges_in,
    summed,
)
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import Edges, OffsetRange, TopicPartition
from kunicorn.text import tell

A0 = TopicPartition("a", 0)
LOG = Edges(10, 20)


def compared(*rows: tuple[int, int], log: Edges | None = LOG) -> Difference:
    return of_partition(A0, sorted(rows), log)


def found(*ranges: tuple[int, int]) -> Found:
    return Found.of([OffsetRange("a", 0, *each) for each in ranges])


def test_rows_in_any_order_that_tile_the_range_leave_nothing_to_say() -> None:
    assert compared((15, 20), (10, 15)) == Difference(10)
    assert compared((0, 20)) == Difference(10), "what the log has deleted is nobody's question"


def test_gaps_are_missing_and_overlaps_repeated() -> None:
    told = compared((10, 12), (13, 16), (14, 15), (15, 18))
    assert told == Difference(7, found((12, 13), (18, 20)), found((14, 16)))
    assert compared((12, 14)).missing == found((14, 20)), "from the table's first offset on"


def test_rows_behind_the_logs_end_and_of_a_deleted_topic_are_named() -> None:
    """Of a topic that was truncated, deleted or created anew: nothing is missing, and yet not all is well."""
    told = compared((10, 15), (15, 30), (25, 28))
    assert told == Difference(10, beyond=found((20, 30)))
    assert compared((3, 5), log=None) == Difference(0, beyond=found((3, 5)))
    assert told.code == ExitCode.NOT_ALL_COMMITTED
    assert "beyond    10 offsets in 1 ranges" in list(told.lines())


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=1, max_size=12),
    st.integers(0, 30),
    st.integers(0, 20),
)
def test_every_offset_is_judged_as_if_it_were_alone(spans: list[tuple[int, int]], first: int, size: int) -> None:
    rows = [(start, start + length) for start, length in spans]
    log = Edges(first, first + size)
    told = of_partition(A0, sorted(rows), log)
    times = Counter(offset for start, stop in rows for offset in range(start, stop))
    wanted = range(max(min(start for start, _ in rows), first), log.end)
    assert offsets(told.missing) == {offset for offset in wanted if not times[offset]}
    assert offsets(told.repeated) == {offset for offset in wanted if times[offset] > 1}
    assert offsets(told.beyond) == {offset for offset in times if offset >= log.end}
    assert told.covered == sum(1 for offset in wanted if times[offset])
    few = of_partition(A0, sorted(rows), log, named=1)
    for whole, part in zip(every(told), every(few), strict=True):
        assert (part.ranges, part.offsets, part.named) == (whole.ranges, whole.offsets, whole.named[:1])


def every(told: Difference) -> Sequence[Found]:
    return told.missing, told.repeated, told.beyond


def offsets(kind: Found) -> set[int]:
    """Each in one range only, and the sums are right."""
    listed = [offset for each in kind.named for offset in range(each.start, each.stop)]
    assert len(listed) == len(set(listed)) == kind.offsets
    assert len(kind.named) == kind.ranges
    return set(listed)


def test_a_person_is_told_the_first_ranges_and_a_program_all() -> None:
    told = compared(*((at, at + 1) for at in (10, 12, 12)))
    said: list[str] = []
    tell(told, said.append, as_json=True)
    assert json.loads(said.pop()) == {
        "covered": 2,
        "missing": [{"topic": "a", "partition": 0, "start": a, "stop": b} for a, b in ((11, 12), (13, 20))],
        "repeated": [{"topic": "a", "partition": 0, "start": 12, "stop": 13}],
        "beyond": [],
        "offsets": {"missing": 8, "repeated": 1, "beyond": 0},
    }
    tell(told, said.append, as_json=False)
    assert said == [
        "covered   2 offsets",
        "missing   8 offsets in 2 ranges",
        "          a-0 11 to 12",
        "          a-0 13 to 20",
        "repeated  1 offsets in 1 ranges",
        "          a-0 12 to 13",
    ]
    few = of_partition(A0, [(10, 11), (12, 13)], LOG, named=1).as_json()
    assert few["missing"] == [{"topic": "a", "partition": 0, "start": 11, "stop": 12}]
    assert few["unnamed"] == {"missing": 1, "repeated": 0, "beyond": 0}
    assert few["offsets"] == {"missing": 8, "repeated": 0, "beyond": 0}, "also of those that are not named"


RANGES = {"topic": ["a", "a"], "partition": [0, 0], "offset": [3, 9], "until": [9, 9], "status": ["done", "halt"]}


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ({"topic": ["a", "a"], "partition": [0, 0], "offset": [3, 4]}, [("a", 0, 3, 5)]),
        (RANGES, [("a", 0, 3, 9)]),
        ({"topic": ["a"] * 3, "partition": [0] * 3, "offset": [3, 3, 4]}, [("a", 0, 3, 4), ("a", 0, 3, 5)]),
        # A status of another's table is a column like any other, and no row is left out for it.
        (
            {"topic": ["a"] * 3, "partition": [0] * 3, "offset": [3, 4, 5], "status": ["x", None, "halt"]},
            [("a", 0, 3, 6)],
        ),
        ({"topic": ["a"] * 2, "partition": [0] * 2, "offset": [3, 4], "status": [200, 404]}, [("a", 0, 3, 5)]),
        ({**RANGES, "status": [None, "halt"]}, [("a", 0, 3, 9)]),
        ({**RANGES, "offset": [3, 5], "until": [4, 9], "status": [1, 2]}, [("a", 0, 3, 4), ("a", 0, 5, 9)]),
        # A table of single records and of ranges, as a union of two is.
        (
            {"topic": ["a"] * 3, "partition": [0] * 3, "offset": [3, 4, 7], "until": [None, None, 9]},
            [("a", 0, 3, 5), ("a", 0, 7, 9)],
        ),
        (
            {"topic": ["a", "a", "b"], "partition": [0, 1, 1], "offset": [3, 4, 5]},
            [("a", 0, 3, 4), ("a", 1, 4, 5), ("b", 1, 5, 6)],
        ),
    ],
)
def test_rows_that_continue_one_another_are_one_range_and_others_are_not(
    tmp_path: Path, columns: dict[str, list[object]], rows: list[tuple[object, ...]]
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert read(tmp_path, "x.parquet") == rows


def read(place: Path, *names: str) -> list[tuple[object, ...]]:
    task = ReadTable(Directory(str(place)), ranges_in, ["topic", "partition", "offset", "until", "status"])
    asked = pa.RecordBatch.from_pydict({"files": [json.dumps(names)]})
    return [tuple(row.values()) for batch in task(iter([asked])) for row in batch.to_pylist()]


def test_what_tasks_tell_is_what_one_partition_after_the_other_comes_to() -> None:
    logs = {A0: LOG, TopicPartition("a", 1): Edges(0, 5), TopicPartition("a", 2): Edges(7, 7)}
    rows = [("a", 0, 10, 12), ("a", 0, 11, 25), ("gone", 0, 1, 2)]
    batches = [pa.RecordBatch.from_pylist([dict(zip("abcd", row, strict=True))]) for row in rows]
    told = [tuple(r.values()) for each in ComparePartitions(logs, 100)(iter(batches)) for r in each.to_pylist()]
    assert summed(told, logs) == Difference(
        10,
        Found.of([OffsetRange("a", 1, 0, 5)]),
        Found.of([OffsetRange("a", 0, 11, 12)]),
        Found.of([OffsetRange("a", 0, 20, 25), OffsetRange("gone", 0, 1, 2)]),
    )


def test_of_a_delta_table_the_files_that_its_log_names_are_compared(tmp_path: Path) -> None:
    for offset in range(3):
        row = pa.table({"topic": ["orders"], "partition": [0], "offset": [offset], "date": ["a day"]})
        write_deltalake(str(tmp_path), row, mode="append", partition_by=["date"])
    table, target = DeltaTable(str(tmp_path)), Directory(str(tmp_path))
    assert len(files_of(target)) == 3
    table.optimize.compact()
    table.create_checkpoint()
    (name,) = files_of(target)
    assert sorted(pq.read_table(tmp_path / name, partitioning=None)["offset"].to_pylist()) == [0, 1, 2]
    columns_of(target, name)


def test_a_delta_table_whose_files_have_rows_that_were_deleted_is_refused(tmp_path: Path) -> None:
    """A deletion vector of an engine: the second of three rows is deleted, and its file stays."""
    place, features = tmp_path / "t", {"delta.enableDeletionVectors": "true"}
    rows = pa.table({"topic": ["orders"] * 3, "partition": [0] * 3, "offset": [0, 1, 2]})
    write_deltalake(str(place), rows, configuration=features)
    log = place / "_delta_log"
    (added,) = (told["add"] for told in map(json.loads, (log / f"{0:020}.json").open()) if "add" in told)
    assert len(files_of(Directory(str(place)))) == 1, "the feature alone has deleted nothing"
    vector = {"storageType": "i", "pathOrInlineDv": SECOND_ROW, "sizeInBytes": 34, "cardinality": 1}
    removed = {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}
    actions = [{"remove": removed}, {"add": {**added, "deletionVector": vector}}]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(ConfigError, match=r"has rows that deletion vectors take out of its files: .* APPLY \(PURGE\)"):
        files_of(Directory(str(place)))


def test_an_iceberg_table_is_refused_as_its_directory_does_not_say_which_files_count(tmp_path: Path) -> None:
    target = Directory(str(tmp_path))
    target.write("data/timestamp_day=2026-01-01/a.parquet", b"")
    target.write("metadata/00001-2b1f.metadata.json", b"{}")
    with pytest.raises(ConfigError, match="is an Iceberg table, and its catalog alone knows which of its files count"):
        files_of(target)


SECOND_ROW = "^Bg9^0rr910000000000iXQKl0rr91000005c8Xg0rr91"
"""As Delta's protocol writes a bitmap that has the number 1 alone."""


def test_files_in_directories_that_readers_pass_over_are_not_compared(tmp_path: Path) -> None:
    target = Directory(str(tmp_path))
    for name in ("_old/a.parquet", "day/.old/b.parquet", "_region=eu/c.parquet", "day/d.parquet"):
        target.write(name, b"")
    assert files_of(target) == ["_region=eu/c.parquet", "day/d.parquet"]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"topic": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="has no column 'partition'"):
        columns_of(Directory(str(tmp_path)), "x.parquet")
    nothing = {"topic": ["a"], "partition": [None], "offset": [1]}
    pq.write_table(pa.table(nothing), tmp_path / "y.parquet")
    with pytest.raises(ConfigError, match=r"y.parquet has rows without topic, partition, offset"):
        read(tmp_path, "y.parquet")
