"""Iceberg tables that an export writes to, by pyiceberg, in the driver alone.

1. As in `tables`: a file counts once a snapshot of the table has it, and each try of a task has names of its own.
2. The number of the last round, and where that ends, stand in the table's properties, and move in the same commit as
   the round's snapshot. A snapshot's own summary has the number for people: snapshots expire, and an engine that merges
   files makes others.
3. A commit holds only upon the snapshot that it was made for. pyiceberg would put it upon the next one by itself, which
   may have the same round of another driver: so it is told not to, and the number is looked up before each try.
4. Files carry the table's field ids, and partitions are exact: readers take a partition's value for that of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from kunicorn.errors import ConfigError
from kunicorn.handler.extras import install_extra
from kunicorn.pipeline.lake.files import BOUNDED, DAY, HOUR, LakeFile, field_path, values_in
from kunicorn.pipeline.lake.tables import Committed, NotCommitted, fingerprint
from kunicorn.pipeline.storage import Directory, StoreFailed
from kunicorn.positions import Offsets
from kunicorn.settings.pipeline import has_secret

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType, NestedField

ROUNDS, _ENDS = "kunicorn.export.rounds", "kunicorn.export.ends"
"""Properties of the table: the last round's number, and the fingerprint of its ends."""
ROUND = "kunicorn.export.round"
"""In a snapshot's summary."""
_FIELD_ID = b"PARQUET:field_id"
_TRIES = 10
"""Of a commit, each on a snapshot that another writer has just made: whoever is refused was overtaken by one that was
not."""
_MICROSECONDS = {DAY: 86_400_000_000, HOUR: 3_600_000_000}


class Catalog(NamedTuple):
    """Where the table is registered; its secrets are found by pyiceberg, in the environment."""

    name: str
    properties: Mapping[str, str]


