"""What becomes of the rows of one range, in its task: they are counted, dead letters are sent, and if any record failed
all rows are written to the range's file.

Of several tries of one range the first whose file is there counts, and the others go by it: an executor that Spark has
lost, but that lives on, may end its try at any time, and what the driver has counted must stay. A try for a later
driver replaces the file: what the one before it left was not counted. A try for an earlier driver goes by it: that
driver was replaced, and whoever replaced it has counted.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO, Self

import pyarrow.parquet as pq

from kunicorn.handler.retry import End
from kunicorn.pipeline.storage import Directory, visible
from kunicorn.pipeline.tasks.executor_process import FILTERED, SettingsFile
from kunicorn.pipeline.tasks.letters import Letters, letters_of
from kunicorn.pipeline.tasks.outcomes import SCHEMA, Row, table
from kunicorn.positions import OffsetRange

log = logging.getLogger("kunicorn.pipeline")

_DRIVER = "kunicorn.driver"
"""Key in the footer of a range's file."""
_COUNTED = ["topic", "partition", "offset", "until", "records", "status", "error_type", "error_message"]
"""Columns by which a range is summed up. Of the others one may have what Python cannot: a time beyond the year 9999."""
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
    return f"{visible(whole.topic)}/{whole.partition}/{whole.start:020}-{whole.stop:020}.parquet"


def of_micro_batch(driver: str, number: int) -> str:
    """The driver's id for one of its micro-batches; it sorts behind those of the driver's former ones."""
    return f"{driver}-{number:019}"


def remove_other_cuts(outcomes: Directory, whole: OffsetRange, driver: str) -> None:
    """Delete what a driver before has written of the same micro-batch under other ranges that overlap this one: if
    records were lost since, the micro-batch is repeated without them. `driver`: as `of_micro_batch` has it.
    """
    folder, _, own = rows_file(whole).rpartition("/")
    for name in (outcomes / folder).names(".parquet"):
        bounds = _BOUNDS.fullmatch(name)
        if name == own or bounds is None or int(bounds[2]) <= whole.start or whole.stop <= int(bounds[1]):
            continue
        # A topic that was created anew has its rows beside the former one's, which are of another micro-batch.
        if _driver_of(outcomes, f"{folder}/{name}").rpartition("-")[2] == driver.rpartition("-")[2]:
            outcomes.delete(f"{folder}/{name}")


def _driver_of(outcomes: Directory, name: str) -> str:
    told: bytes = (outcomes.footer(name).metadata or {}).get(_DRIVER.encode(), b"")
    return told.decode()


_BOUNDS = re.compile(r"(\d{20})-(\d{20})\.parquet")
"""Name of a range's file in its directory."""


def publish(outcomes: Directory, name: str, content: IO[bytes], driver: str) -> bool:
    """Put a file of that driver's where readers see it, in the place of a former driver's. False: there is one of this
    driver, or of a later one, and it counts. `content`: has `footer_of` the driver in its footer.
    """
    if outcomes.create_of(name, content):
        return True
    if later := _driver_of(outcomes, name) < driver:
        outcomes.write_of(name, content)
    return later


def footer_of(driver: str) -> dict[str, str]:
    """What a file's footer has to say for `publish`."""
    return {_DRIVER: driver}


class RangeOutcomes:
    """Rows of one range, in their order. As a context it leaves no unfinished file. Caller: a task's main thread."""

    def __init__(
        self, file: SettingsFile, outcomes: Directory, whole: OffsetRange, driver: str, *, again: bool
    ) -> None:
        """`driver`: for whom the range is handled; a later one's sorts behind it. `again`: it may have been tried
        before, so that there is a file also without a failure."""
        self._file, self._outcomes, self._whole, self._driver = file, outcomes, whole, driver
        self._again = again
        self.waited = 0.0
        """Seconds for which the range was through, and others of its task were not."""
        self._began = time.monotonic()
        self._filtered_before = FILTERED.of(whole.tp)
        self._counts = Counter[str]()
        self._rows: list[Row] = []
        self._bytes = 0
        self._last: Row | None = None
        self._letters: Letters | None = None
        self._has_letters = False
        self._written: IO[bytes] | None = None
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
        self._bytes += _bytes_of(row)
        if len(self._rows) >= _ROWS or self._bytes >= _ROWS_BYTES:
            self._write()

    def end(self) -> Summary:
        """Finish the range: its letters are acknowledged, its file is there. Raises as `add`."""
        if self._letters is not None:
            self._letters.flush()
        plain = len(self._rows) < 2 and all(row["status"] == End.DONE for row in self._rows)
        if self._again or self._writer is not None or not plain:
            self._write()
            self._publish()
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
            seconds=time.monotonic() - self._began - self.waited,
            filtered=FILTERED.of(self._whole.tp) - self._filtered_before,
        )

    def _write(self) -> None:
        if self._writer is None:
            self._written = self._open.enter_context(SpooledTemporaryFile(_ROWS_BYTES))  # noqa: SIM115
            self._writer = self._open.enter_context(pq.ParquetWriter(self._written, SCHEMA))
            self._writer.add_key_value_metadata(footer_of(self._driver))
        if self._rows:
            self._writer.write_batch(table(self._rows))
        self._rows, self._bytes = [], 0

    def _publish(self) -> None:
        """Put the file where readers see it, or go by the one that is there."""
        assert self._writer is not None
        assert self._written is not None
        self._writer.close()
        name = rows_file(self._whole)
        if publish(self._outcomes, name, self._written, self._driver):
            return
        log.warning(f"{self._whole}: another try of this range has ended before this one, and counts")
        self._counts.clear()
        for batch in self._outcomes.batches(name, columns=_COUNTED):
            for self._last in batch.to_pylist():
                self._counts[self._last["status"]] += self._last["records"]


def _bytes_of(row: Row) -> int:
    """What a row takes that may be large: the record of a dead letter, and what went wrong with it."""
    parts = [row.get(name) for name in ("key", "value", "error_message", "error_stack")]
    parts += [each["value"] for each in row.get("headers") or ()]
    return sum(map(len, filter(None, parts)))


def _why(row: Row) -> str:
    message = f": {row['error_message']}" if row["error_message"] else ""
    return f"{row['topic']}-{row['partition']}@{row['offset']}: {row['error_type']}{message}"
