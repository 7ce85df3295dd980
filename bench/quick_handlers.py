"""Handlers that do next to nothing, so that what is measured is the way to them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from kunicorn import Batch, Record, Send

WAIT_SECONDS = 0.005
delays: list[int] = []


def count(record: Record) -> None:
    """Touch the value, as every handler does."""
    len(record.value or b"")


def copy(record: Record) -> Send:
    """One output for each input."""
    return Send(value=record.value, key=record.key)


def copy_with_work(record: Record) -> Send:
    """Likewise, after 100 µs of Python, such as parsing what is in it takes."""
    compute(100_000)
    return Send(value=record.value, key=record.key)


def copy_with_little_work(record: Record) -> Send:
    """Likewise, after 20 µs."""
    compute(20_000)
    return Send(value=record.value, key=record.key)


def compute(nanoseconds: int) -> None:
    """Keep the interpreter busy."""
    until = time.perf_counter_ns() + nanoseconds
    while time.perf_counter_ns() < until:
        pass


def count_batch(records: Batch) -> None:
    """Touch every value."""
    sum([len(value or b"") for value in records.values()])


def wait_a_little(record: Record) -> None:
    """About 200 µs, as for a cache nearby."""
    time.sleep(0.0002)


class Delays:
    """Notes how long ago each record was sent; the values are nanoseconds of the monotonic clock."""

    def setup(self, options: dict[str, str]) -> None:
        """Where the delays go."""
        self._path = Path(options["path"])

    def __call__(self, record: Record) -> None:
        delays.append(time.monotonic_ns() - int(record.value or b"0"))

    def teardown(self) -> None:
        """Write them."""
        self._path.write_text("\n".join(map(str, delays)))


note_delay = Delays()


def never_return(record: Record) -> None:
    """Have the first record in hand for ever."""
    while True:
        time.sleep(60)


def wait(record: Record) -> None:
    """As a handler does that asks a database."""
    time.sleep(WAIT_SECONDS)


async def wait_async(record: Record) -> None:
    """Likewise."""
    await asyncio.sleep(WAIT_SECONDS)


def count_columns(batch: Any) -> None:
    """Touch the values of a `pyarrow.RecordBatch`."""
    len(batch.column("value"))


def sum_column(batch: Any) -> None:
    """Sum a number of what the values hold, by pyarrow's compute."""
    import pyarrow.compute as pc

    pc.sum(batch.column("data").field("id")).as_py()
