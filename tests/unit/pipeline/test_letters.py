"""Dead letters made of outcome rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kunicorn.handler.retry import End
from kunicorn.pipeline.outcomes import SCHEMA, table
from kunicorn.pipeline.rounds import letters_in
from kunicorn.pipeline.storage import Directory


def row_of(offset: int, timestamp: int | None = 1, end: End = End.DEAD_LETTER) -> dict[str, object]:
    return {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "until": offset + 1,
        "records": 1,
        "status": end.value,
        "error_type": "ValueError",
        "error_message": "no",
        "error_stack": "",
        "attempts": 3,
        "time": 1_763_900_000_001,
        "timestamp": timestamp,
        "value": b"x",
        "headers": [],
    }


@pytest.mark.parametrize("timestamp", [1_763_900_000_000, 1_763_900_000_000_000, 2**53, None])
def test_a_letter_keeps_its_records_time_even_if_no_calendar_has_it(tmp_path: Path, timestamp: int | None) -> None:
    with pq.ParquetWriter(tmp_path / "rows.parquet", SCHEMA) as writer:
        writer.write_batch(table([row_of(7, timestamp)]))
    (letter,) = letters_in(Directory(str(tmp_path)), "rows.parquet", "shop")
    assert (letter.value, letter.timestamp) == (b"x", timestamp)


def test_letters_are_read_some_at_a_time_whatever_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A downstream that is away makes millions of them, and they pass through the driver."""
    ends = [End.SKIP if offset % 3 else End.DEAD_LETTER for offset in range(1000)]
    with pq.ParquetWriter(tmp_path / "rows.parquet", SCHEMA) as writer:
        writer.write_batch(table([row_of(offset, 1, end) for offset, end in enumerate(ends)]))
    largest: list[int] = []
    some_at_a_time = Directory.batches

    def batches(self: Directory, name: str) -> Iterator[pa.RecordBatch]:
        for batch in some_at_a_time(self, name):
            largest.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(Directory, "batches", batches)
    found = list(letters_in(Directory(str(tmp_path)), "rows.parquet", "shop"))
    assert len(found) == ends.count(End.DEAD_LETTER)
    assert max(largest) <= 100
