"""Tables whose log says which of a lake's files count: Delta, and what exports ask of any (`iceberg` has the other).

1. A file counts once the table's log names it. Each attempt of a task has names of its own, so that a late one never
   replaces what is committed; files that no transaction names are rubbish for the table's own clearing (VACUUM).
2. A transaction carries the export's id and the round's number (`txn` in Delta's protocol). A duplicate is accepted by
   the format, so the number is looked up before: a round whose commit went through before a crash is not repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa

from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handler.extras import install_extra
from kunicorn.pipeline.lake.files import CHANGES, LakeFile, Partitioning, changes, values_in
from kunicorn.pipeline.plan import as_json
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import Offsets


class NotCommitted(ServiceError):
    """The lake refuses a round, as when another export has committed it."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


class TableLog(Protocol):
    """A table in whose log rounds are committed, each once. Methods block, and raise `ConfigError`."""

    @property
    def file_schema(self) -> pa.Schema:
        """Of the files that tasks write; after `open`."""

    def open(self, done: int) -> None:
        """Open the table, or make it. `done`: number of rounds that the target's manifest counts."""

    def rounds(self) -> int:
        """Number of the last round that is committed; 0 before the first."""

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files at once, unless that has happened already. Raises `NotCommitted`."""

    def clear(self) -> None:
        """Delete the files of rounds that are none of the table's. Caller: when no round is underway."""


APP_ID = "kunicorn-export"


class DeltaLake:
    """One Delta table. Every method blocks. Raises `ConfigError` where it is none, or deltalake is not installed."""

    def __init__(self, target: Directory, schema: pa.Schema, partitioning: Partitioning) -> None:
        """`schema`: of the files; the table has the columns of the partitioning besides."""
        self._deltalake = _deltalake()
        self._uri = target.url
        self.file_schema = schema
        self._by = list(partitioning.columns)
        self._schema = pa.schema([*schema, *(pa.field(*each) for each in partitioning.columns.items())])
        self._table: Any = None

    def open(self, done: int = 0) -> None:
        """Open the table, or make it."""
        errors = self._deltalake.exceptions
        try:
            if self._deltalake.DeltaTable.is_deltatable(self._uri):
                self._table = self._deltalake.DeltaTable(self._uri)
            else:
                self._table = self._deltalake.DeltaTable.create(self._uri, self._schema, partition_by=self._by)
        except (errors.DeltaError, OSError) as error:
            raise ConfigError(f"{self._uri} cannot be used as a Delta table: {error}") from error
        found = pa.schema(self._table.schema().to_arrow())
        if missing := [name for name in self._schema.names if name not in found.names]:
            raise ConfigError(f"the Delta table {self._uri} has no column {missing[0]!r}: name another directory")
        for name in self._by:
            # A table that was made before days were dates goes on with its own type.
            self._schema = self._schema.set(self._schema.get_field_index(name), found.field(name))

    def rounds(self) -> int:
        """Number of the last round that is committed; 0 before the first."""
        self._table.update_incremental()
        return int(self._table.transaction_version(APP_ID) or 0)

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files in one transaction, unless that has happened already."""
        if self.rounds() >= number:
            return
        transaction, errors = self._deltalake.transaction, self._deltalake.exceptions
        properties = self._deltalake.CommitProperties(
            custom_metadata={"kunicorn.offsets": json.dumps(as_json(ends))},
            app_transactions=[transaction.Transaction(APP_ID, number)],
        )
        try:
            self._apply(files, properties)
        except (errors.DeltaError, OSError) as error:
            raise NotCommitted(
                f"the Delta table {self._uri} does not take round {number}: {error}. Nothing of it is in the table; "
                f"see whether another export writes there, then export again: it goes on where it ended"
            ) from error

    def clear(self) -> None:
        """Delete the files of rounds that are none of the table's: here there are none. Caller: when no round is
        underway."""

    def _apply(self, files: Sequence[LakeFile], properties: Any) -> None:
        """The transaction itself. `properties`: deltalake's, of its commit."""
        self._table.create_write_transaction(
            [self._added(each) for each in files],
            mode="append",
            schema=self._schema,
            partition_by=self._by,
            commit_properties=properties,
        )

    def _added(self, file: LakeFile) -> Any:
        return self._deltalake.transaction.AddAction(
            path=file.path,
            size=file.size,
            partition_values=values_in(file.path),
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps(_delta_stats(file)),
        )


class MergedDelta(DeltaLake):
    """Delta table with a row for each key: that of its newest record, and none once that is a tombstone.

    Rounds are merged in their order, each once: so what comes later is newer, and a topic that was created anew needs
    no rule of its own. The driver merges: it holds the newest records of a round.
    """

    def __init__(self, target: Directory, schema: pa.Schema) -> None:
        super().__init__(target, schema, changes())
        self._target = target

    def _apply(self, files: Sequence[LakeFile], properties: Any) -> None:
        found = [self._target.table(each.path) for each in files]
        if not found:
            return
        merge = self._table.merge(
            newest_of_keys(pa.concat_tables(found)),
            "target.topic = source.topic AND target.key = source.key",
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
        )
        deleted = merge.when_matched_delete("source.value IS NULL").when_matched_update_all()
        deleted.when_not_matched_insert_all("source.value IS NOT NULL").execute()

    def clear(self) -> None:
        """See `DeltaLake`: they are merged, or will be written anew."""
        for name in (self._target / CHANGES).names(".parquet"):
            (self._target / CHANGES).delete(name)


def newest_of_keys(rows: pa.Table) -> pa.Table:
    """The newest record of each topic and key: of one partition the last, of several the one with the latest time.
    Pure.
    """
    for by, order in ((("topic", "partition", "key"), ("offset",)), (("topic", "key"), ("timestamp", "partition"))):
        rows = rows.sort_by([(name, "ascending") for name in order])
        numbered = rows.select(list(by)).append_column("row", pa.array(range(len(rows)), pa.int64()))
        rows = rows.take(numbered.group_by(list(by)).aggregate([("row", "max")])["row_max"])
    return rows


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError(f"deltalake is not installed: {install_extra('pipeline', 'delta')}") from error
    return deltalake


def delta_table(target: Directory) -> Any:
    """The Delta table in there. Raises `ConfigError`."""
    library = _deltalake()
    try:
        return library.DeltaTable(target.url)
    except (library.exceptions.DeltaError, OSError) as error:
        raise ConfigError(f"{target.url} cannot be used as a Delta table: {error}") from error


def _delta_stats(file: LakeFile) -> dict[str, Any]:
    """What an engine chooses files by, in the words of Delta's protocol."""
    least, most, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for name, (first, last, missing) in file.bounds.items():
        nulls[name] = missing
        if name != "timestamp":
            least[name], most[name] = first, last
        elif last <= _LAST_MICROSECOND:
            # In milliseconds, as other writers have them: down and up, so that no record is behind them.
            least[name], most[name] = _iso(first // 1000), _iso(-(-last // 1000))
    return {"numRecords": file.records, "minValues": least, "maxValues": most, "nullCount": nulls}


_LAST_MICROSECOND = 253_402_300_799_000_000
"""The last second of the year 9999: no calendar of an engine's goes on behind that."""


def _iso(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03}Z"
