"""What every contender's handler does with a record, and where it counts: shared memory that the benchmark reads.

Imported by the contenders' programs, each in an environment of its own: the standard library only. A process has one
file, mapped: a 64-bit cell for each partition, `count << 42 | sum of offsets`, so that one addition counts a record and
leaves evidence of which one it was; then how many delays there are, and the delays.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

BOOTSTRAP = os.environ["BENCH_BOOTSTRAP"]
TOPIC = os.environ["BENCH_TOPIC"]
GROUP = os.environ["BENCH_GROUP"]
FORM = os.environ["BENCH_FORM"]
"""Which of a program's ways to consume is meant."""
WORKERS = int(os.environ["BENCH_WORKERS"])
HEARTBEAT_MS, SESSION_MS = 1000, 45_000
"""Of every contender."""

ONE = 1 << 42
"""Counts one record. The sum below it holds for 2.9 million records of a partition."""
MOST_DELAYS = 100_000
PARTITIONS = int(os.environ["BENCH_PARTITIONS"])
KIND = os.environ["BENCH_HANDLER"]
_LOOPS = int(os.environ["BENCH_LOOPS"])
_WAIT_SECONDS = 0.005
_lock = threading.Lock()

Value: TypeAlias = Any
"""Bytes. Clients say "or None", since other topics have tombstones; a check for each record would be measured, too."""

cells: memoryview


def open_cells() -> None:
    """This process's own file; after a fork another one."""
    global cells  # noqa: PLW0603 - the handlers' fastest way to it
    size = 8 * (PARTITIONS + 1 + 2 * MOST_DELAYS)
    path = Path(os.environ["BENCH_TALLIES"]) / str(os.getpid())
    with path.open("w+b") as file:
        file.truncate(size)
        cells = memoryview(mmap.mmap(file.fileno(), size)).cast("Q")


open_cells()
os.register_at_fork(after_in_child=open_cells)


def nothing(partition: int, offset: int, value: Value) -> None:
    """Look at the value and count."""
    len(value)
    cells[partition] += ONE + offset


def work(partition: int, offset: int, value: Value) -> None:
    """Decode JSON and compute for a while: about 20 µs on the machine that the loops were counted on."""
    json.loads(value)
    total = 0
    for number in range(_LOOPS):
        total += number
    cells[partition] += ONE + offset


def wait(partition: int, offset: int, value: Value) -> None:
    """Wait, as for a database. Contenders call it from several threads."""
    time.sleep(_WAIT_SECONDS)
    with _lock:
        cells[partition] += ONE + offset


async def wait_async(partition: int, offset: int, value: Value) -> None:
    """Wait without keeping the event loop from other records."""
    await asyncio.sleep(_WAIT_SECONDS)
    cells[partition] += ONE + offset


def delay(partition: int, offset: int, value: Value) -> None:
    """Note when the record was sent and how long ago; its value is nanoseconds since the epoch."""
    now, sent = time.time_ns(), int(value)
    number = cells[PARTITIONS]
    at = PARTITIONS + 1 + 2 * number
    cells[at], cells[at + 1] = sent, now - sent
    cells[PARTITIONS] = number + 1
    cells[partition] += ONE + offset


KINDS: dict[str, Callable[[int, int, Value], None]] = {"nothing": nothing, "work": work, "wait": wait, "delay": delay}
handle = KINDS[KIND]


def _nothing_at_once(partition: int, offsets: Sequence[int], values: Sequence[Value]) -> None:
    sum(map(len, values))
    cells[partition] += ONE * len(offsets) + sum(offsets)


def _one_by_one(partition: int, offsets: Sequence[int], values: Sequence[Value]) -> None:
    for offset, value in zip(offsets, values, strict=True):
        handle(partition, offset, value)


handle_run = _nothing_at_once if KIND == "nothing" else _one_by_one
"""Several records of one partition, for who gets them like that."""
