"""An Iceberg table that an export writes to, in a catalog of SQLite's.

pyiceberg is imported where it is used: with SQLAlchemy it would take a second of each process that collects tests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.pipeline.export import _Known, _settled
from kunicorn.pipeline.lake.columns import Asked, Form, form_asked
from kunicorn.pipeline.lake.compact import compact
from kunicorn.pipeline.lake.files import NO_DATE, LakeFile, PartitionedFiles, hidden_partitioning
from kunicorn.pipeline.lake.iceberg import ROUND, Catalog, IcebergLake, location
from kunicorn.pipeline.lake.tables import NotCommitted
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange, Offsets, TopicPartition

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

NAME = "shop.orders"
ENDS = {TopicPartition("orders", 0): 7}
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
MOST_MS = (2**63 - 1) // 1000
ORDER = pa.struct(
    [
        ("region", pa.string()), ("count", pa.int64()), ("day", pa.date32()), ("paid", pa.bool_()),
        ("price", pa.float64()),
    ]
)  # fmt: skip
TYPED = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", ORDER))
TEXTS = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", pa.string()))
UNSIGNED = SCHEMA.set(SCHEMA.get_field_index("value"), pa.field("value", pa.struct([("id", pa.uint32())])))


class Place:
    """A catalog, and a directory for its table."""

    def __init__(self, directory: Path) -> None:
        self.catalog = Catalog("test", {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"})
        self.target = Directory(str(directory / "lake"))

    def lake(self, by: str = "day", schema: pa.Schema = SCHEMA, done: int = 0) -> IcebergLake:
        made = IcebergLake(self.catalog, NAME, self.target, schema, by)
        made.open(done)
        return made

    def registered(self) -> SqlCatalog:
        """The catalog, as another reader has it."""
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(self.catalog.name, **self.catalog.properties)

    def table(self) -> Table:
        """As another reader finds it."""
        return self.registered().load_table(NAME)

    def written(self, lake: IcebergLake, name: str, batch: pa.RecordBatch, by: str = "day") -> list[LakeFile]:
        """Files of a task that has these rows."""
        cut = hidden_partitioning(by, typed=True)
        with PartitionedFiles(self.target, lambda part: f"{part}/{name}.parquet", Rows(lake, batch), cut) as files:
            files.add([])
            return files.close()


class Rows:
    """In place of what makes columns of records."""

    def __init__(self, lake: IcebergLake, rows: pa.RecordBatch) -> None:
        self.schema, self._rows = lake.file_schema, rows

    def batch(self, run: Sequence[Message]) -> pa.RecordBatch:
        return self._rows


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rows(*times: int | None, value: Sequence[Any] = (), schema: pa.Schema = SCHEMA, first: int = 0) -> pa.RecordBatch:
    """Records with these times in milliseconds, from the first offset on."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": "orders", "partition": 0, "offset": first + at, "key": b"k", "timestampType": 0,
                "timestamp": None if ms is None else ms * 1000, "headers": [{"key": "n", "value": b"%d" % at}],
                "value": value[at] if value else b"v",
            }
            for at, ms in enumerate(times)
        ],
        schema=schema,
    )  # fmt: skip


def read(place: Place, **scan: Any) -> list[dict[str, Any]]:
    """Rows by offset, as pyiceberg reads them."""
    found: list[dict[str, Any]] = place.table().scan(**scan).to_arrow().sort_by("offset").to_pylist()
    return found


def test_rows_are_read_as_they_were_written_with_the_columns_and_types_of_every_export(place: Place) -> None:
    lake, batch = place.lake(), rows(DAY_MS, DAY_MS + 1, 2 * DAY_MS)
    lake.commit(1, place.written(lake, "a", batch), ENDS)
    assert read(place) == batch.to_pylist()
    table = place.table()
    assert [field.name for field in table.schema().fields] == SCHEMA.names
    assert str(table.schema().find_type("timestamp")) == "timestamptz"
    assert str(table.schema().find_type("offset")) == "long"
    assert [str(field.transform) for field in table.spec().fields] == ["day"]


def test_a_round_is_committed_once_whoever_repeats_it(place: Place) -> None:
    for attempt in "ab":
        lake = place.lake()
        lake.commit(1, place.written(lake, attempt, rows(DAY_MS, DAY_MS)), ENDS)
    assert len(read(place)) == 2
    assert place.lake().committed().rounds == 1
    assert [each.summary[ROUND] for each in place.table().snapshots() if each.summary] == ["1"]


