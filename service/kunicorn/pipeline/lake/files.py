"""Files that one range writes into a lake: one for each day of its records (or hour, or value of a field), in the
range's order. "Day" stands for all of these below.

1. What is held back is bounded by bytes, over all days together: the memory of a task follows neither from the size of
   records nor from how many days a range spans.
2. A day has one file, whose name is the range's: a try that follows replaces it. So a day is never closed and begun
   again. Where more days are open than files may be, those behind are kept on this machine's disk, and written at the
   end.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b
from itertools import chain
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, Self
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kunicorn.errors import ConfigError
from kunicorn.handler.columns import SCHEMA
from kunicorn.handler.messages import Run
from kunicorn.pipeline.lake.by_bytes import pieces
from kunicorn.pipeline.storage import NAME_BYTES, Directory, visible
from kunicorn.positions import OffsetRange, TopicPartition

OWN = "_kunicorn"
"""What an export keeps for itself, below its target."""


def file_name(whole: OffsetRange, topic_id: str | None, attempt: str = "") -> str:
    """Name of a range's files, in the directory of each day."""
    return f"{log_name(whole.tp, topic_id)}-{whole.start:020}-{whole.stop:020}{attempt}.parquet"


def log_name(tp: TopicPartition, topic_id: str | None) -> str:
    """Name of a partition's log. With the topic's id: a topic created anew replaces no files of its predecessor."""
    name = f"{_topic_name(tp.topic)}-{tp.partition}"
    # Kafka writes ids in base64, whose slash would be a directory of its own that nobody reads.
    return name if not topic_id else f"{name}-" + topic_id.replace("/", "_").replace("+", "-")


_TOPIC_BYTES = 138
"""Of a topic in the names of its files: with partition, id, offsets and an attempt they are as long as names may be."""


def _topic_name(topic: str) -> str:
    name = visible(topic)
    if len(name) <= _TOPIC_BYTES:
        return name
    digest = blake2b(topic.encode(), digest_size=16).hexdigest()
    return f"{name[: _TOPIC_BYTES - len(digest) - 1]}-{digest}"


NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_MOST_VALUES = 10_000
"""Of a field that a range is partitioned by."""
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


class LakeFile(NamedTuple):
    """File that a task has written, below the target."""

    path: str
    size: int
    records: int
    bounds: Mapping[str, tuple[Any, Any, int]] = {}
    """Least and largest value, and number of nulls, of the columns that queries choose files by. Times are in
    microseconds since 1970."""


BOUNDED = ("topic", "partition", "offset", "timestamp")
"""Columns whose least and largest values are told: an engine passes over files that cannot have what is asked for."""


class Columns(Protocol):
    """Maker of columns; see `export.LakeColumns`."""

    @property
    def schema(self) -> pa.Schema: ...

    def batch(self, run: Run) -> pa.RecordBatch: ...


class Bounds(NamedTuple):
    """How much a range's files may take of a machine."""

    held_bytes: int = 32 * 1024 * 1024
    """Held back, of all days together; about the size of a row group in memory."""
    row_group: int = 100_000
    """Records: a row group is what readers skip or read as a whole."""
    open_files: int = 16
    """Each takes a part of an upload in memory, where the target is an object store."""


_BOUNDS = Bounds()
_MOST_KEPT = 1.25
"""Of its own bytes: what a piece that is held may keep in memory."""
_FEW, _SMALL_BYTES = 8, 16 * 1024
"""Pieces of a day, and the size of one, from which on they are joined: each takes some KiB, however small it is."""


