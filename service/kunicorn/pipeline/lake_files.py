"""Files that one range writes into a lake: one for each day of its records, in the range's order.

1. What is held back is bounded by bytes, over all days together: the memory of a task follows neither from the size of
   records nor from how many days a range spans.
2. A day has one file, whose name is the range's: a try that follows replaces it. So a day is never closed and begun
   again. Where more days are open than files may be, those behind are kept on this machine's disk, and written at the
   end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message

from kunicorn.handler.record import milliseconds_of
from kunicorn.pipeline.storage import Directory

NO_DATE = "__HIVE_DEFAULT_PARTITION__"
_DAY_MS = 86_400_000


class LakeFile(NamedTuple):
    """File that a task has written, below the target."""

    path: str
    size: int
    records: int


class Columns(Protocol):
    """Maker of columns; see `export.LakeColumns`."""

    @property
    def schema(self) -> pa.Schema: ...

    def batch(self, messages: Sequence[Message]) -> pa.RecordBatch: ...


class Bounds(NamedTuple):
    """How much a range's files may take of a machine."""

    held_bytes: int = 32 * 1024 * 1024
    """Held back, of all days together; about the size of a row group in memory."""
    row_group: int = 100_000
    """Records: a row group is what readers skip or read as a whole."""
    open_files: int = 16
    """Each takes a part of an upload in memory, where the target is an object store."""


_BOUNDS = Bounds()


class DayFiles:
    """Files of a range. As a context it leaves no unfinished file, and nothing on this machine's disk."""

    def __init__(
        self, target: Directory, path_of: Callable[[str], str], columns: Columns, bounds: Bounds = _BOUNDS
    ) -> None:
        """`path_of`: a day's file, below the target."""
        self._target, self._path_of, self._columns, self._bounds = target, path_of, columns, bounds
        self._days: dict[str, _Day] = {}
        self._files = ExitStack()
        self._disk: Path | None = None
        self._open = 0
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def add(self, messages: Sequence[Message]) -> None:
        """Append messages, in order."""
        for name, some in groupby(messages, day_of):
            day = self._days.setdefault(name, _Day())
            batch = self._columns.batch(list(some))
            day.hold(batch)
            self.held_bytes += batch.nbytes
            if day.rows >= self._bounds.row_group:
                self._let_go(name, day)
            while self.held_bytes > self._bounds.held_bytes:
                self._let_go(*max(self._days.items(), key=lambda item: item[1].bytes))

    def close(self) -> list[LakeFile]:
        """Finish all files."""
        return [self._finish(name, day) for name, day in self._days.items()]

    def _let_go(self, name: str, day: _Day) -> None:
        """Write what is held of the day: to its file, or where too many are open to this machine's disk."""
        if day.writer is None and self._open < self._bounds.open_files and day.spilled is None:
            self._open += 1
            day.stream = self._files.enter_context(self._target.writing(self._path_of(name)))
            writer = pq.ParquetWriter(day.stream, self._columns.schema, compression="zstd")
            day.writer = self._files.enter_context(writer)
        self.held_bytes -= day.bytes
        if day.writer is not None:
            day.writer.write_table(day.taken(self._columns.schema))
        else:
            self._spill(name, day)

    def _spill(self, name: str, day: _Day) -> None:
        if self._disk is None:
            self._disk = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="kunicorn-export-")))
        day.spilled = self._disk / name
        with day.spilled.open("ab") as file, pa.ipc.new_stream(file, self._columns.schema) as stream:
            stream.write_table(day.taken(self._columns.schema))

    def _finish(self, name: str, day: _Day) -> LakeFile:
        self.held_bytes -= day.bytes
        path, records = self._path_of(name), day.records
        rest = day.taken(self._columns.schema)
        if day.writer is not None:
            if rest.num_rows:
                day.writer.write_table(rest)
            day.writer.close()
            return LakeFile(path, day.stream.tell(), records)
        with self._target.writing(path) as stream:
            with pq.ParquetWriter(stream, self._columns.schema, compression="zstd") as writer:
                for table in self._grouped(day, rest):
                    writer.write_table(table)
            return LakeFile(path, stream.tell(), records)

    def _grouped(self, day: _Day, rest: pa.Table) -> Iterator[pa.Table]:
        """What lies on the disk and the rest, in row groups of the bounds."""
        some, size, rows = list[pa.Table](), 0, 0
        for table in chain(() if day.spilled is None else _read(day.spilled), [rest]):
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
        self.spilled: Path | None = None
        self._held: list[pa.RecordBatch] = []

    def hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self.bytes += batch.nbytes
        self.rows += batch.num_rows
        self.records += batch.num_rows

    def taken(self, schema: pa.Schema) -> pa.Table:
        """What is held; nothing is any more."""
        table = pa.Table.from_batches(self._held, schema)
        self._held, self.bytes, self.rows = [], 0, 0
        return table


def _read(path: Path) -> Iterator[pa.Table]:
    """Tables in a file to which one stream after the other was appended."""
    end = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < end:
            with pa.ipc.open_stream(file) as stream:
                yield stream.read_all()


def day_of(message: Message) -> str:
    """Day of the record in UTC, as directories of a lake are named."""
    milliseconds = milliseconds_of(message)
    return NO_DATE if milliseconds is None else _day(milliseconds // _DAY_MS)


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