def test_a_round_without_a_record_is_counted(place: Place) -> None:
    lake = place.lake()
    lake.commit(1, [], ENDS)
    assert place.lake().committed().rounds == 1
    lake.commit(2, place.written(lake, "a", rows(DAY_MS)), ENDS)
    assert len(read(place)) == 1


def test_a_round_of_the_same_number_that_ends_elsewhere_is_not_taken_for_ones_own(place: Place) -> None:
    """Of two drivers, the one that commits second: its records are not in the table."""
    first, second = place.lake(), place.lake()
    first.commit(1, place.written(first, "a", rows(DAY_MS)), {TopicPartition("orders", 0): 1})
    with pytest.raises(NotCommitted, match=r"committed another one of that number\..*export again: it goes on"):
        second.commit(1, place.written(second, "b", rows(DAY_MS, DAY_MS)), ENDS)
    assert len(read(place)) == 1
    whole = OffsetRange("orders", 0, 0, 7)
    with pytest.raises(ConfigError, match="has a round 1 that ends elsewhere than the one underway in the newest mani"):
        _settled(place.lake(), RunState((whole,), underway=(whole,)))


def test_two_drivers_that_commit_a_round_in_the_same_moment_do_not_double_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second has looked for the round before the first has committed it."""
    first, second = place.lake(), place.lake()
    files = place.written(second, "b", rows(DAY_MS))
    real = IcebergLake._append

    def overtaken(self: IcebergLake, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        if self is second:
            first.commit(1, place.written(first, "a", rows(DAY_MS)), ENDS)
        real(self, number, files, ends)

    monkeypatch.setattr(IcebergLake, "_append", overtaken)
    second.commit(1, files, ENDS)
    assert len(read(place)) == 1


def test_a_writer_of_other_rows_beside_is_no_reason_to_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = place.lake()
    files = place.written(lake, "a", rows(DAY_MS))
    other = [place.written(lake, "b", rows(DAY_MS, first=100))]
    real = IcebergLake._append

    def beside(self: IcebergLake, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        while other:
            add(place, lake, other.pop())
        real(self, number, files, ends)

    monkeypatch.setattr(IcebergLake, "_append", beside)
    lake.commit(1, files, ENDS)
    assert [row["offset"] for row in read(place)] == [0, 100]


def add(place: Place, lake: IcebergLake, files: Sequence[LakeFile]) -> None:
    """As another writer does, who knows of no rounds."""
    with place.table().transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for each in files:
            append.append_data_file(lake._added(each))


def test_a_round_that_a_catalog_has_taken_and_then_refuses_can_be_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose answer is lost asks again, as boto3 does of Glue: the table is not as it was before, by itself."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    commit = SqlCatalog.commit_table

    def asks_twice(*asked: Any, **named: Any) -> None:
        commit(*asked, **named)
        raise CommitFailedException("the table was changed meanwhile")

    lake = place.lake()
    files = place.written(lake, "a", rows(DAY_MS))
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", asks_twice)
        lake.commit(1, files, ENDS)
    assert len(read(place)) == 1
    lake.commit(2, place.written(lake, "b", rows(DAY_MS, first=1)), ENDS)
    assert len(read(place)) == 2


def test_a_table_that_never_takes_the_round_ends_the_export_in_words(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    lake = place.lake()

    def refused(self: IcebergLake, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        raise CommitFailedException("the branch main has changed")

    def lost(self: IcebergLake, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(IcebergLake, "_append", refused)
    with pytest.raises(NotCommitted, match="others have moved it on 10 times"):
        lake.commit(1, [], ENDS)
    monkeypatch.setattr(IcebergLake, "_append", lost)
    with pytest.raises(NotCommitted, match=r"ConnectionError: reset by peer\. Export again: it finds out"):
        lake.commit(1, [], ENDS)


def test_the_round_is_known_after_its_snapshots_have_expired(place: Place) -> None:
    lake = place.lake()
    for number in (1, 2):
        lake.commit(number, place.written(lake, str(number), rows(DAY_MS, first=number)), ENDS)
    add(place, lake, place.written(lake, "other", rows(DAY_MS, first=100)))
    table = place.table()
    gone = [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    assert place.lake().committed().rounds == 2
    assert len(place.table().snapshots()) == 1
    assert [row["offset"] for row in read(place)] == [1, 2, 100]


@pytest.mark.parametrize(
    ("by", "times", "partitions", "paths"),
    [
        ("day", [0, DAY_MS - 1, DAY_MS], [0, 1], ["1970-01-01", "1970-01-02"]),
        ("hour", [0, HOUR_MS, 25 * HOUR_MS], [0, 1, 25], ["1970-01-01-00", "1970-01-01-01", "1970-01-02-01"]),
        # No calendar of Python's has them, and yet they are two days; none is the third.
        (
            "day",
            [MOST_MS, MOST_MS - DAY_MS, None],
            [106_751_990, 106_751_991, None],
            ["106751990", "106751991", NO_DATE],
        ),
    ],
)
def test_each_file_has_rows_of_one_day_or_hour_exactly(
    place: Place, by: str, times: list[int | None], partitions: list[int | None], paths: list[str]
) -> None:
    lake = place.lake(by)
    files = place.written(lake, "a", rows(*times), by)
    lake.commit(1, files, ENDS)
    assert sorted(file.path for file in files) == [f"data/timestamp_{by}={path}/a.parquet" for path in sorted(paths)]
    table = place.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = [each for one in snapshot.manifests(table.io) for each in one.fetch_manifest_entry(table.io)]
    assert sorted(str(each.data_file.partition[0]) for each in entries) == sorted(map(str, partitions))


@pytest.mark.parametrize(
    ("by", "values", "partitions"),
    [
        ("value.region", ["eu/west", "", NO_DATE, "50% #?", "eu/west", None], ["eu/west", "", NO_DATE, "50% #?", None]),
        ("value.count", [3, -3, None, 3], [3, -3, None]),
        ("value.day", [date(2026, 1, 2), date(1969, 12, 31)], [date(2026, 1, 2), date(1969, 12, 31)]),
        ("value.paid", [True, False], [True, False]),
    ],
)
def test_a_fields_partitions_have_its_values_exactly(
    place: Place, by: str, values: list[Any], partitions: list[Any]
) -> None:
    from pyiceberg.expressions import EqualTo

    field = by.removeprefix("value.")
    lake = place.lake(by, TYPED)
    structs = [dict.fromkeys(ORDER.names) | {field: each} for each in values]
    batch = rows(*[DAY_MS] * len(values), value=structs, schema=TYPED)
    lake.commit(1, place.written(lake, "a", batch, by), ENDS)
    assert read(place) == batch.to_pylist()
    found = [row["partition"][field] for row in place.table().inspect.partitions().to_pylist()]
    assert sorted(map(str, found)) == sorted(map(str, partitions))
    wanted = [at for at, each in enumerate(values) if each == values[0]]
    literal = values[0].isoformat() if field == "day" else values[0]
    assert [row["offset"] for row in read(place, row_filter=EqualTo(term=by, value=literal))] == wanted


def test_a_date_that_no_calendar_has_is_a_partition_of_its_own(place: Place) -> None:
    """As numbers in JSON may be: seconds since 1970 in a field of days."""
    lake = place.lake("value.day", TYPED)
    days = [1_764_000_000, 5_000_000, -800_000, 20_000]
    structs = [dict.fromkeys(ORDER.names) for _ in days]
    batch = rows(*[DAY_MS] * len(days), value=structs, schema=TYPED)
    values = batch.column("value")
    columns = [values.field(at) for at in range(values.type.num_fields)]
    columns[ORDER.get_field_index("day")] = pa.array(days, pa.int32()).view(pa.date32())
    batch = batch.set_column(
        batch.schema.get_field_index("value"), "value", pa.StructArray.from_arrays(columns, fields=list(ORDER))
    )
    lake.commit(1, place.written(lake, "a", batch, "value.day"), ENDS)
    table = place.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = [each for one in snapshot.manifests(table.io) for each in one.fetch_manifest_entry(table.io)]
    assert sorted(each.data_file.partition[0] for each in entries) == sorted(days)


def test_a_value_without_any_field_has_the_partition_of_null(place: Place) -> None:
    lake = place.lake("value.region", TYPED)
    batch = rows(DAY_MS, value=[None], schema=TYPED)
    lake.commit(1, place.written(lake, "a", batch, "value.region"), ENDS)
    assert read(place) == batch.to_pylist()


def test_readers_choose_files_by_the_least_and_the_largest_values(place: Place) -> None:
    from pyiceberg.expressions import EqualTo, GreaterThanOrEqual

    lake = place.lake()
    for number in range(3):
        batch = rows(DAY_MS + number, DAY_MS + number, first=number * 2)
        lake.commit(number + 1, place.written(lake, str(number), batch), ENDS)
    assert len([*place.table().scan().plan_files()]) == 3
    for condition in (
        GreaterThanOrEqual(term="offset", value=4),
        EqualTo(term="timestamp", value="1970-01-02T00:00:00.002+00:00"),
    ):
        assert len([*place.table().scan(row_filter=condition).plan_files()]) == 1
        assert [row["offset"] for row in read(place, row_filter=condition)] == [4, 5]
    assert len([*place.table().scan(row_filter=EqualTo(term="offset", value=1)).plan_files()]) == 1
    for topic in ("refunds", "clicks"):
        assert [*place.table().scan(row_filter=EqualTo(term="topic", value=topic)).plan_files()] == []
    assert [*place.table().scan(row_filter=EqualTo(term="partition", value=1)).plan_files()] == []


def test_columns_that_a_table_was_given_later_are_null(place: Place) -> None:
    from pyiceberg.types import StringType

    place.lake()
    with place.table().update_schema() as update:
        update.add_column("note", StringType())
    lake = place.lake()
    lake.commit(1, place.written(lake, "a", rows(DAY_MS)), ENDS)
    (row,) = read(place)
    assert (row["offset"], row["note"]) == (0, None)


def test_what_an_engine_says_and_allows_of_a_tables_fields_does_not_end_its_export(place: Place) -> None:
    """A comment, null where the records have none, and a field more."""
    from pyiceberg.types import StringType

    strict = pa.field("value", pa.struct([pa.field("id", pa.int64(), nullable=False)]))
    schema = SCHEMA.set(SCHEMA.get_field_index("value"), strict)
    place.lake(schema=schema)
    with place.table().update_schema() as update:
        update.update_column(("value", "id"), required=False, doc="the shop's number")
        update.update_column(("headers", "element", "value"), doc="of the producer")
        update.add_column(("value", "note"), StringType())
    lake = place.lake(schema=schema)
    lake.commit(1, place.written(lake, "a", rows(DAY_MS, value=[{"id": 7}], schema=schema)), ENDS)
    (row,) = read(place)
    assert row["value"] == {"id": 7, "note": None}


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("value", "column 'value' of the Iceberg table shop.orders is required binary, and the records' is binary"),
        ("ingested", "column 'ingested' of the Iceberg table shop.orders is required string, .* records' is missing"),
        ("topic", None),
    ],
)
def test_a_table_that_requires_what_records_may_lack_is_refused(place: Place, column: str, why: str | None) -> None:
    """Its readers would meet a null where none may be."""
    from pyiceberg.types import StringType

    place.lake()
    with place.table().update_schema(allow_incompatible_changes=True) as update:
        if column in SCHEMA.names:
            update.update_column(column, required=True)
        else:
            update.add_column(column, StringType(), required=True)
    if why is None:
        place.lake()
        return
    with pytest.raises(ConfigError, match=why):
        place.lake()


@pytest.mark.parametrize(
    ("by", "schema", "why"),
    [
        ("hour", SCHEMA, r"is partitioned by timestamp_day \(day\), and not by timestamp_hour \(hour\)"),
        ("day", TEXTS, "column 'value' of the Iceberg table shop.orders is binary, and the records' is string"),
        ("day", TYPED, "has no column 'value.region'"),
        ("day", SCHEMA.append(pa.field("more", pa.int64())), "has no column 'more'"),
    ],
)
def test_a_table_of_another_form_is_refused(place: Place, by: str, schema: pa.Schema, why: str) -> None:
    place.lake()
    with pytest.raises(ConfigError, match=why):
        place.lake(by, schema)


def test_a_table_of_a_version_that_the_library_does_not_write_is_refused_before_a_rounds_tasks(place: Place) -> None:
    """As an engine raises it."""
    place.lake()
    metadata = Path(place.table().metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"format-version": 3, "next-row-id": 0}))
    with pytest.raises(
        ConfigError, match=r"shop.orders is of format version 3, and pyiceberg [\d.]+ writes those up to 2: "
    ):
        place.lake()


def test_a_table_whose_partitions_are_changed_amid_an_export_takes_no_file_of_the_former_ones(place: Place) -> None:
    """Its day would be taken for an hour of 1970, and no query by time would find its rows."""
    from pyiceberg.transforms import HourTransform

    lake = place.lake()
    files = place.written(lake, "a", rows(400 * DAY_MS))
    with place.table().update_spec() as update:
        update.remove_field("timestamp_day")
        update.add_field("timestamp", HourTransform(), "timestamp_hour")
    with pytest.raises(ConfigError, match=r"is partitioned by timestamp_hour \(hour\), and not by timestamp_day"):
        lake.commit(1, files, ENDS)
    assert read(place) == []


def test_a_round_whose_column_is_made_anew_amid_an_export_is_written_again(place: Place) -> None:
    """Its files have the former column's number, under which readers of the table look for nothing."""
    from pyiceberg.types import StringType

    lake = place.lake(schema=TEXTS)
    files = place.written(lake, "a", rows(DAY_MS, value=["v"], schema=TEXTS))
    with place.table().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")
    with place.table().update_schema() as update:
        update.add_column("value", StringType())
    with pytest.raises(NotCommitted, match="a column of its files was dropped meanwhile, and made anew"):
        lake.commit(1, files, ENDS)
    lake = place.lake(schema=TEXTS)
    lake.commit(1, place.written(lake, "b", rows(DAY_MS, value=["v"], schema=TEXTS)), ENDS)
    assert [row["value"] for row in read(place)] == ["v"]