class IcebergLake:
    """One Iceberg table. Every method blocks. Raises `ConfigError` where it is none, or pyiceberg is not installed."""

    def __init__(self, catalog: Catalog, name: str, target: Directory, schema: pa.Schema, by: str) -> None:
        """`name`: with its namespace. `schema`: of the files. `by`: see `files.hidden_partitioning`."""
        _check_installed()
        self._catalog, self._name, self._schema, self._by = catalog, name, schema, by
        self._place = location(target)
        self._kind = _field_kind(schema, by)
        self._table: Table | None = None
        self.file_schema = schema

    def open(self, done: int, *, make: bool = True) -> bool:
        """See `TableLog`."""
        with self._told("cannot be used"):
            # Of one that was dropped a new one would have nothing, and its engines would not notice.
            self._table = table = self._opened(make=make and not done)
        if table is None:
            self._check_rounds(0, done)
            return False
        self.file_schema = self._checked(table)
        self._check_rounds(self.committed().rounds, done)
        return True

    def _checked(self, table: Table) -> pa.Schema:
        """Schema of the files that the table has room for, with its field ids. Raises `ConfigError` where it has none
        for an export's.
        """
        if (found := _plain(table.location())) != _plain(self._place):
            raise ConfigError(f"the catalog keeps the Iceberg table {self._name} at {found}: export to there")
        self._check_version(table.format_version)
        numbered = self._numbered_as(table.schema())
        wanted = self._partitions(table.schema())
        if not table.spec().compatible_with(wanted):
            raise ConfigError(
                f"the Iceberg table {self._name} is partitioned by {_shown(table.spec())}, and not by {_shown(wanted)}"
                f": name another table and directory, or another --partition-by"
            )
        return numbered

    def _check_unchanged(self, number: int) -> None:
        """Refuse a table that an engine has altered since it was opened, where readers would miss rows of the round's
        files, or have null for what is in them.
        """
        assert self._table is not None
        if not self._checked(self._table).equals(self.file_schema, check_metadata=True):
            raise NotCommitted(
                f"the Iceberg table {self._name} does not take round {number}: a column of its files was dropped "
                f"meanwhile, and made anew. Nothing of it is in the table; export again: it is written anew"
            )

    def _check_version(self, version: int) -> None:
        """Refuse a table that the library reads and does not write: it says so behind the tasks of each round."""
        from pyiceberg import __version__
        from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION as LAST

        if version > LAST:
            raise ConfigError(
                f"the Iceberg table {self._name} is of format version {version}, and pyiceberg {__version__} writes "
                f"those up to {LAST}: install a pyiceberg that has it, or name another table and directory"
            )

    def _check_rounds(self, committed: int, done: int) -> None:
        if committed < done:
            raise ConfigError(
                f"the Iceberg table {self._name} has {committed} rounds of the {done} that were exported to "
                f"{self._place}: it was dropped, or made anew, or its property {ROUNDS} was changed. Export to another "
                f"directory and table to have all records again"
            )

    def committed(self) -> Committed:
        """See `TableLog`."""
        with self._told("cannot be read"):
            told = self._of_now().properties
            return Committed(int(told.get(ROUNDS, 0)), int(told[_ENDS]) if _ENDS in told else None)

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files as one snapshot, unless that has happened already."""
        from pyiceberg.exceptions import CommitFailedException

        for _ in range(_TRIES):
            if self.committed().has(number, ends, f"the Iceberg table {self._name}"):
                return
            self._check_unchanged(number)
            try:
                self._append(number, files, ends)
                return
            except CommitFailedException:
                continue
            except Exception as error:
                # Each catalog has errors of its own. It may have taken the round, and its answer is lost.
                raise NotCommitted(
                    f"the Iceberg table {self._name} does not take round {number}: {self._words(error)}. Export again: "
                    f"it finds out whether the table has it, and goes on from there"
                ) from error
        raise NotCommitted(
            f"the Iceberg table {self._name} does not take round {number}: others have moved it on {_TRIES} times "
            f"meanwhile. Nothing of it is in the table; export again when less is written there: it goes on where it "
            f"ended"
        )

    def clear(self, files: Sequence[LakeFile] | None = None) -> None:
        """Does nothing: what no snapshot names is an engine's to remove, once it is old."""

    def _opened(self, *, make: bool) -> Table | None:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        catalog = load_catalog(self._catalog.name, **self._catalog.properties)
        try:
            return catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            if not make:
                return None
        numbers = count(1)
        schema = pyarrow_to_schema(_numbered(self._schema, lambda _: next(numbers)))
        refused: Exception | None = None
        try:
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        except Exception as error:
            # It may be there: who may make tables in it need not have the right to make another one.
            refused = error
        try:
            return catalog.create_table_if_not_exists(self._name, schema, self._place, self._partitions(schema))
        except NoSuchNamespaceError as error:
            raise refused or error from error

    def _of_now(self) -> Table:
        """The table with its newest snapshot, and with what this process alone thinks of it: it is not committed."""
        from pyiceberg.table import TableProperties

        assert self._table is not None
        table = self._table.refresh()
        told = table.metadata
        properties = {**told.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        specs = [_without_calendar(each) if each == table.spec() else each for each in told.partition_specs]
        table.metadata = told.model_copy(update={"properties": properties, "partition_specs": specs})
        return table

    def _append(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """The commit itself, upon the snapshot that `committed` has seen."""
        assert self._table is not None
        with self._table.transaction() as transaction:
            transaction.set_properties({ROUNDS: str(number), _ENDS: str(fingerprint(ends))})
            append = transaction.update_snapshot(snapshot_properties={ROUND: str(number)}).fast_append()
            # Refused may also be what a client has asked twice, and the catalog has taken at first. The library deletes
            # what it has written for a refused snapshot, which nobody could read any more then.
            append._clean_all_uncommitted = lambda: None  # type: ignore[method-assign]
            with append:
                for each in files:
                    append.append_data_file(self._added(each))

    def _added(self, file: LakeFile) -> DataFile:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record
        from pyiceberg.types import PrimitiveType

        assert self._table is not None
        columns = {name: self._table.schema().find_field(name) for name in BOUNDED if name in file.bounds}
        least, most, nulls = dict[int, bytes](), dict[int, bytes](), dict[int, int]()
        for name, column in columns.items():
            first, last, nulls[column.field_id] = file.bounds[name]
            assert isinstance(column.field_type, PrimitiveType)
            least[column.field_id] = to_bytes(column.field_type, first)
            most[column.field_id] = to_bytes(column.field_type, last)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._place}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(self._partition(file)),
            record_count=file.records,
            file_size_in_bytes=file.size,
            value_counts={column.field_id: file.records for column in columns.values()},
            null_value_counts=nulls,
            lower_bounds=least,
            upper_bounds=most,
            spec_id=self._table.spec().spec_id,
        )

    def _partition(self, file: LakeFile) -> Any:
        """Value of the file's partition, as Iceberg has it: dates and times as numbers since 1970."""
        ((_, text),) = values_in(file.path).items()
        if text is None:
            return None
        if (step := _MICROSECONDS.get(self._by)) is not None:
            return file.bounds["timestamp"][0] // step
        value = pa.scalar(text)
        if not pa.types.is_date(self._kind):
            return value.cast(self._kind).as_py()
        # One that no calendar has is a number already.
        return (value if text.lstrip("-").isdigit() else value.cast(self._kind)).cast(pa.int32()).as_py()

    def _partitions(self, schema: Schema) -> PartitionSpec:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform

        path = field_path(self._by)
        source = schema.find_field(".".join(["value", *path]) if path else "timestamp")
        transform: Transform[Any, Any] = (
            IdentityTransform() if path else DayTransform() if self._by == DAY else HourTransform()
        )
        name = path[-1] if path else f"timestamp_{self._by}"
        return PartitionSpec(PartitionField(source.field_id, 1000, transform, name))

    def _numbered_as(self, table: Schema) -> pa.Schema:
        """The files' schema with the table's field ids."""
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        def number(path: str) -> int:
            try:
                return table.find_field(path).field_id
            except ValueError as error:
                raise ConfigError(
                    f"the Iceberg table {self._name} has no column {path!r}: name another table and directory"
                ) from error

        numbered = _numbered(self._schema, number)
        own = {each.field_id: _as_filled(each) for each in pyarrow_to_schema(numbered).fields}
        for theirs in table.fields:
            if not _takes(theirs, ours := own.get(theirs.field_id)):
                raise ConfigError(
                    f"column {theirs.name!r} of the Iceberg table {self._name} is "
                    f"{'required ' * theirs.required}{theirs.field_type}, and the records' is "
                    f"{'missing' if ours is None else ours.field_type}: name another table and directory"
                )
        return numbered

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            # Each catalog has errors of its own.
            raise StoreFailed(
                f"the Iceberg table {self._name} {what}: {self._words(error)}; see pipeline.iceberg and "
                f"pipeline.iceberg_catalog"
            ) from error

    def _words(self, error: Exception) -> str:
        """What the error says, in a line and without secrets: pyiceberg shows all properties where it knows no type."""
        from pyiceberg.utils.config import Config

        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        known = Config().get_catalog_config(self._catalog.name) or {}
        for name, value in known.items():
            if isinstance(value, str) and value and has_secret(name, value):
                text = text.replace(value, "…")
        return text


