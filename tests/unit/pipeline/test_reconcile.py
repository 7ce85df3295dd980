"""Tables against topics."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kunicorn.errors import ConfigError, ExitCode
from kunicorn.pipeline.reconcile import Difference, beyond, difference, rows_of
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import Edges, OffsetRange, TopicPartition
from kunicorn.text import tell

A0 = TopicPartition("a", 0)


def compared(*rows: tuple[int, int]) -> Difference:
    return difference([OffsetRange("a", 0, 10, 20)], {A0: rows})


def test_rows_in_any_order_that_tile_the_range_leave_nothing_to_say() -> None:
    assert compared((15, 20), (10, 15)) == Difference(10, [], [])
    assert compared((0, 50)) == Difference(10, [], []), "what lies outside is nobody's question"


def test_gaps_are_missing_and_overlaps_repeated() -> None:
    found = compared((10, 12), (13, 16), (14, 15), (15, 18))
    assert found.missing == [OffsetRange("a", 0, 12, 13), OffsetRange("a", 0, 18, 20)]
    assert found.repeated == [OffsetRange("a", 0, 14, 16)]
    assert found.covered == 7
    assert compared() == Difference(0, [OffsetRange("a", 0, 10, 20)], [])


def test_rows_behind_the_logs_end_and_of_a_deleted_topic_are_named() -> None:
    """Of a topic that was truncated, deleted or created anew: nothing is missing, and yet not all is well."""
    gone = TopicPartition("gone", 0)
    found = beyond({A0: [(10, 15), (15, 30), (25, 28)], gone: [(3, 5)]}, {A0: Edges(0, 20)})
    assert found == [OffsetRange("a", 0, 20, 30), OffsetRange("gone", 0, 3, 5)]
    assert beyond({A0: [(0, 20)]}, {A0: Edges(0, 20)}) == []
    difference = Difference(10, [], [], found)
    assert difference.code == ExitCode.NOT_ALL_COMMITTED
    assert "beyond    12 offsets in 2 ranges" in list(difference.lines())


def test_a_person_is_told_the_first_ranges_and_a_program_all() -> None:
    found = compared(*((at, at + 1) for at in (10, 12, 12)))
    said: list[str] = []
    tell(found, said.append, as_json=True)
    assert json.loads(said.pop()) == {
        "covered": 2,
        "missing": [{"topic": "a", "partition": 0, "start": a, "stop": b} for a, b in ((11, 12), (13, 20))],
        "repeated": [{"topic": "a", "partition": 0, "start": 12, "stop": 13}],
        "beyond": [],
    }
    tell(found, said.append, as_json=False)
    assert said == [
        "covered   2 offsets",
        "missing   8 offsets in 2 ranges",
        "          a-0 11 to 12",
        "          a-0 13 to 20",
        "repeated  1 offsets in 1 ranges",
        "          a-0 12 to 13",
    ]


def test_a_table_of_single_records_and_one_of_ranges_are_read_alike(tmp_path: Path) -> None:
    single = pa.table({"topic": ["a", "a"], "partition": [0, 0], "offset": [3, 4]})
    ranges = pa.table({
        "topic": ["a", "a"], "partition": [0, 0], "offset": [3, 9], "until": [9, 9], "status": ["done", "halt"],
    })  # fmt: skip
    for name, table in (("single", single), ("ranges", ranges)):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "x.parquet")
    assert rows_of(Directory(str(tmp_path / "single"))) == {A0: [(3, 4), (4, 5)]}
    assert rows_of(Directory(str(tmp_path / "ranges"))) == {A0: [(3, 9)]}


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no Parquet files"):
        rows_of(Directory(str(tmp_path)))
    pq.write_table(pa.table({"topic": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="has no column 'partition'"):
        rows_of(Directory(str(tmp_path)))
