"""Exports of a topic that loses records underway, by day and by hour, and Delta tables that are compacted: on a real
Kafka and a real Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from typer.testing import CliRunner

from kunicorn.commands.cli import app
from kunicorn.pipeline import export
from kunicorn.pipeline.lake.tables import MergedDelta
from kunicorn.pipeline.spark import JobFailed
from kunicorn.settings import Settings
from tests.system.pipeline.desk import MASTER, Desk, lake_rows, send

pytestmark = pytest.mark.long


class Killed(Exception):
    """The driver's end, where a test wants it."""


def offsets_in(lake: Path) -> list[int]:
    """Those of all files, whatever their directory."""
    return [offset for (offset,) in lake_rows(lake, "offset")]


def compacted(table: Path, *options: str) -> str:
    """What the command, which needs no settings, has printed."""
    result = CliRunner().invoke(app, ["pipeline", "compact", str(table), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_records_that_retention_deletes_underway_end_an_export_or_are_passed_over_as_asked(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(1)
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 100})
    lake = desk.directory / "lake"
    command = ("export", str(lake), "--master", MASTER)

    def cut(_: Settings) -> None:
        """Between the plan and the first task."""
        desk.kafka.delete_records(desk.topic, {0: 40})

    with monkeypatch.context() as moment:
        moment.setattr(export, "without_columns", cut)
        with pytest.raises(JobFailed, match=f"{desk.topic}-0 at offset 0.*offsets 0 to 40 are gone.*fail_on_data_loss"):
            desk.said(*command)
    assert offsets_in(lake) == [], "nothing of a round that has failed"
    desk.configure({"pipeline": {"fail_on_data_loss": False}})
    assert "60 records" in desk.said(*command), "and it is no more wedged"
    assert offsets_in(lake) == [*range(40, 100)]
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 50})

    def cut_again(_: Settings) -> None:
        desk.kafka.delete_records(desk.topic, {0: 120})

    with monkeypatch.context() as moment:
        moment.setattr(export, "without_columns", cut_again)
        assert "90 records" in desk.said(*command), "60 before, and what was left of 50"
    assert offsets_in(lake) == [*range(40, 100), *range(120, 150)]
    assert "has everything already" in desk.said(*command)


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_an_export_by_hour_has_every_record_in_the_directory_of_its_own_hour(
    desk_of: Callable[..., Desk], form: str
) -> None:
    desk = desk_of(1)
    # Whole days back, so that no retention takes any while the test runs; in no order, and at the edges of hours.
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    steps = [0, 3_599_999, 3_600_000, 7_200_000, 1, 86_399_999, 86_400_000, 3_600_001]
    times = [midnight + timedelta(milliseconds=each) for each in steps]
    sender = Producer({"bootstrap.servers": desk.kafka.bootstrap})
    for each in times:
        sender.produce(desk.topic, "x", partition=0, timestamp=round(each.timestamp() * 1000))
    assert sender.flush(60) == 0
    lake = desk.directory / "lake"
    desk.said("export", str(lake), "--to", form, "--partition-by", "hour", "--master", MASTER)
    wanted = {offset: (each.date(), each.hour) for offset, each in enumerate(times)}
    found = {}
    for file in lake.glob("date=*/hour=*/*.parquet"):
        day, hour = file.parts[-3].removeprefix("date="), int(file.parts[-2].removeprefix("hour="))
        for offset in pq.ParquetFile(file).read(["offset"])["offset"].to_pylist():
            assert offset not in found, "once"
            found[offset] = (datetime.fromisoformat(day).date(), hour)
    assert found == wanted
    if form == "delta":
        rows = DeltaTable(str(lake)).to_pyarrow_table(columns=["offset", "date", "hour"]).to_pylist()
        assert {row["offset"]: (row["date"], row["hour"]) for row in rows} == wanted
        stats = DeltaTable(str(lake)).to_pyarrow_table(filters=[("hour", "=", 23)])
        assert stats["offset"].to_pylist() == [5]


def test_a_delta_table_is_compacted_by_the_command_and_the_next_export_goes_on(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1)
    table = desk.directory / "table"
    command = ("export", str(table), "--to", "delta", "--master", MASTER)
    for count in (10, 20, 30):
        send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * count})
        desk.said(*command)
    before = DeltaTable(str(table))
    assert len(before.file_uris()) == 3
    assert "3 of 3 files would become 1" in compacted(table, "--dry-run")
    assert len(DeltaTable(str(table)).file_uris()) == 3, "a dry run changes nothing"
    assert "3 of 3 files have become 1" in compacted(table)
    assert len(DeltaTable(str(table)).file_uris()) == 1
    assert "nothing to merge" in compacted(table)
    send(desk.kafka.bootstrap, desk.topic, {0: ["x"] * 5})
    assert "65 records" in desk.said(*command)
    after = DeltaTable(str(table)).to_pyarrow_table()
    assert sorted(after["offset"].to_pylist()) == [*range(65)]
    assert DeltaTable(str(table), version=before.version()).to_pyarrow_table().num_rows == 60, "history is kept"


def test_changes_are_merged_by_key_and_an_export_that_is_killed_between_is_gone_on_with(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(2, {"pipeline": {"max_offsets_per_trigger": 40}})
    table = desk.directory / "customers"
    command = ("export", str(table), "--to", "delta", "--merge-by", "key", "--value", "text", "--master", MASTER)
    wanted: dict[bytes, str] = {}

    def change(numbers: range) -> None:
        """Keys come again and again; every fifth record is a tombstone."""
        sender = Producer({"bootstrap.servers": desk.kafka.bootstrap})
        for number in numbers:
            key, value = b"%d" % (number % 7), None if number % 5 == 0 else f"value {number}"
            sender.produce(desk.topic, value, key, partition=number % 7 % 2)
            wanted.pop(key, None)
            if value is not None:
                wanted[key] = value
        assert sender.flush(60) == 0

    def merged() -> dict[bytes, str]:
        rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        assert len({row["key"] for row in rows}) == len(rows)
        return {row["key"]: row["value"] for row in rows}

    change(range(100))
    desk.said(*command)
    assert merged() == wanted, "after several rounds"
    change(range(100, 130))
    real = MergedDelta.commit

    def killed(self: MergedDelta, *arguments: Any) -> None:
        """Once the round is merged, and before the manifest says so."""
        real(self, *arguments)
        raise Killed

    with monkeypatch.context() as moment:
        moment.setattr(MergedDelta, "commit", killed)
        with pytest.raises(Killed):
            desk.said(*command)
    assert merged() == wanted
    version = DeltaTable(str(table)).version()
    assert "has everything already" in desk.said(*command)
    assert (merged(), DeltaTable(str(table)).version()) == (wanted, version), "it is not merged again"
    change(range(130, 140))
    desk.said(*command)
    assert merged() == wanted
    assert list((table / "_kunicorn" / "changes").iterdir()) == []
