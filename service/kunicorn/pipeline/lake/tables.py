"""Tables whose log says which of a lake's files count: Delta, and what exports ask of any (`iceberg` has the other).

1. A file counts once the table's log names it. Each attempt of a task has names of its own, so that a late one never
   replaces what is committed; files that no transaction names are rubbish for the table's own clearing (VACUUM).
2. A transaction carries the export's id and the round's number (`txn` in Delta's protocol). A duplicate is accepted by
   the format, so the number is looked up before: a round whose commit went through before a crash is not repeated.
   It is looked up behind a commit that failed, too: the store may have taken it, and its answer is lost.
3. Beside the number stands where the round ends: of two drivers one may have planned a round of that number anew, and
   must not take the other's for its own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from kunicorn.errors import ConfigError, ExitCode, ServiceError
from kunicorn.handler.extras import install_extra
from kunicorn.pipeline.lake.columns import NOT_NULL, kinds, kinds_changed, nullable
from kunicorn.pipeline.lake.files import CHANGES, LakeFile, Partitioning, changes, values_in
from kunicorn.pipeline.lake.newest import PART_BYTES, newest_in_parts
from kunicorn.pipeline.plan import as_json
from kunicorn.pipeline.storage import Directory, StoreFailed
from kunicorn.positions import Offsets


class NotCommitted(ServiceError):
    """The lake refuses a round, as when another export has committed it."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


GIVEN_UP: Offsets = {}
"""Ends of a round without files, which takes the number of one that was planned and is not carried out."""


class Committed(NamedTuple):
    """What a table's log tells of the last round that is committed."""

    rounds: int = 0
    """Its number; 0 before the first."""
    ends: int | None = None
    """Fingerprint of where it ends; None in a table that an earlier version has written to."""

    def is_round(self, number: int, ends: Offsets) -> bool:
        """Whether it is this one."""
        return self.rounds == number and self.ends in (None, fingerprint(ends))

    def has(self, number: int, ends: Offsets, table: str) -> bool:
        """Whether this round is committed. Raises `NotCommitted` where another one is in its place."""
        if self.rounds >= number and not self.is_round(number, ends):
            other = "another one of that number" if self.rounds == number else f"round {self.rounds}"
            raise NotCommitted(
                f"{table} does not take round {number}: another export has committed {other}. See whether another "
                f"export writes there, then export again: it goes on where it ended"
            )
        return self.rounds >= number


def fingerprint(ends: Offsets) -> int:
    """Number for where a round ends: a table's log has room for that, and not for every partition's offset."""
    return int.from_bytes(blake2b(json.dumps(as_json(ends)).encode(), digest_size=8).digest()) >> 1


class TableLog(Protocol):
    """A table in whose log rounds are committed, each once. Methods block, and raise `ConfigError`."""

    @property
    def file_schema(self) -> pa.Schema:
        """Of the files that tasks write; after `open`."""

    def open(self, done: int, *, make: bool = True) -> bool:
        """Open the table, or `make` it where there is none; whether there is one now. `done`: number of rounds that the
        target's manifest counts."""

    def committed(self) -> Committed: ...

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files at once, unless that has happened already. `ends`: of the round's own partitions. Raises
        `NotCommitted`.
        """

    def clear(self, files: Sequence[LakeFile] | None = None) -> None:
        """Delete these files of a round, or whatever rounds that were cut off have left: what is none of the table's.
        Caller: behind the round's commit; or before it begins any, once all other exports are overtaken.
        """


APP_ID, _ENDS_ID = "kunicorn-export", "kunicorn-export-ends"
"""Applications whose versions in the table's log are the last round's number, and the fingerprint of its ends."""
_KEPT = "delta.setTransactionRetentionDuration"
"""A table's property: how long it keeps applications' versions after the last one of each; not set: for ever."""
_RULE = "delta.constraints."
"""Before the name of a constraint among a table's properties."""
_ENDS = "kunicorn.offsets"
"""In the metadata of the commit that counts a round, for people: where the round ends."""


