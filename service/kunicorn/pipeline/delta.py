"""A Delta table as the target of an export: tasks write files, the driver commits a round of them in one transaction.

1. A file counts once the table's log names it. Each attempt of a task has names of its own, so that a late one never
   replaces what is committed; what no transaction names is rubbish for VACUUM.
2. The transaction carries the export's id and the round's number (`txn` in Delta's protocol). A duplicate is accepted
   by the format, so the number is looked up before: a round whose commit went through before a crash is not repeated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from kunicorn.errors import ConfigError
from kunicorn.pipeline.bounds import as_json
from kunicorn.pipeline.ranges import Offsets
from kunicorn.pipeline.storage import Directory

APP_ID = "kunicorn-export"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"


class LakeFile(NamedTuple):
    """A file that a task has written, below the target."""

    path: str
    size: int
    records: int


class DeltaLake:
    """One table. Every method blocks. Raises `ConfigError` where it is none, or deltalake is not installed."""

    def __init__(self, target: Directory, schema: pa.Schema) -> None:
        """`schema`: of the files; the table has `date` besides."""
        try:
            import deltalake
        except ImportError as error:
            raise ConfigError("deltalake is not installed: pip install 'kunicorn[pipeline,delta]'") from error
        self._deltalake: Any = deltalake
        self._uri = target.url
        self._schema = schema.append(pa.field("date", pa.string()))
        self._table: Any = None

    def open(self) -> None:
        """Open the table, or make it, partitioned by date."""
        errors = self._deltalake.exceptions
        try:
            if self._deltalake.DeltaTable.is_deltatable(self._uri):
                self._table = self._deltalake.DeltaTable(self._uri)
            else:
                self._table = self._deltalake.DeltaTable.create(self._uri, self._schema, partition_by=["date"])
        except (errors.DeltaError, OSError) as error:
            raise ConfigError(f"{self._uri} cannot be used as a Delta table: {error}") from error
        found = set(pa.schema(self._table.schema().to_arrow()).names)
        if missing := [name for name in self._schema.names if name not in found]:
            raise ConfigError(f"the Delta table {self._uri} has no column {missing[0]!r}: name another directory")

    def rounds(self) -> int:
        """The last round that is committed; 0 before the first."""
        self._table.update_incremental()
        return int(self._table.transaction_version(APP_ID) or 0)

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files, unless that has happened already."""
        if self.rounds() >= number:
            return
        transaction = self._deltalake.transaction
        self._table.create_write_transaction(
            [self._added(each) for each in files],
            mode="append",
            schema=self._schema,
            partition_by=["date"],
            commit_properties=self._deltalake.CommitProperties(
                custom_metadata={"kunicorn.offsets": json.dumps(as_json(ends))},
                app_transactions=[transaction.Transaction(APP_ID, number)],
            ),
        )

    def _added(self, file: LakeFile) -> Any:
        day = file.path.partition("/")[0].removeprefix("date=")
        return self._deltalake.transaction.AddAction(
            path=file.path,
            size=file.size,
            partition_values={"date": None if day == NO_DATE else day},
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=json.dumps({"numRecords": file.records}),
        )