@pytest.mark.parametrize("there", [True, False])
def test_who_may_make_tables_in_a_namespace_need_not_be_allowed_to_make_namespaces(
    place: Place, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """A catalog says that the right is missing before it looks whether there is one already."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import ForbiddenError

    def refuse(*_: object, **__: object) -> None:
        raise ForbiddenError("CREATE_NAMESPACE is missing")

    if there:
        place.registered().create_namespace("shop")
    monkeypatch.setattr(SqlCatalog, "create_namespace", refuse)
    if there:
        assert place.lake().committed().rounds == 0
        return
    with pytest.raises(ConfigError, match="cannot be used: ForbiddenError: CREATE_NAMESPACE is missing"):
        place.lake()


def test_a_table_elsewhere_is_named(place: Place, tmp_path: Path) -> None:
    place.lake()
    place.target = Directory(str(tmp_path / "other"))
    with pytest.raises(ConfigError, match=f"keeps the Iceberg table shop.orders at file://{tmp_path}/lake: export to"):
        place.lake()


@pytest.mark.parametrize(
    ("by", "schema", "why"),
    [
        ("value.price", TYPED, r"--partition-by value.price is of double: choose a text, a whole number"),
        ("value.nobody", TYPED, "the values have no field 'nobody'"),
        ("day", UNSIGNED, r"--columns: value.id is of uint32, for which Iceberg has no type"),
    ],
)
def test_types_that_iceberg_does_not_have_are_refused_before_there_is_a_table(
    place: Place, by: str, schema: pa.Schema, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        place.lake(by, schema)
    assert not Path(place.target.url).exists()


def test_a_table_that_was_dropped_and_made_anew_is_not_gone_on_with_as_if_it_had_everything(place: Place) -> None:
    lake = place.lake()
    lake.commit(1, place.written(lake, "a", rows(DAY_MS)), ENDS)
    whole = OffsetRange("orders", 0, 0, 1)
    _Known(place.target, Form(iceberg=NAME), SCHEMA).save(RunState((whole,), rounds=1))
    place.registered().drop_table(NAME)
    for make in (False, True):
        with pytest.raises(ConfigError, match=r"has 0 rounds of the 1 that were exported .* dropped, or made anew"):
            IcebergLake(place.catalog, NAME, place.target, SCHEMA, "day").open(1, make=make)
    assert not place.registered().table_exists(NAME), "nor made by that"
    place.lake()
    with pytest.raises(ConfigError, match="has 0 rounds of the 1 that were exported"):
        place.lake(done=1)


def test_a_plan_makes_no_table_and_is_refused_where_the_export_would_be(place: Place) -> None:
    assert not IcebergLake(place.catalog, NAME, place.target, SCHEMA, "day").open(0, make=False)
    assert not place.registered().table_exists(NAME)
    place.lake()
    with pytest.raises(ConfigError, match="is partitioned by"):
        IcebergLake(place.catalog, NAME, place.target, SCHEMA, "hour").open(0, make=False)


def test_a_round_that_is_committed_and_not_in_the_manifest_is_not_repeated(place: Place) -> None:
    lake = place.lake()
    whole = OffsetRange("orders", 0, 0, 1)
    lake.commit(1, place.written(lake, "a", rows(DAY_MS)), {whole.tp: 1})
    state = _settled(place.lake(), RunState((whole,), underway=(whole,)))
    assert (state.rounds, state.positions, state.underway) == (1, {whole.tp: 1}, ())


@pytest.mark.parametrize(
    ("catalog", "why"),
    [
        (Catalog("nowhere", {}), "ValueError: .*see pipeline.iceberg and pipeline.iceberg_catalog"),
        (Catalog("x", {"type": "rest", "uri": "http://127.0.0.1:9/"}), "cannot be used: .*see pipeline.iceberg"),
        (
            Catalog("x", {"type": "sql", "uri": "sqlite:////proc/none/x.db"}),
            "cannot be used: .*unable to open database",
        ),
    ],
)
def test_a_catalog_that_is_not_there_is_told_in_words(tmp_path: Path, catalog: Catalog, why: str) -> None:
    lake = IcebergLake(catalog, NAME, Directory(str(tmp_path)), SCHEMA, "day")
    with pytest.raises(ConfigError, match=why):
        lake.open(0)


def test_no_secret_of_the_environment_is_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyiceberg.catalog
    from pyiceberg.utils.config import Config

    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", "mysql://me:geheim@host/db")
    # pyiceberg has read its environment when it was imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    lake = IcebergLake(Catalog("shop", {}), NAME, Directory(str(tmp_path)), SCHEMA, "day")
    with pytest.raises(ConfigError, match="Could not infer the catalog type from the uri") as told:
        lake.open(0)
    assert "geheim" not in str(told.value)


def test_locations_are_urls(tmp_path: Path) -> None:
    assert location(Directory(str(tmp_path))) == f"file://{tmp_path}"
    assert location(Directory("s3://bucket/orders/")) == "s3://bucket/orders"
    with pytest.raises(ConfigError, match="has a # or a"):
        location(Directory("/tmp/a#b"))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Asked("iceberg"), "--to iceberg: say which table of the catalog, as in --table shop.orders"),
        (Asked("iceberg", table="orders"), "'orders' is no name of a namespace and a table"),
        (Asked("iceberg", table="shop..orders"), "is no name of a namespace and a table"),
        (Asked("delta", table=NAME), "names an Iceberg table: say --to iceberg, too"),
        (Asked("iceberg", table=NAME, merge_by="key"), "pyiceberg reads and writes whole files of it anew"),
        (Asked("avro"), "is none of parquet, delta, iceberg; choose one"),
        (Asked("iceberg", table=NAME, partition_by="value.region"), "say --columns, too"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked: Asked, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        form_asked(None, asked)  # type: ignore[arg-type]


def test_a_target_goes_on_with_the_table_it_was_begun_with(place: Place) -> None:
    _Known(place.target, Form(iceberg=NAME), SCHEMA).save(RunState(()))
    assert _Known(place.target, Form(iceberg=NAME), SCHEMA).read() == RunState(())
    with pytest.raises(ConfigError, match=r"begun with iceberg table shop.orders of .* and this is parquet of"):
        _Known(place.target, Form(), SCHEMA).read()


@pytest.mark.parametrize("dry", [True, False])
def test_compacting_is_left_to_engines(place: Place, dry: bool) -> None:
    _Known(place.target, Form(iceberg=NAME), SCHEMA).save(RunState(()))
    with pytest.raises(ConfigError, match=r"by CALL system.rewrite_data_files\('shop.orders'\)"):
        compact(place.target, 10**9, dry=dry)