class DeltaLake:
    """One Delta table. Every method blocks. Raises `ConfigError` where it is none, or deltalake is not installed."""

    def __init__(self, target: Directory, schema: pa.Schema, partitioning: Partitioning) -> None:
        """`schema`: of the files; the table has the columns of the partitioning besides."""
        self._deltalake = _deltalake()
        self._uri = target.url
        self.file_schema = schema
        self._by = list(partitioning.columns)
        self._schema = pa.schema([*schema, *(pa.field(*each) for each in partitioning.columns.items())])
        _check_readable(kinds(schema))
        self._table: Any = None

    def open(self, done: int = 0, *, make: bool = True) -> bool:
        """See `TableLog`."""
        with _as_table(self._uri) as library:
            if was_there := library.DeltaTable.is_deltatable(self._uri):
                self._table = library.DeltaTable(self._uri)
            elif done:
                raise self._fewer("is not there any more", done)
            elif not make:
                return False
            else:
                self._table = library.DeltaTable.create(self._uri, self._schema, partition_by=self._by)
        found = self._checked()
        for name in self._by:
            # A table that was made before days were dates goes on with its own type.
            self._schema = self._schema.set(self._schema.get_field_index(name), found.field(name))
        self._check_types(found)
        if was_there:
            self._check_features()
        self._check_rounds(done)
        return True

    def _checked(self) -> pa.Schema:
        """The table's schema, where it has what an export needs, and nothing that an export does not do."""
        found = pa.schema(self._table.schema().to_arrow())
        self._check_columns(found)
        self._check_layout()
        self._check_generated()
        return found

    def _check_columns(self, found: pa.Schema) -> None:
        if missing := [name for name in self._schema.names if name not in found.names]:
            raise ConfigError(f"the Delta table {self._uri} has no column {missing[0]!r}: name another directory")
        if required := [each.name for each in found if not each.nullable and each.name not in self._schema.names]:
            # Its readers would find a null where none may be, and fail.
            raise ConfigError(
                f"the Delta table {self._uri} has a column {required[0]!r} that may not be null, and records have none "
                f"of that name: let it be null, or name another directory"
            )

    def _check_layout(self) -> None:
        """Refuse a table whose readers look elsewhere for what our files have: they would have null instead.

        A partition's column is read from the log and never from a file, any other one never from the log; and with
        column mapping a field is read from a file by a name or a number of its own.
        """
        told = self._table.metadata()
        if set(by := told.partition_columns) != set(self._by):
            raise ConfigError(
                f"the Delta table {self._uri} is partitioned by {', '.join(by) or 'nothing'}, and not by "
                f"{', '.join(self._by)}: name another directory, or another --partition-by"
            )
        by_number = told.configuration.get("delta.columnMapping.mode") == "id"
        fields = json.loads(self._table.schema().to_json())["fields"]
        ours = [each for each in fields if each["name"] in self._schema.names]
        if by_number or (renamed := next(_renamed(ours), None)) is not None:
            why = "finds columns by numbers" if by_number else f"has another name for {renamed} in its files"
            raise ConfigError(
                f"the Delta table {self._uri} {why} (delta.columnMapping.mode), which those of an export have not: "
                f"name another directory"
            )
        self._check_rules(told.configuration, fields)

    def _check_rules(self, configuration: Mapping[str, str], fields: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a table with rules for its rows: they are for its writers to keep to, and its log takes files that
        nobody has looked through.
        """
        rules = [f"the constraint {name.removeprefix(_RULE)}" for name in configuration if name.startswith(_RULE)]
        rules += [f"an invariant of {each['name']!r}" for each in fields if "delta.invariants" in each["metadata"]]
        if rules:
            raise ConfigError(
                f"the Delta table {self._uri} has {rules[0]}, by which an export does not look at its records: have an "
                f"engine drop that, or name another directory"
            )

    def _check_generated(self) -> None:
        """Refuse a table with columns that its writers have to reckon: our rows would have null there, and a row that
        is merged what it had before.
        """
        for each in json.loads(self._table.schema().to_json())["fields"]:
            if "delta.generationExpression" in each["metadata"] and each["name"] not in self._by:
                raise ConfigError(
                    f"the Delta table {self._uri} has a column {each['name']!r} that is generated, which an export "
                    f"does not do: have an engine drop it, or name another directory"
                )

    def _check_rounds(self, done: int) -> None:
        if (rounds := self.committed().rounds) < done:
            kept = self._table.metadata().configuration.get(_KEPT)
            forgotten = "" if kept is None else f", or forgets their number after its {_KEPT}, {kept}"
            raise self._fewer(f"has {rounds} rounds", done, forgotten)

    def _fewer(self, what: str, done: int, forgotten: str = "") -> ConfigError:
        return ConfigError(
            f"the Delta table {self._uri} {what}, of the {done} that were exported to it: it was dropped, or made "
            f"anew{forgotten}. Export to another directory to have all records again"
        )

    def _check_types(self, found: pa.Schema) -> None:
        """Refuse a table that has other types than the files: the log would take them, and no reader find its way."""
        written = kinds(pa.schema(self._deltalake.Schema.from_arrow(self._schema).to_arrow()))
        # An engine's columns besides are null in our rows.
        theirs = kinds(pa.schema([found.field(name) for name in self._schema.names]))
        # What is never null may be written where null may be.
        if changed := kinds_changed(nullable(theirs, written), written):
            raise ConfigError(
                f"the Delta table {self._uri} has other columns than the records: {changed}. Give the schema of "
                f"--columns back its former fields, have an engine alter the table alike, or name another directory"
            )

    def _check_features(self) -> None:
        """Refuse a table with features that the library does not write, as it says itself of an empty copy.

        Else it would say so behind the tasks of a round, whose files no transaction names then, and again each time.
        """
        with TemporaryDirectory() as copy:
            log = Path(copy) / "_delta_log"
            log.mkdir()
            actions = ({"protocol": _protocol(self._table)}, {"metaData": _metadata(self._table)})
            (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
            try:
                made = self._deltalake.DeltaTable(copy)
                made.create_write_transaction([], mode="append", schema=self._schema, partition_by=self._by)
            except self._deltalake.exceptions.DeltaError as error:
                library = f"deltalake {self._deltalake.__version__}"
                raise ConfigError(
                    f"the Delta table {self._uri} cannot be written by {library}: {error}; have an engine "
                    f"drop that feature, install a deltalake that has it, or name another directory"
                ) from error

    def committed(self) -> Committed:
        """See `TableLog`."""
        with _as_table(self._uri):
            self._table.update_incremental()
            return Committed(
                int(self._table.transaction_version(APP_ID) or 0), self._table.transaction_version(_ENDS_ID)
            )

    def commit(self, number: int, files: Sequence[LakeFile], ends: Offsets) -> None:
        """Add a round's files in one transaction, unless that has happened already."""
        if self.committed().has(number, ends, f"the Delta table {self._uri}"):
            return
        # Engines may have altered it since it was opened; what they alter from here on, the library notices.
        self._check_types(self._checked())
        errors = self._deltalake.exceptions
        try:
            self._apply(files, number, ends)
        except (errors.DeltaError, OSError) as error:
            if (becomes := self._looked_up(number, ends)) is None:
                return
            raise NotCommitted(
                f"the Delta table {self._uri} does not take round {number}: {error}. {becomes}; "
                f"see whether another export writes there, then export again: it goes on where it ended"
            ) from error

    def _looked_up(self, number: int, ends: Offsets) -> str | None:
        """What has become of a round whose commit failed; None where the table has it, and only the answer is lost."""
        try:
            found = self.committed()
        except StoreFailed as error:
            return f"Whether it is in the table is not known ({error})"
        if found.rounds < number:
            return self._refused
        return None if found.is_round(number, ends) else "Another export has committed it"

    def clear(self, files: Sequence[LakeFile] | None = None) -> None:
        """See `TableLog`: here all are the table's."""

    _refused = "Nothing of it is in the table"
    """What is told of a round that the table does not take."""

    def _properties(self, number: int, ends: Offsets | None = None) -> Any:
        """deltalake's, of a commit after which so many rounds are in the table; with the round's ends."""
        versions = {APP_ID: number} if ends is None else {APP_ID: number, _ENDS_ID: fingerprint(ends)}
        # Of a table that keeps versions for some time only, Spark's next checkpoint leaves those out that tell none.
        now = time.time_ns() // 1_000_000
        return self._deltalake.CommitProperties(
            custom_metadata=None if ends is None else {_ENDS: json.dumps(as_json(ends))},
            app_transactions=[self._deltalake.transaction.Transaction(*each, now) for each in versions.items()],
        )

    def _apply(self, files: Sequence[LakeFile], number: int, ends: Offsets) -> None:
        """Bring the round of this number into the table."""
        self._table.create_write_transaction(
            [self._added(each) for each in files],
            mode="append",
            schema=self._schema,
            partition_by=self._by,
            commit_properties=self._properties(number, ends),
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

    1. Rounds are merged in their order: so what comes later is newer, and a topic that was created anew needs no rule
       of its own.
    2. The driver merges a round in parts, each a transaction, as the library holds what it merges: `newest_in_parts`
       bounds that by bytes. The last part counts the round. A part that is merged twice, as after a kill between two,
       comes to the same: no record of its keys that is newer is in the table before the round counts.
    3. Every part writes the export's `txn`. So a driver that stood still, and was overtaken, is refused.
    """

    def __init__(self, target: Directory, schema: pa.Schema, part_bytes: int = PART_BYTES) -> None:
        """`part_bytes`: of the newest records that are merged at once."""
        super().__init__(target, schema, changes())
        self._target, self._part_bytes = target, part_bytes

    _refused = "What is in the table of it is merged again"

    def _check_layout(self) -> None:
        """The library writes the table's files itself, as the table has them, and looks at its rules. But that no row
        may go it would say behind the tasks of a round, and again each time.
        """
        if self._table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
            raise ConfigError(
                f"the Delta table {self._uri} only takes rows more (delta.appendOnly), and --merge-by key replaces "
                f"rows: have an engine turn that off, or name another directory"
            )

    def _apply(self, files: Sequence[LakeFile], number: int, ends: Offsets) -> None:
        counted = False
        # The table is not looked at anew between two parts: what another driver has merged meanwhile is refused.
        for rows, last in newest_in_parts(self._target, [each.path for each in files], self._part_bytes):
            self._merge(rows, self._properties(number, ends) if last else self._properties(number - 1))
            counted = last
            del rows
        if not counted:
            super()._apply([], number, ends)

    def _merge(self, rows: pa.Table, properties: Any) -> None:
        merge = self._table.merge(
            rows,
            "target.topic = source.topic AND target.key = source.key",
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
        )
        deleted = merge.when_matched_delete("source.value IS NULL").when_matched_update_all()
        deleted.when_not_matched_insert_all("source.value IS NOT NULL").execute()

    def clear(self, files: Sequence[LakeFile] | None = None) -> None:
        """See `TableLog`: they are merged, or will be written anew."""
        below = self._target / CHANGES
        for name in below.names(".parquet") if files is None else [Path(each.path).name for each in files]:
            below.delete(name)


_READABLE = re.compile(
    r"bool|int\d+|float|double|null|(large_)?(string|binary)|(string|binary)_view|fixed_size_binary\[\d+\]|date\d+\[\w+\]"
    r"|decimal128\(.*\)|timestamp\[[mu]s(, tz=UTC)?\]|dictionary<values=string.*|struct|map|(large_)?list|list of \d+"
)
_SIGNED = {"uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "decimal128(20, 0)"}


def _check_readable(columns: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a type that readers of Delta lack. `columns`: as `kinds` has them.

    The library would take unsigned numbers for signed ones of the same width: no reader gets beyond the first larger
    one. Nanoseconds are a feature of a table that readers do not have.
    """
    for path, told in columns.items():
        kind = told.removesuffix(NOT_NULL)
        if not _READABLE.fullmatch(kind):
            other = _SIGNED.get(kind, "timestamp('us', 'UTC')" if kind.startswith("timestamp") else "another")
            raise ConfigError(f"--columns: {path} is of {kind}, which readers of Delta tables lack; choose {other}")


def _renamed(fields: Sequence[Mapping[str, Any]], place: str = "") -> Iterator[str]:
    """Paths of the fields of a Delta schema, also within others, that files have under another name. Pure."""
    for each in fields:
        path = f"{place}{each['name']}"
        if each["metadata"].get("delta.columnMapping.physicalName", each["name"]) != each["name"]:
            yield path
        inner = [each["type"]]
        while inner:
            kind = inner.pop()
            if isinstance(kind, dict):
                inner += [kind[part] for part in ("elementType", "keyType", "valueType") if part in kind]
                yield from _renamed(kind.get("fields", ()), f"{path}.")


def _protocol(table: Any) -> dict[str, Any]:
    """The table's, as its log has it."""
    told = table.protocol()
    features = {"readerFeatures": told.reader_features, "writerFeatures": told.writer_features}
    versions = {"minReaderVersion": told.min_reader_version, "minWriterVersion": told.min_writer_version}
    return {**versions, **{name: each for name, each in features.items() if each is not None}}


def _metadata(table: Any) -> dict[str, Any]:
    """The table's, as its log has it."""
    told = table.metadata()
    return {
        "id": str(told.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": told.partition_columns,
        "configuration": told.configuration,
    }


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError(f"deltalake is not installed: {install_extra('pipeline', 'delta')}") from error
    return deltalake


def delta_table(target: Directory) -> Any:
    """The Delta table in there. Raises `ConfigError`."""
    with _as_table(target.url) as library:
        return library.DeltaTable(target.url)


@contextmanager
def _as_table(url: str) -> Iterator[Any]:
    """The library, and its refusals in words. Raises `StoreFailed`, `ConfigError`."""
    library = _deltalake()
    try:
        yield library
    except (library.exceptions.DeltaError, OSError) as error:
        raise StoreFailed(f"{url} cannot be used as a Delta table: {error}") from error


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
