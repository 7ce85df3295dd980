"""The examples that keep offsets beside their effects, with records that end their process in the worst of moments.

`die inside` and `die after`: before and after the transaction's commit, the first time only; `slow` takes 20 ms.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from examples import offsets_in_postgres, offsets_in_sqlite
from kunicorn import Record


def _die_once(record: Record, word: bytes) -> None:
    mark = Path(os.environ["MARKS_DIRECTORY"]) / f"{record.partition}@{record.offset} {word.decode()}"
    if record.value == word and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class SqlitePayments(offsets_in_sqlite.Payments):
    """Into the file that the option `path` names."""

    def pay(self, record: Record) -> None:
        super().pay(record)
        _die_once(record, b"die inside")

    def handle(self, record: Record) -> None:
        super().handle(record)
        _die_once(record, b"die after")


class PostgresPayments(offsets_in_postgres.Payments):
    """Into the database that the option `dsn` names."""

    def pay(self, record: Record) -> None:
        super().pay(record)
        _die_once(record, b"die inside")
        if record.value == b"slow":
            time.sleep(0.02)

    def handle(self, record: Record) -> None:
        super().handle(record)
        _die_once(record, b"die after")
