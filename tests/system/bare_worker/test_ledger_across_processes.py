"""The ledger between two real processes, the writer killed again and again: never an impossible value."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kunicorn.ipc.ledger import Ledger
from tests.waiting import wait_until

SERVICE = Path(__file__).parents[3] / "service"
GRANT, SLOT = 7, 3
STRIDE = 0x0001_0001_0001_0001
"""Offsets are multiples of it: every 16 bits of an offset are the same, so that one stored in parts would show."""
PER_EPOCH = 16

WRITER = f"""
import sys
from kunicorn.ipc.ledger import CONSUMED, LEADER_EPOCH, Ledger
from kunicorn.positions import Position
ledger = Ledger(int(sys.argv[1]))
at = ledger.index({SLOT})
if ledger.read({SLOT}, {GRANT}).consumed.offset == -1:
    ledger.open_slot({SLOT}, {GRANT}, Position({STRIDE}, 0))
number = ledger.read({SLOT}, {GRANT}).consumed.offset // {STRIDE}
cells = ledger.cells
while True:
    for number in range(number, 0x7FFF):
        if number % {PER_EPOCH} == 0:
            cells[at + LEADER_EPOCH] = number // {PER_EPOCH}
        cells[at + CONSUMED] = number * {STRIDE}
    number = 1
    cells[at + CONSUMED] = {STRIDE}
"""


@contextmanager
def writer(ledger: Ledger) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stores offsets as fast as it can, until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(ledger.fd)],
        pass_fds=[ledger.fd],
        env={**os.environ, "PYTHONPATH": str(SERVICE)},
    )
    try:
        before = ledger.read(SLOT, GRANT).consumed
        wait_until(lambda: ledger.read(SLOT, GRANT).consumed != before, "the writer to write")
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)


def read_and_kill(reads: int, writers: int) -> None:
    """Read all the while; each writer goes on where the one killed before it stopped."""
    ledger = Ledger.create(16)
    seen = set()
    try:
        for _ in range(writers):
            with writer(ledger):
                for _ in range(reads // writers):
                    offset = ledger.read(SLOT, GRANT).consumed.offset
                    number, rest = divmod(offset, STRIDE)
                    assert rest == 0, f"{offset:#x} was never stored as a whole"
                    assert number > 0, f"{offset:#x} was never stored at all"
            last = ledger.read(SLOT, GRANT)
            seen.add(last.consumed.offset)
            assert last == ledger.read(SLOT, GRANT), "final once the writer is dead"
            assert last.consumed.offset % STRIDE == 0
    finally:
        ledger.close()
    assert len(seen) > writers // 2, "the writers were writing all the while"


def test_a_million_reads_beside_writers_that_are_killed_find_only_what_was_stored() -> None:
    read_and_kill(1_000_000, 10)


@pytest.mark.long
def test_ten_million_reads_beside_writers_that_are_killed_find_only_what_was_stored() -> None:
    read_and_kill(10_000_000, 100)
