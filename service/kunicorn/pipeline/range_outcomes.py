"""What becomes of the rows of one range, in its task: they are counted, dead letters are sent, and if any record failed
all rows are written to the range's file.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow.parquet as pq

from kunicorn.handler.retry import End
from kunicorn.pipeline.executors import FILTERED, SettingsFile
from kunicorn.pipeline.letters import Letters, letters_of
from kunicorn.pipeline.outcomes import SCHEMA, Row, table
from kunicorn.pipeline.storage import Directory
from kunicorn.positions import OffsetRange

_ROWS = 1000
_ROWS_BYTES = 8 * 1024 * 1024
"""Rows held back at most, and what their records take: a handler that fails on everything must not fill the memory,
here or where the rows are read again.
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of one range."""

    topic: str
    partition: int
    start: int
    stop: int
    until: int
    """The next offset to handle; below `stop` where the partition halts."""
    records: int
    """That are done."""
    skipped: int
    dead_letters: int
    halted: str | None
    """Reason why the partition halts; None if it does not."""
    file: str
    """Its rows of the outcome table, below the run's directory; empty: none failed, and there is no file."""
    seconds: float
    filtered: int = 0
    """Of `records`: those that filters passed by, so that the handler never saw them."""

    @property
    def range(self) -> OffsetRange:
        """Range that the task was given."""
        return OffsetRange(self.topic, self.partition, self.start, self.stop)


def rows_file(whole: OffsetRange) -> str:
    """Name of a range's file: the same at every attempt, and sorted as the offsets are."""
    return f"{whole.topic}/{whole.partition}/{whole.start:020}-{whole.stop:020}.parquet"


class RangeOutcomes:
    """Rows of one range, in their order. As a context it leaves no unfinished file. Caller: a task's main thread."""

    def __init__(self, file: SettingsFile, outcomes: Directory, whole: OffsetRange, *, again: bool) -> None:
        """`again`: the range may have been tried before. What that try has written is replaced, also by a file without
        a failure."""
        self._file, self._outcomes, self._whole, self._again = file, outcomes, whole, again
        self._began = time.monotonic()
        self._filtered_before = FILTERED.of(whole.tp)
        self._counts = Counter[str]()
        self._rows: list[Row] = []
        self._bytes = 0
        self._last: Row | None = None
        self._letters: Letters | None = None
        self._has_letters = False
        self._writer: pq.ParquetWriter | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def add(self, row: Row) -> None:
        """Take in the next row. Blocks on the dead-letter topic while that is full. Raises `LettersRefused`,
        `ConfigError`.
        """
        self._counts[row["status"]] += row["records"]
        if row["status"] == End.DEAD_LETTER:
            if not self._has_letters:
                self._letters, self._has_letters = letters_of(self._file), True
            if self._letters is not None:
                self._letters.add(row)
        self._last = row
        self._rows.append(row)
        self._bytes += len(row.get("value") or b"")
        if len(self._rows) >= _ROWS or self._bytes >= _ROWS_BYTES:
            self._write()

    def end(self) -> Summary:
        """Finish the range: its letters are acknowledged, its file is there. Raises as `add`."""
        if self._letters is not None:
            self._letters.flush()
        plain = len(self._rows) < 2 and all(row["status"] == End.DONE for row in self._rows)
        if self._again or self._writer is not None or not plain:
            self._write()
        self._open.close()
        last, counts = self._last, self._counts
        return Summary(
            *self._whole,
            until=self._whole.start if last is None else last["until"],
            records=counts[End.DONE],
            skipped=counts[End.SKIP],
            dead_letters=counts[End.DEAD_LETTER],
            halted=_why(last) if last is not None and last["status"] == End.HALT else None,
            file="" if self._writer is None else rows_file(self._whole),
            seconds=time.monotonic() - self._began,
            filtered=FILTERED.of(self._whole.tp) - self._filtered_before,
        )

    def _write(self) -> None:
        if self._writer is None:
            stream = self._open.enter_context(self._outcomes.writing(rows_file(self._whole)))
            self._writer = self._open.enter_context(pq.ParquetWriter(stream, SCHEMA))
        if self._rows:
            self._writer.write_batch(table(self._rows))
        self._rows, self._bytes = [], 0


def _why(row: Row) -> str:
    message = f": {row['error_message']}" if row["error_message"] else ""
    return f"{row['topic']}-{row['partition']}@{row['offset']}: {row['error_type']}{message}"
