"""Reads a ledger as fast as it can while its writers are killed: no reading may ever be impossible.

    python -m tests.system.bare_worker.ledger_torture --reads 10000000 --kills 300

A writer behaves like a worker with a trivial handler, under a leader epoch that grows every `EPOCH_RECORDS` records. Of
every reading must hold: the offset is one that was stored, as a whole; it only grows under one grant, and is never 0,
which no writer ever stores; the epoch is never older than the offset's own; what is in hand is a chunk that a writer
really took. And a reading is final once the writer is dead.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from kunicorn.ipc.ledger import CONSUMED, HAND_COUNT, HAND_OFFSET, HANDLED, LEADER_EPOCH, Ledger
from kunicorn.positions import Position

EPOCH_RECORDS = 1000
CHUNK = 50
START = 1_000_000
STRIDE = 0x1_0000_0001
"""Offsets are multiples of it: both halves of one are the same, so that one stored in parts would show."""
ROOT = Path(__file__).parents[3]


def epoch_of(number: int) -> int:
    """The leader epoch of the record of that number."""
    return number // EPOCH_RECORDS


def write(fd: int, grant: int) -> None:
    """Be a worker under that grant until killed."""
    ledger = Ledger(fd)
    cells, at = ledger.cells, Ledger.index(0)
    ledger.open_slot(0, grant, Position(START * STRIDE, epoch_of(START - 1)))
    number = START
    while True:
        cells[at + HAND_OFFSET] = number * STRIDE
        cells[at + HAND_COUNT] = CHUNK
        for _ in range(CHUNK):
            if epoch_of(number) != epoch_of(number - 1):
                cells[at + LEADER_EPOCH] = epoch_of(number)
            number += 1
            cells[at + CONSUMED] = number * STRIDE
        cells[at + HANDLED] += CHUNK
        cells[at + HAND_COUNT] = 0


class Reader:
    """Reads slot 0 and checks what it sees."""

    def __init__(self, ledger: Ledger) -> None:
        self.readings = 0
        self.changes = 0
        self._ledger = ledger
        self._last = 0

    def follow(self, grant: int) -> None:
        """A new writer starts under this grant."""
        self._grant, self._last = grant, 0

    def read(self, times: int) -> None:
        """Check so many readings. Raises `AssertionError` for an impossible one."""
        ledger, grant, last = self._ledger, self._grant, self._last
        for _ in range(times):
            reading = ledger.read(0, grant)
            if not reading.started:
                assert last == 0, "the slot forgot its grant"
                continue
            offset, epoch, _ = reading.consumed
            number, rest = divmod(offset, STRIDE)
            assert rest == 0, f"{offset:#x} was never stored as a whole"
            assert number >= max(last, START), f"record {number} after {last}"
            assert epoch >= epoch_of(number - 1), f"epoch {epoch} with record {number}"
            assert reading.hand_count in (0, CHUNK), reading
            assert reading.handled % CHUNK == 0, reading
            self.changes += number != last
            last = number
        self._last = last
        self.readings += times


def torture(reads: int, kills: int) -> Reader:
    """So many readings in all, spread over so many writers, each killed at a random instant."""
    ledger = Ledger.create(4)
    os.set_inheritable(ledger.fd, True)
    reader = Reader(ledger)
    command = [sys.executable, "-m", "tests.system.bare_worker.ledger_torture", "--writer", str(ledger.fd)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "service")))}
    for grant in range(1, kills + 1):
        reader.follow(grant)
        with subprocess.Popen([*command, "--grant", str(grant)], pass_fds=[ledger.fd], env=environment) as writer:
            try:
                deadline = time.monotonic() + 120
                while not ledger.read(0, grant).started:
                    assert time.monotonic() < deadline, "the writer does not start"
                for _ in range(10):
                    reader.read(random.randint(1, max(1, 2 * reads // kills // 10)))
            finally:
                writer.send_signal(signal.SIGKILL)
        reader.read(1)
        assert ledger.read(0, grant) == ledger.read(0, grant), "final once its writer is dead"
    ledger.close()
    return reader


def main() -> None:
    """Writer or torturer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--writer", type=int)
    parser.add_argument("--grant", type=int, default=0)
    options = parser.parse_args()
    if options.writer is not None:
        write(options.writer, options.grant)
    reader = torture(options.reads, options.kills)
    print(f"{reader.readings} readings, {reader.changes} changes seen, {options.kills} writers killed: all possible")


if __name__ == "__main__":
    main()