def location(target: Directory) -> str:
    """The directory as Iceberg's metadata has it. Raises `ConfigError`."""
    if "#" in target.url or "?" in target.url:
        raise ConfigError(f"{target.url} has a # or a ?, which Iceberg's locations cannot have: name another directory")
    return f"file://{Path(target.url).absolute()}" if target.is_local else target.url.rstrip("/")


def _plain(place: str) -> str:
    """The same for all ways to write a location."""
    scheme, _, rest = place.partition(":")
    if not rest:
        scheme, rest = "file", place
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    return f"{scheme}://" + (f"/{rest.lstrip('/')}" if scheme == "file" else rest.lstrip("/")).rstrip("/")


def _without_calendar(spec: PartitionSpec) -> PartitionSpec:
    """The same partitions, whose summary in a snapshot names days that no calendar has: pyiceberg fails at them."""
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform

    def exact(kind: Any) -> Transform[Any, Any]:
        class Exact(kind):  # type: ignore[misc]
            def to_human_string(self, source: Any, value: Any) -> str:
                try:
                    return str(super().to_human_string(source, value))
                except OverflowError:
                    return str(value)

        transform: Transform[Any, Any] = Exact()
        return transform

    others: dict[Any, Transform[Any, Any]] = {
        kind: exact(kind) for kind in (IdentityTransform, DayTransform, HourTransform)
    }
    fields = [
        each.model_copy(update={"transform": others.get(type(each.transform), each.transform)}) for each in spec.fields
    ]
    return PartitionSpec(*fields, spec_id=spec.spec_id)


