"""A Delta table that an export writes to."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.lake.files import NO_DATE, LakeFile, partitioning
from kunicorn.pipeline.lake.tables import DeltaLake, NotCommitted
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import TopicPartition

FILES = [LakeFile("date=2026-01-01/a.parquet", 100, 7)]
ENDS = {TopicPartition("orders", 0): 7}


def lake(place: Path) -> DeltaLake:
    made = DeltaLake(Directory(str(place)), SCHEMA, partitioning("day"))
    made.open()
    return made


def test_a_round_is_committed_once_whoever_repeats_it(tmp_path: Path) -> None:
    for _ in range(2):
        lake(tmp_path).commit(1, FILES, ENDS)
    assert lake(tmp_path).rounds() == 1
    assert len(list((tmp_path / "_delta_log").glob("*1.json"))) == 1


@pytest.mark.parametrize(
    ("by", "path", "row"),
    [
        ("day", "date=2026-01-01", {"date": date(2026, 1, 1)}),
        ("hour", "date=2026-01-01/hour=07", {"date": date(2026, 1, 1), "hour": 7}),
        ("hour", f"date={NO_DATE}/hour={NO_DATE}", {"date": None, "hour": None}),
    ],
)
def test_days_are_dates_and_hours_are_numbers(tmp_path: Path, by: str, path: str, row: dict[str, Any]) -> None:
    made = DeltaLake(Directory(str(tmp_path)), SCHEMA, partitioning(by))
    made.open()
    made.commit(1, [written(tmp_path, path)], ENDS)
    (found,) = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(columns=list(row)).to_pylist()
    assert found == row


def test_a_table_with_days_as_texts_goes_on_with_them(tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, pa.field("date", pa.string())])
    deltalake.DeltaTable.create(str(tmp_path), schema, partition_by=["date"])
    lake(tmp_path).commit(1, [written(tmp_path, "date=2026-01-01")], ENDS)
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()["date"].to_pylist() == ["2026-01-01"]


def written(place: Path, path: str) -> LakeFile:
    """A file of one record, there."""
    (place / path).mkdir(parents=True)
    file = place / path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"topic": "orders", "partition": 0, "offset": 6}], schema=SCHEMA), file)
    return LakeFile(f"{path}/a.parquet", file.stat().st_size, 1)


def test_a_round_that_another_export_commits_in_the_same_moment_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake(tmp_path), lake(tmp_path)
    first.commit(1, FILES, ENDS)
    # It has looked for the round before the first one committed it.
    monkeypatch.setattr(DeltaLake, "rounds", lambda self: 0)
    with pytest.raises(NotCommitted, match=r"does not take round 1: .*then export again: it goes on where it ended"):
        second.commit(1, FILES, ENDS)
