"""What the rows of a range take of a task's memory, where the handler fails on everything."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Message

from kunicorn.handler.dead_letters import Cause
from kunicorn.handler.retry import End
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks import range_outcomes
from kunicorn.pipeline.tasks.executor_process import SettingsFile
from kunicorn.pipeline.tasks.outcomes import Tiling
from kunicorn.pipeline.tasks.range_outcomes import RangeOutcomes
from kunicorn.positions import OffsetRange

MIB = 2**20
RECORDS = 200
WHOLE = OffsetRange("orders", 3, 0, RECORDS)


def letter(offset: int, part: str) -> tuple[Message, Cause]:
    """A record, and why it failed; a mebibyte of it is in that part."""
    large = bytes(MIB)
    message = Message(
        topic="orders",
        partition=3,
        offset=offset,
        key=large if part == "key" else None,
        value=large if part == "value" else None,
        headers=[("h", large)] if part == "headers" else [],
    )
    return message, Cause("ValueError", "", "x" * MIB if part == "stack" else "", 1)


@pytest.mark.parametrize("part", ["key", "value", "headers", "stack"])
def test_rows_are_held_back_up_to_a_bound_in_bytes_whatever_is_large_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(range_outcomes, "letters_of", lambda file: None)
    place, tiling = Directory(str(tmp_path)), Tiling(WHOLE)
    arrow = 0
    tracemalloc.start()
    try:
        with RangeOutcomes(SettingsFile("", ""), place, WHOLE, "one", again=False) as found:
            for offset in range(RECORDS):
                message, cause = letter(offset, part)
                for row in tiling.failed(message, End.DEAD_LETTER, cause, 0):
                    found.add(row)
                del message, cause, row
                arrow = max(arrow, pa.total_allocated_bytes())
            summary = found.end()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * MIB, "of 200 that went through it"
    assert arrow < 50 * MIB
    assert summary.dead_letters == RECORDS