class PartitionedFiles:
    """Files of a range. As a context it leaves no unfinished file, and nothing on this machine's disk."""

    def __init__(
        self,
        target: Directory,
        path_of: Callable[[str], str],
        columns: Columns,
        cut: Partitioning | None = None,
        bounds: Bounds = _BOUNDS,
    ) -> None:
        """`path_of`: the file of a directory that `cut` names, below the target. By default that is a day's."""
        self._target, self._path_of, self._columns, self._bounds = target, path_of, columns, bounds
        self._cut = cut or partitioning(DAY)
        self._days: dict[str, _Day] = {}
        self._files = ExitStack()
        self._disk: IO[bytes] | None = None
        """File of this machine, with what is written of days that have no file yet."""
        self._open = 0
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def add(self, run: Run) -> None:
        """Append records, in order. Raises `ConfigError` where the partitioning has no directory for one."""
        for name, batch in self._cut.split(self._columns.batch(run)):
            # However many large records come at once: a row group is what readers have in memory as a whole.
            for piece in pieces(batch, self._bounds.held_bytes // 4):
                # One late record that waits for its file would keep all that was fetched with it in memory.
                keeps_others = piece.get_total_buffer_size() > piece.nbytes * _MOST_KEPT
                self._hold(name, _apart([piece]) if keeps_others else piece)

    def _hold(self, name: str, batch: pa.RecordBatch) -> None:
        if (day := self._days.get(name)) is None:
            self._cut.check(name, len(self._days) + 1, in_store=self._target.is_store)
            day = self._days[name] = _Day()
        day.hold(batch)
        self.held_bytes += batch.nbytes
        if day.rows >= self._bounds.row_group:
            self._let_go(name, day)
        if self.held_bytes > self._bounds.held_bytes:
            self._let_go_largest()

    def close(self) -> list[LakeFile]:
        """Finish all files."""
        return [self._finish(name, day) for name, day in self._days.items()]

    def _let_go_largest(self) -> None:
        """Let go of a quarter of what is held: to look for the largest at each piece costs the square of the days."""
        held = (each for each in self._days.items() if each[1].rows)
        for name, day in sorted(held, key=lambda item: item[1].bytes, reverse=True):
            self._let_go(name, day)
            if self.held_bytes <= self._bounds.held_bytes * 3 // 4:
                return

    def _writer(self, stream: Any, day: _Day) -> AbstractContextManager[pq.ParquetWriter]:
        return parquet_writer(stream, self._columns.schema, day.metadata)

    def _let_go(self, name: str, day: _Day) -> None:
        """Write what is held of the day: to its file, or where too many are open to this machine's disk."""
        if day.writer is None and self._open < self._bounds.open_files and not day.spilled:
            self._open += 1
            day.stream = self._files.enter_context(self._target.writing(self._path_of(name)))
            day.writer = self._files.enter_context(self._writer(day.stream, day))
        self.held_bytes -= day.bytes
        if day.writer is not None:
            day.writer.write_table(day.taken(self._columns.schema))
        else:
            self._spill(day)

    def _spill(self, day: _Day) -> None:
        if self._disk is None:
            # Without a name: a process that is killed would leave it on the disk, and so would each try.
            self._disk = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        day.spilled.append(self._disk.seek(0, os.SEEK_END))
        with pa.ipc.new_stream(self._disk, self._columns.schema) as stream:
            stream.write_table(day.taken(self._columns.schema))

    def _spilled(self, day: _Day) -> Iterator[pa.Table]:
        for at in day.spilled:
            assert self._disk is not None
            self._disk.seek(at)
            with pa.ipc.open_stream(self._disk) as stream:
                yield stream.read_all()

    def _finish(self, name: str, day: _Day) -> LakeFile:
        self.held_bytes -= day.bytes
        path, records = self._path_of(name), day.records
        rest = day.taken(self._columns.schema)
        if day.writer is not None:
            if rest.num_rows:
                day.writer.write_table(rest)
            day.writer.close()
            return LakeFile(path, day.stream.tell(), records, day.bounds())
        with self._target.writing(path) as stream:
            with self._writer(stream, day) as writer:
                for table in self._grouped(day, rest):
                    writer.write_table(table)
            return LakeFile(path, stream.tell(), records, day.bounds())

    def _grouped(self, day: _Day, rest: pa.Table) -> Iterator[pa.Table]:
        """What lies on the disk and the rest, in row groups of the bounds."""
        some, size, rows = list[pa.Table](), 0, 0
        for table in chain(self._spilled(day), [rest]):
            some.append(table)
            size, rows = size + table.nbytes, rows + table.num_rows
            if size > self._bounds.held_bytes or rows >= self._bounds.row_group:
                yield pa.concat_tables(some)
                some, size, rows = [], 0, 0
        if rows:
            yield pa.concat_tables(some)


class _Day:
    """One day's records: those held back, and where those before them are."""

    def __init__(self) -> None:
        self.bytes = self.rows = self.records = 0
        self.stream: Any = None
        self.writer: pq.ParquetWriter | None = None
        self.spilled: list[int] = []
        """Where on this machine's disk tables of it begin, one after the other."""
        self.metadata: list[pq.FileMetaData] = []
        self._held: list[pa.RecordBatch] = []

    def bounds(self) -> dict[str, tuple[Any, Any, int]]:
        """As `LakeFile.bounds`, of the file that was closed."""
        return bounds_of(self.metadata[0])

    def hold(self, batch: pa.RecordBatch) -> None:
        if len(self._held) >= _FEW and self.bytes < len(self._held) * _SMALL_BYTES:
            self._held = [_apart(self._held)]
        self._held.append(batch)
        self.bytes += batch.nbytes
        self.rows += batch.num_rows
        self.records += batch.num_rows

    def taken(self, schema: pa.Schema) -> pa.Table:
        """What is held; nothing is any more."""
        table = pa.Table.from_batches(self._held, schema)
        self._held, self.bytes, self.rows = [], 0, 0
        return table


def _apart(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows as one batch, copied: they keep no others in memory."""
    return pa.concat_batches(batches)


_VALUE = "value"
_NEVER_TWICE = frozenset({"offset", _VALUE})
"""Columns of which a dictionary saves nothing. A value's own fields, where it has columns, are others."""


@contextmanager
def parquet_writer(
    stream: Any, schema: pa.Schema, metadata: list[pq.FileMetaData] | None = None
) -> Iterator[pq.ParquetWriter]:
    """Writer of a lake's file; `metadata` gets what the file says of itself when it is closed.

    What hardly repeats has no dictionary: Parquet would make one, find it too large and give it up, for a sixth of the
    time that writing takes, and the file would be larger. Nobody looks for a file by the least bytes of its values.
    """
    paths = _paths(schema)
    writer = pq.ParquetWriter(
        stream,
        schema,
        compression="zstd",
        use_dictionary=[path for path in paths if path not in _NEVER_TWICE],
        write_statistics=[path for path in paths if path != _VALUE],
        metadata_collector=metadata,
    )
    try:
        yield writer
    except BaseException:
        # What closing makes of an unfinished file would hide the error that left it so.
        with suppress(Exception):
            writer.close()
        raise
    writer.close()


@cache
def _paths(schema: pa.Schema) -> Sequence[str]:
    """Of the columns as Parquet has them: of a struct each field."""
    told = pa.BufferOutputStream()
    pq.write_metadata(schema, told)
    columns = pq.read_metadata(pa.BufferReader(told.getvalue())).schema
    return [columns.column(at).path for at in range(len(columns.names))]


def bounds_of(metadata: pq.FileMetaData) -> dict[str, tuple[Any, Any, int]]:
    """As `LakeFile.bounds`: of the columns of `BOUNDED`, without those of which the file does not tell."""
    found = {}
    # By their paths: within a column of structs there may be fields of these names, too.
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    for name in BOUNDED:
        at = places[name]
        told = [metadata.row_group(each).column(at).statistics for each in range(metadata.num_row_groups)]
        if told and all(each is not None and each.has_min_max for each in told):
            least, most = min(each.min_raw for each in told), max(each.max_raw for each in told)
            found[name] = (_text(least), _text(most), sum(each.null_count for each in told))
    return found


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


Split = Callable[[pa.RecordBatch], Iterator[tuple[str, pa.RecordBatch]]]
"""Rows by their directory; those of each in their order."""
DAY, HOUR, _FIELD = "day", "hour", "value."


class Partitioning(NamedTuple):
    """How a lake's directories are cut."""

    columns: Mapping[str, pa.DataType]
    """Which the directories add to the files' own, with their types in a table that has types for them."""
    split: Split
    field: str | None = None
    """That it goes by, as "value.region"; None: days, hours, or nothing."""

    def check(self, directory: str, number: int, *, in_store: bool) -> None:
        """Raise `ConfigError` where the directory, the range's `number`th, is one too many, or has too long a name."""
        longest = max(len(each.encode()) for each in directory.split("/"))
        if longest > NAME_BYTES and not in_store:
            raise ConfigError(
                f"--partition-by {self.field} has a value whose directory would have a name of {longest:,} bytes, and "
                f"file systems have {NAME_BYTES}: choose a field with shorter values"
            )
        if self.field is not None and number > _MOST_VALUES:
            raise ConfigError(
                f"--partition-by {self.field} has more than {_MOST_VALUES:,} values in one range, each a directory: "
                f"choose a field with fewer"
            )


def partitioning(by: str, *, typed: bool = True) -> Partitioning:
    """Partitioning by "day", "hour", or a field of values that are `typed`, as "value.region". Raises `ConfigError`."""
    if by == DAY:
        return Partitioning({"date": pa.date32()}, by_day)
    if by == HOUR:
        return Partitioning({"date": pa.date32(), "hour": pa.int32()}, _BY_HOUR)
    path = field_path(by)
    if not path or not all(path):
        raise ConfigError(f"--partition-by {by!r} is neither day nor hour, nor a field such as value.region")
    if not typed:
        raise ConfigError(f"--partition-by {by!r} is a field of values that are columns: say --columns, too")
    # Engines take no notice of capitals: Spark would have the directory's value in place of the record's own.
    if path[-1].lower() in {each.lower() for each in SCHEMA.names}:
        raise ConfigError(f"--partition-by {by!r}: the lake has a column {path[-1]!r} of its own; choose another field")
    return Partitioning({path[-1]: pa.string()}, partial(_by_field, path, "", NO_DATE), by)


DATA = "data"
"""Where an Iceberg table's files lie below its location: engines that clear what no snapshot names look there."""


def hidden_partitioning(by: str, *, typed: bool) -> Partitioning:
    """As `partitioning`, for an Iceberg table: it has no columns more, as partitions are reckoned from its own. So all
    rows of a file have one value exactly, whether a calendar has it or not. Raises `ConfigError`.
    """
    if by == DAY:
        return Partitioning({}, _BY_EXACT_DAY)
    if by == HOUR:
        return Partitioning({}, _BY_EXACT_HOUR)
    partitioning(by, typed=typed)
    return Partitioning({}, partial(_by_field, field_path(by), f"{DATA}/", ""), by)


def field_path(by: str) -> list[str]:
    """Names of the field that a partitioning goes by, from the value's own fields on; none of a day or an hour."""
    return by.removeprefix(_FIELD).split(".") if by.startswith(_FIELD) else []


CHANGES = f"{OWN}/changes"
"""Where the files of a round lie that is to be merged; none of them is the table's."""


def changes() -> Partitioning:
    """For a table whose rows are merged by key: a round's files lie apart, and the table has no directories."""
    return Partitioning({}, _as_changes)


def _as_changes(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Raises `ConfigError` for a record without a key."""
    keys = batch.column("key")
    if keys.null_count:
        at = pc.index(keys.is_null(), True).as_py()
        topic, partition, offset = (batch.column(name)[at] for name in ("topic", "partition", "offset"))
        raise ConfigError(
            f"{topic}-{partition}@{offset} has no key, and a table that is merged by key has no row for it: export "
            f"this topic without --merge-by"
        )
    yield CHANGES, batch


def values_in(path: str) -> dict[str, str | None]:
    """Values of the partitioning's columns in a file's path; null where the directory says so."""
    pairs = (each.split("=", 1) for each in path.split("/")[:-1] if "=" in each)
    return {name: None if value == NO_DATE else unquote(value) for name, value in pairs}


def _by_time(
    step_us: int, name_of: Callable[[int], str], none: str, batch: pa.RecordBatch
) -> Iterator[tuple[str, pa.RecordBatch]]:
    # Whole days back from 1970 would be rounded up: times before it are none that a record has.
    steps = pc.divide(batch.column("timestamp").view(pa.int64()), step_us)
    return _by_number(batch, steps, name_of, none)


def _hour(number: int) -> str:
    day = _day(number // 24)
    return f"date={day}/hour={NO_DATE if day == NO_DATE else f'{number % 24:02}'}"


def _exact_day(number: int) -> str:
    day = _day(number)
    return str(number) if day == NO_DATE else day


by_day: Split = partial(_by_time, _DAY_US, lambda day: f"date={_day(day)}", f"date={NO_DATE}")
"""The rows of each day in UTC."""
_BY_HOUR: Split = partial(_by_time, _HOUR_US, _hour, f"date={NO_DATE}/hour={NO_DATE}")
_BY_EXACT_DAY: Split = partial(
    _by_time, _DAY_US, lambda day: f"{DATA}/timestamp_day={_exact_day(day)}", f"{DATA}/timestamp_day={NO_DATE}"
)
_BY_EXACT_HOUR: Split = partial(
    _by_time,
    _HOUR_US,
    lambda hour: f"{DATA}/timestamp_hour={_exact_day(hour // 24)}-{hour % 24:02}",
    f"{DATA}/timestamp_hour={NO_DATE}",
)


def _by_field(
    path: Sequence[str], place: str, empty: str, batch: pa.RecordBatch
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """`place`: what is before a directory's name, `empty`: what stands for an empty text in it, which may be no name.
    Raises `ConfigError` for a field that is not there, or that is of several values itself.
    """

    def name(value: str) -> str:
        # It may look like what stands for null.
        told = visible(value) if value == NO_DATE else quote(value, safe="")
        return f"{place}{path[-1]}={told or empty}"

    column = batch.column("value")
    for field in path:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(field) < 0:
            raise ConfigError(f"--partition-by value.{'.'.join(path)}: the values have no field {field!r}")
        column = pc.struct_field(column, field)
    try:
        texts = column.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(f"--partition-by value.{'.'.join(path)} is of {column.type}: choose a plain field") from error
    encoded = (_exact_dates(column, texts) if place and pa.types.is_date32(column.type) else texts).dictionary_encode()
    directories = list(map(name, encoded.dictionary.to_pylist()))
    return _by_number(batch, encoded.indices, directories.__getitem__, f"{place}{path[-1]}={NO_DATE}")


_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Of the years 1 to 9999, in days since 1970."""


def _exact_dates(dates: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts of dates; of those that no calendar has their numbers, as `_exact_day` has them."""
    days = dates.view(pa.int32())
    there = pc.and_(pc.greater_equal(days, _FIRST_DAY), pc.less_equal(days, _LAST_DAY))
    return pc.if_else(there, texts, days.cast(pa.string()))


def _by_number(
    batch: pa.RecordBatch, numbers: pa.Array, name_of: Callable[[int], str], none: str
) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    bounds = pc.min_max(numbers)
    if not numbers.null_count and bounds["min"] == bounds["max"]:
        yield name_of(bounds["min"].as_py()), batch
        return
    # Stable: the rows of each number stay in their order.
    order = pc.sort_indices(numbers)
    batch, counted = batch.take(order), pc.value_counts(numbers.take(order))
    at = 0
    for number, count in zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True):
        yield none if number is None else name_of(number), batch.slice(at, count)
        at += count


_days: dict[int, str] = {}


def _day(number: int) -> str:
    if (known := _days.get(number)) is None:
        try:
            known = f"{datetime.fromtimestamp(number * 86_400, UTC):%Y-%m-%d}"
        except (ValueError, OverflowError, OSError):
            # Of a producer that writes microseconds, say: the record is kept, its time is no day that there is.
            known = NO_DATE
        _days[number] = known
    return known
