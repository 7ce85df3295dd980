"""A Delta table that an export writes to."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.handler.config import Decoding
from kunicorn.pipeline.export import _settled
from kunicorn.pipeline.lake.columns import Form
from kunicorn.pipeline.lake.files import NO_DATE, LakeFile, PartitionedFiles, file_name, partitioning
from kunicorn.pipeline.lake.tables import Committed, DeltaLake, MergedDelta, NotCommitted
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory, StoreFailed
from kunicorn.positions import OffsetRange, TopicPartition

FILES = [LakeFile("date=2026-01-01/a.parquet", 100, 7)]
ENDS = {TopicPartition("orders", 0): 7}
ROWS = Form().columns(Decoding())
WHOLE = OffsetRange("orders", 0, 0, 7)


def message(offset: int, time_ms: int) -> Message:
    return Message(topic="orders", partition=3, offset=offset, value=b"v", timestamp=(1, time_ms))


def lake(place: Path) -> DeltaLake:
    made = DeltaLake(Directory(str(place)), SCHEMA, partitioning("day"))
    made.open()
    return made


def test_a_round_is_committed_once_whoever_repeats_it(tmp_path: Path) -> None:
    for _ in range(2):
        lake(tmp_path).commit(1, FILES, ENDS)
    assert lake(tmp_path).committed().rounds == 1
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


@pytest.mark.parametrize(
    ("by", "told"), [([], "nothing"), (["topic", "date"], "topic, date"), (["topic"], "topic")], ids=str
)
def test_a_table_of_other_partitions_is_refused_as_its_readers_would_have_null(
    tmp_path: Path, by: list[str], told: str
) -> None:
    """As somebody has made it beforehand."""
    deltalake.DeltaTable.create(str(tmp_path), pa.schema([*SCHEMA, pa.field("date", pa.date32())]), partition_by=by)
    with pytest.raises(ConfigError, match=f"is partitioned by {told}, and not by date: name another directory"):
        lake(tmp_path)


def test_a_table_with_a_column_that_records_do_not_have_is_refused_unless_that_may_be_null(tmp_path: Path) -> None:
    """Nobody could read the table any more once it had a file without that column."""
    for may_be_null in (True, False):
        besides = [pa.field("date", pa.date32()), pa.field("source", pa.string(), nullable=may_be_null)]
        place = tmp_path / str(may_be_null)
        deltalake.DeltaTable.create(str(place), pa.schema([*SCHEMA, *besides]), partition_by=["date"])
    lake(tmp_path / "True")
    with pytest.raises(ConfigError, match="has a column 'source' that may not be null, and records have none"):
        lake(tmp_path / "False")


@pytest.mark.parametrize(
    ("column", "rule", "why"),
    [
        ("offset", {"delta.invariants": '{"expression": {"expression": "offset > 100"}}'}, "an invariant of 'offset'"),
        ("year", {"delta.generationExpression": "YEAR(timestamp)"}, "a column 'year' that is generated"),
        ("date", {"delta.generationExpression": "CAST(timestamp AS DATE)"}, None),
    ],
)
def test_a_table_with_rules_for_its_rows_is_refused_as_nobody_looks_whether_the_records_keep_to_them(
    tmp_path: Path, column: str, rule: dict[str, str], why: str | None
) -> None:
    besides = [pa.field("date", pa.date32()), pa.field("year", pa.int32())]
    deltalake.DeltaTable.create(str(tmp_path), pa.schema([*SCHEMA, *besides]), partition_by=["date"])
    log = tmp_path / "_delta_log"
    (told,) = (each for each in map(json.loads, (log / f"{0:020}.json").open()) if "metaData" in each)
    schema = json.loads(told["metaData"]["schemaString"])
    for field in schema["fields"]:
        field["metadata"] = rule if field["name"] == column else {}
    told["metaData"]["schemaString"] = json.dumps(schema)
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, (protocol, told))))
    if why is None:
        lake(tmp_path).commit(1, [written(tmp_path, "date=2026-01-01")], ENDS)
        return
    with pytest.raises(ConfigError, match=f"has {why}"):
        lake(tmp_path)


def test_a_table_that_was_given_a_constraint_takes_no_file_that_nobody_has_looked_through(tmp_path: Path) -> None:
    lake(tmp_path).commit(1, [written(tmp_path, "date=2026-01-01")], ENDS)
    deltalake.DeltaTable(str(tmp_path)).alter.add_constraint({"of_now": "offset > 5"})
    with pytest.raises(ConfigError, match="has the constraint of_now, by which an export does not look at its records"):
        lake(tmp_path)


def test_a_table_that_an_engine_alters_amid_an_export_takes_no_round_that_would_be_refused_by_the_next_one(
    tmp_path: Path,
) -> None:
    schema = pa.schema([*SCHEMA, pa.field("date", pa.date32())])
    alterations: dict[str, Callable[[Path], object]] = {
        "has the constraint of_now": lambda place: deltalake.DeltaTable(place).alter.add_constraint({"of_now": "1=1"}),
        "has another name for offset": lambda place: map_columns(place, "name", "offset"),
        "is partitioned by nothing": lambda place: deltalake.DeltaTable.create(place, schema, mode="overwrite"),
    }
    for number, (why, alter) in enumerate(alterations.items()):
        place = tmp_path / str(number)
        opened = lake(place)
        alter(place)
        with pytest.raises(ConfigError, match=why):
            opened.commit(1, [written(place, "date=2026-01-01")], ENDS)
        assert deltalake.DeltaTable(place).to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("renamed", [None, "offset", "headers.value"])
def test_a_table_that_has_other_names_in_its_files_is_refused_as_its_readers_would_have_null(
    tmp_path: Path, renamed: str | None
) -> None:
    """Column mapping, as an engine turns it on; whatever is added from then on has such a name."""
    lake(tmp_path)
    map_columns(tmp_path, "name", renamed)
    if renamed is None:
        lake(tmp_path).commit(1, [written(tmp_path, "date=2026-01-01")], ENDS)
        assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()["offset"].to_pylist() == [6]
        return
    with pytest.raises(ConfigError, match=rf"has another name for {renamed} in its files \(delta.columnMapping.mode\)"):
        lake(tmp_path)


def test_a_table_that_finds_columns_by_numbers_is_refused_unless_rows_are_merged_by_key(tmp_path: Path) -> None:
    lake(tmp_path / "rows")
    MergedDelta(Directory(str(tmp_path / "keys")), SCHEMA).open()
    for each in tmp_path.iterdir():
        map_columns(each, "id", "offset")
    with pytest.raises(ConfigError, match="finds columns by numbers"):
        lake(tmp_path / "rows")
    MergedDelta(Directory(str(tmp_path / "keys")), SCHEMA).open()


@pytest.mark.parametrize("kind", ["rows", "keys"])
@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        (["rowTracking", "domainMetadata"], [], "RowTracking"),
        (["clustering", "domainMetadata"], [], "ClusteredTable"),
        (["deletionVectors", "v2Checkpoint"], ["deletionVectors", "v2Checkpoint"], None),
    ],
)
def test_a_table_with_features_that_the_library_does_not_write_is_refused_before_a_rounds_tasks(
    tmp_path: Path, writer: list[str], reader: list[str], why: str | None, kind: str
) -> None:
    """As engines turn them on, by themselves some."""

    def opened() -> None:
        target = Directory(str(tmp_path))
        (MergedDelta(target, SCHEMA) if kind == "keys" else DeltaLake(target, SCHEMA, partitioning("day"))).open()

    opened()
    versions: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7, "writerFeatures": writer}
    protocol = {"protocol": versions | ({"readerFeatures": reader} if reader else {})}
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps(protocol))
    if why is None:
        opened()
        return
    with pytest.raises(
        ConfigError, match=rf"cannot be written by deltalake [\d.]+: Unsupported table features .*{why}"
    ):
        opened()
    assert deltalake.DeltaTable(str(tmp_path)).version() == 1, "nothing is written there"


def map_columns(place: Path, mode: str, renamed: str | None) -> None:
    """Turn column mapping on, as engines do: no field has another name at first, but for one that was added since."""
    log = place / "_delta_log"
    (told,) = (each for each in map(json.loads, (log / f"{0:020}.json").open()) if "metaData" in each)
    schema = json.loads(told["metaData"]["schemaString"])
    number = count(1)

    def enter(fields: list[dict[str, Any]], above: str) -> None:
        for field in fields:
            path, kind = f"{above}{field['name']}", field["type"]
            name = "col-5f4" if path == renamed else field["name"]
            field["metadata"] = {"delta.columnMapping.id": next(number), "delta.columnMapping.physicalName": name}
            if isinstance(kind, dict):
                enter(kind["elementType"]["fields"], f"{path}.")

    enter(schema["fields"], "")
    told["metaData"]["schemaString"] = json.dumps(schema)
    told["metaData"]["configuration"] = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "20"}
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, (protocol, told))))


def test_a_table_has_the_records_of_a_topic_whose_name_begins_with_an_underscore(tmp_path: Path) -> None:
    name = file_name(OffsetRange("_orders", 0, 0, 1), None)
    lake(tmp_path).commit(1, [written(tmp_path, "date=2026-01-01", name)], ENDS)
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()["offset"].to_pylist() == [6]


def written(place: Path, path: str, name: str = "a.parquet") -> LakeFile:
    """A file of one record, there."""
    (place / path).mkdir(parents=True)
    file = place / path / name
    pq.write_table(pa.Table.from_pylist([{"topic": "orders", "partition": 0, "offset": 6}], schema=SCHEMA), file)
    return LakeFile(f"{path}/{name}", file.stat().st_size, 1)


def test_a_table_whose_store_is_away_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: deltalake.DeltaTable) -> None:
        raise deltalake.exceptions.DeltaError("503 Slow Down")

    made = lake(tmp_path)
    monkeypatch.setattr(deltalake.DeltaTable, "update_incremental", away)
    with pytest.raises(StoreFailed, match=f"{tmp_path} cannot be used as a Delta table: 503 Slow Down"):
        made.commit(1, FILES, ENDS)
    with pytest.raises(StoreFailed, match="cannot be used as a Delta table: 503 Slow Down"):
        lake(tmp_path)


def test_a_round_that_another_export_commits_in_the_same_moment_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lake(tmp_path), lake(tmp_path)
    first.commit(1, FILES, ENDS)
    # It has looked for the round before the first one committed it.
    monkeypatch.setattr(DeltaLake, "committed", lambda self: Committed())
    with pytest.raises(NotCommitted, match=r"does not take round 1: .*then export again: it goes on where it ended"):
        second.commit(1, FILES, ENDS)


@pytest.mark.parametrize("kind", ["rows", "keys"])
def test_a_round_of_the_same_number_that_ends_elsewhere_is_not_taken_for_ones_own(tmp_path: Path, kind: str) -> None:
    """Of two drivers, the one that commits second: its records are not in the table."""
    target = Directory(str(tmp_path))
    first, second = (
        MergedDelta(target, SCHEMA) if kind == "keys" else DeltaLake(target, SCHEMA, partitioning("day")) for _ in "ab"
    )
    first.open()
    second.open()
    first.commit(1, [], {TopicPartition("orders", 0): 5})
    with pytest.raises(NotCommitted, match=r"committed another one of that number\..*export again: it goes on"):
        second.commit(1, FILES, ENDS)
    first.commit(1, [], {TopicPartition("orders", 0): 5})


def fails(monkeypatch: pytest.MonkeyPatch, *, carried_out: bool) -> None:
    """Commits from here on, whether or not the table takes them."""
    write = deltalake.DeltaTable.create_write_transaction

    def answered(*arguments: Any, **options: Any) -> None:
        if carried_out:
            write(*arguments, **options)
        raise deltalake.exceptions.DeltaError("the connection was reset")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", answered)


def test_a_round_that_the_table_took_though_its_answer_was_lost_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lake(tmp_path)
    fails(monkeypatch, carried_out=True)
    made.commit(1, FILES, ENDS)
    assert made.committed().rounds == 1


def test_a_round_whose_answer_was_lost_is_committed_also_where_an_engine_has_written_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, engine = lake(tmp_path), deltalake.DeltaTable(str(tmp_path))
    write = deltalake.DeltaTable.create_write_transaction

    def answered(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        engine.update_incremental()
        engine.alter.add_columns([deltalake.Field("note", deltalake.schema.PrimitiveType("string"))])
        raise deltalake.exceptions.DeltaError("the connection was reset")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", answered)
    made.commit(1, FILES, ENDS)


def test_a_round_that_did_not_come_to_the_table_is_told_of_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lake(tmp_path)
    fails(monkeypatch, carried_out=False)
    with pytest.raises(NotCommitted, match=r"the connection was reset\. Nothing of it is in the table; .*export again"):
        made.commit(1, FILES, ENDS)


def test_a_round_of_which_the_store_tells_nothing_any_more_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: deltalake.DeltaTable) -> None:
        raise deltalake.exceptions.DeltaError("503 Slow Down")

    def answered(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(deltalake.DeltaTable, "update_incremental", away)
        raise deltalake.exceptions.DeltaError("the connection was reset")

    made = lake(tmp_path)
    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", answered)
    with pytest.raises(
        NotCommitted, match=r"Whether it is in the table is not known \(.*503 Slow Down\); .*export again"
    ):
        made.commit(1, FILES, ENDS)


@pytest.mark.parametrize("theirs", [[(1, {TopicPartition("orders", 0): 5})], [(1, ENDS), (2, ENDS)]])
def test_a_round_of_another_export_is_not_taken_for_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: list[tuple[int, dict[TopicPartition, int]]]
) -> None:
    made, other = lake(tmp_path), lake(tmp_path)
    write = deltalake.DeltaTable.create_write_transaction

    def overtaken(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", write)
        for number, ends in theirs:
            other.commit(number, FILES, ends)
        write(*arguments, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", overtaken)
    with pytest.raises(NotCommitted, match=r"(?s)does not take round 1: .*\. Another export has committed it; .*again"):
        made.commit(1, FILES, ENDS)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ([("id", pa.string())], "value.id was int64, and is string"),
        ([("id", pa.int64()), ("region", pa.string())], "value.region is new"),
        ([("region", pa.string())], "value.id is gone; value.region is new"),
    ],
)
def test_a_table_whose_columns_are_of_other_types_is_refused_until_it_is_altered_alike(
    tmp_path: Path, now: list[tuple[str, pa.DataType]], why: str
) -> None:
    typed(tmp_path, [("id", pa.int64())]).open()
    changed = typed(tmp_path, now)
    with pytest.raises(ConfigError, match=f"has other columns than the records: {why}. Give the schema of --columns"):
        changed.open()
    altered = pa.schema([*changed.file_schema, ("date", pa.date32()), ("note", pa.string())])
    deltalake.DeltaTable.create(str(tmp_path), altered, mode="overwrite", partition_by=["date"])
    changed.open()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([("id", pa.uint8())], "value.id is of uint8, which readers of Delta tables lack; choose int16"),
        ([pa.field("id", pa.uint16(), nullable=False)], "value.id is of uint16, .*; choose int32"),
        ([("ids", pa.list_(pa.uint32()))], r"value.ids\[\] is of uint32, .*; choose int64"),
        ([("by", pa.map_(pa.string(), pa.uint64()))], r"value.by.value is of uint64, .*; choose decimal128\(20, 0\)"),
        ([("at", pa.timestamp("ns", "UTC"))], r"value.at is of timestamp\[ns, tz=UTC\], .*; choose timestamp\('us'"),
        ([("at", pa.time64("us"))], r"value.at is of time64\[us\], .*; choose another"),
    ],
)
def test_types_that_readers_of_delta_lack_are_refused_before_there_is_a_table(
    tmp_path: Path, fields: list[Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=f"--columns: {why}"):
        typed(tmp_path, fields).open()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int16(), 255), (pa.int32(), 65_535), (pa.int64(), 2**32 - 1), (pa.decimal128(20, 0), Decimal(2**64 - 1)),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC)), (pa.large_string(), "x"), (pa.float32(), 0.5),
        (pa.list_(pa.date32()), [date(2026, 1, 1)]), (pa.map_(pa.string(), pa.bool_()), [("a", True)]),
    ],
)  # fmt: skip
def test_what_is_written_by_other_types_can_be_read(tmp_path: Path, kind: pa.DataType, value: Any) -> None:
    made = typed(tmp_path, [("id", kind)])
    made.open()
    (tmp_path / "date=2026-01-01").mkdir()
    file = tmp_path / "date=2026-01-01" / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"offset": 6, "value": {"id": value}}], schema=made.file_schema), file)
    made.commit(1, [LakeFile("date=2026-01-01/a.parquet", file.stat().st_size, 1)], ENDS)
    (found,) = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["value"]).to_pylist()
    assert found == {"value": {"id": value}}


def test_a_table_that_was_dropped_since_is_not_gone_on_with(tmp_path: Path) -> None:
    first = lake(tmp_path)
    first.commit(1, FILES, ENDS)
    first.commit(2, [], ENDS)
    DeltaLake(Directory(str(tmp_path)), SCHEMA, partitioning("day")).open(2)
    shutil.rmtree(tmp_path / "_delta_log")
    for what in (
        DeltaLake(Directory(str(tmp_path)), SCHEMA, partitioning("day")),
        MergedDelta(Directory(str(tmp_path)), SCHEMA),
    ):
        with pytest.raises(
            ConfigError, match=r"is not there any more, of the 2 that were exported to it: .*another dir"
        ):
            what.open(2)
    assert not (tmp_path / "_delta_log").exists()
    lake(tmp_path)
    with pytest.raises(ConfigError, match="has 0 rounds, of the 2 that were exported to it"):
        DeltaLake(Directory(str(tmp_path)), SCHEMA, partitioning("day")).open(2)


def test_a_table_that_forgets_numbers_has_an_exports_for_as_long_as_it_says(tmp_path: Path) -> None:
    """Spark forgets one that tells no time at once."""
    schema = pa.schema([*SCHEMA, pa.field("date", pa.date32())])
    kept = {"delta.setTransactionRetentionDuration": "interval 30 days"}
    deltalake.DeltaTable.create(tmp_path, schema, partition_by=["date"], configuration=kept)
    lake(tmp_path).commit(1, FILES, ENDS)
    log = tmp_path / "_delta_log" / f"{1:020}.json"
    actions = list(map(json.loads, log.open()))
    told = [each["txn"] for each in actions if "txn" in each]
    assert len(told) == 2
    for each in told:
        assert time.time() - 60 < each["lastUpdated"] / 1000 <= time.time()
        each["lastUpdated"] -= 31 * 86_400_000
    lake(tmp_path).open(done=1)
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(
        ConfigError, match=r"made anew, or forgets .* delta.setTransactionRetentionDuration, interval 30"
    ):
        lake(tmp_path).open(done=1)


@pytest.mark.parametrize("state", [RunState((WHOLE,), rounds=1), RunState((WHOLE,), underway=(WHOLE,))])
def test_an_older_manifest_than_the_tables_has_nothing_exported_again(tmp_path: Path, state: RunState) -> None:
    """As one that was restored from a copy."""
    first = lake(tmp_path)
    for number in (1, 2):
        first.commit(number, FILES, ENDS)
    with pytest.raises(ConfigError, match=rf"has 2 rounds, and the newest manifest .* counts {state.rounds}: it is an"):
        _settled(lake(tmp_path), state)


def test_a_round_underway_is_not_settled_by_another_one_of_its_number(tmp_path: Path) -> None:
    lake(tmp_path).commit(1, FILES, {WHOLE.tp: 5})
    with pytest.raises(ConfigError, match="has a round 1 that ends elsewhere than the one underway in the newest mani"):
        _settled(lake(tmp_path), RunState((WHOLE,), underway=(WHOLE,)))
    pieces = [WHOLE._replace(stop=2), WHOLE._replace(start=2, stop=5)]
    state = _settled(lake(tmp_path), RunState((WHOLE,), underway=pieces[::-1]))
    assert (state.rounds, state.positions, state.underway) == (1, {WHOLE.tp: 5}, ())


def test_a_table_may_have_null_where_the_records_have_none(tmp_path: Path) -> None:
    typed(tmp_path, [("id", pa.int64())]).open()
    typed(tmp_path, [pa.field("id", pa.int64(), nullable=False)]).open()


def typed(place: Path, fields: list[Any]) -> DeltaLake:
    schema = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", pa.struct(fields)))
    return DeltaLake(Directory(str(place)), schema, partitioning("day"))


def test_readers_choose_files_by_the_least_and_the_largest_values(tmp_path: Path) -> None:
    """Of what tasks have written, without looking into the files; a time is told in milliseconds, and never cuts one
    off.
    """
    made, target, day_us = lake(tmp_path), Directory(str(tmp_path)), 86_400_000_000
    for number in range(2):
        first = number * 10
        path = f"{{}}/{number}.parquet".format
        with PartitionedFiles(target, path, ROWS, partitioning("day")) as files:
            files.add([message(first, day_us // 1000 + first), message(first + 9, day_us // 1000 + first + 9)])
            made.commit(number + 1, files.close(), ENDS)
    told = deltalake.DeltaTable(str(tmp_path)).get_add_actions(flatten=True)
    found = sorted(pa.table(told).to_pylist(), key=lambda row: row["path"])
    assert [(row["num_records"], row["min.offset"], row["max.offset"]) for row in found] == [(2, 0, 9), (2, 10, 19)]
    for row, first in zip(found, (0, 10), strict=True):
        assert (row["min.topic"], row["max.topic"], row["min.partition"], row["null_count.offset"]) == (
            "orders", "orders", 3, 0,
        )  # fmt: skip
        least, most = (row[name].timestamp() * 1000 for name in ("min.timestamp", "max.timestamp"))
        assert least <= day_us // 1000 + first
        assert most >= day_us // 1000 + first + 9