def _shown(spec: PartitionSpec) -> str:
    return ", ".join(f"{each.name} ({each.transform})" for each in spec.fields) or "nothing"


def _check_installed() -> None:
    try:
        import pyiceberg  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise ConfigError(f"pyiceberg is not installed: {install_extra('pipeline', 'iceberg')}") from error


def _numbered(schema: pa.Schema, number: Callable[[str], int]) -> pa.Schema:
    """The schema with field ids. `number`: that of a field, by its path in Iceberg's words. Raises `ConfigError`."""
    return pa.schema([_numbered_field(each, each.name, number) for each in schema])


def _numbered_field(field: pa.Field, path: str, number: Callable[[str], int]) -> pa.Field:
    told, kind = number(path), field.type

    def inner(each: pa.Field, name: str) -> pa.Field:
        return _numbered_field(each, f"{path}.{name}", number)

    if pa.types.is_struct(kind):
        kind = pa.struct([inner(each, each.name) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(inner(kind.value_field, "element"))
    elif pa.types.is_map(kind):
        kind = pa.map_(inner(kind.key_field, "key"), inner(kind.item_field, "value"))
    elif not _has_type(kind):
        raise ConfigError(f"--columns: {path} is of {kind}, for which Iceberg has no type; choose another")
    return field.with_type(kind).with_metadata({_FIELD_ID: str(told)})


_MAY_BE_NULL = ("key", "value", "timestamp", "headers")


def _as_filled(column: NestedField) -> NestedField:
    """The column of our files, required where no record lacks it."""
    return column if column.name in _MAY_BE_NULL else column.model_copy(update={"required": True})


def _takes(theirs: NestedField, ours: NestedField | None) -> bool:
    """Whether readers of the table's field find it in files that have `ours` for it, or nothing. Pure.

    An engine may have commented on fields, let them be null, or added some that may be.
    """
    if ours is None:
        return not theirs.required
    return (ours.required or not theirs.required) and _has_all(theirs.field_type, ours.field_type)


def _has_all(theirs: IcebergType, ours: IcebergType) -> bool:
    """As `_takes`, of types: fields within them go by their numbers."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(theirs, StructType) and isinstance(ours, StructType):
        own = {each.field_id: each for each in ours.fields}
        return all(_takes(each, own.get(each.field_id)) for each in theirs.fields)
    if isinstance(theirs, ListType) and isinstance(ours, ListType):
        return _takes(theirs.element_field, ours.element_field)
    if isinstance(theirs, MapType) and isinstance(ours, MapType):
        return _takes(theirs.key_field, ours.key_field) and _takes(theirs.value_field, ours.value_field)
    return bool(theirs == ours)


def _has_type(kind: pa.DataType) -> bool:
    """Whether a plain type is one of Iceberg's, in memory and in Parquet."""
    types = pa.types
    if types.is_timestamp(kind):
        return bool(kind.unit != "ns" and kind.tz in {None, "UTC", "+00:00", "Etc/UTC", "Z"})
    if types.is_time64(kind):
        return bool(kind.unit == "us")
    plain = (
        types.is_boolean, types.is_signed_integer, types.is_float32, types.is_float64, types.is_date32, types.is_string,
        types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_decimal128,
    )  # fmt: skip
    return any(fits(kind) for fits in plain)


def _field_kind(schema: pa.Schema, by: str) -> pa.DataType:
    """Type of what the partitioning goes by. Raises `ConfigError` where no partition can have its values."""
    kind = schema.field("value" if (path := field_path(by)) else "timestamp").type
    for name in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise ConfigError(f"--partition-by {by}: the values have no field {name!r}")
        kind = kind.field(name).type
    types = pa.types
    exact = (types.is_string, types.is_signed_integer, types.is_boolean, types.is_date32)
    if path and not any(fits(kind) for fits in exact):
        raise ConfigError(f"--partition-by {by} is of {kind}: choose a text, a whole number, a boolean or a date")
    return kind
