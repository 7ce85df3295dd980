"""The handlers of the soak: the demo's, which only write the audit, and those that send or keep something besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from examples import offsets_in_sqlite
from kunicorn import Batch, Record, Send, Worker
from kunicorn.commands.demo.audit import handle, handle_async, handle_batch
from kunicorn.ipc.clock import now_ns
from tests.system.handlers.lethal import audit_log

__all__ = ["handle", "handle_async", "handle_batch"]


def output(record: Record) -> str:
    """What is sent for a record: its place, and when it was made, by the clock of the audit."""
    return f"{record.partition}:{record.offset}:{now_ns()}"


def send(record: Record) -> Send:
    """One output for each record, that names it."""
    handle(record)
    return Send(value=output(record), key=record.key)


async def send_async(record: Record) -> Send:
    """Likewise."""
    await handle_async(record)
    return Send(value=output(record), key=record.key)


def send_batch(batch: Batch) -> list[Send]:
    """One for each of the batch."""
    handle_batch(batch)
    return [Send(value=output(record), key=record.key) for record in batch]


_FROZEN_MS = 300_000
"""For longer than any fault has a member frozen."""


class KeptRecords(offsets_in_sqlite.Payments):
    """The example that keeps offsets beside effects, in the file that the option `path` names."""

    def setup(self, worker: Worker, options: Mapping[str, Any]) -> None:
        super().setup(worker, options)
        # A killed process leaves to the kernel what it wrote; against a power cut nothing is tried here.
        self.db.execute("PRAGMA synchronous = OFF")
        # A member that is frozen inside its transaction keeps all others from writing: they wait for it, as they would
        # for a row of a database server, and do not fail.
        self.db.execute(f"PRAGMA busy_timeout = {_FROZEN_MS}")

    def handle(self, record: Record) -> None:
        self.keep([record])

    def keep(self, records: Sequence[Record]) -> None:
        """The effects of the records, and the offset behind them, in one transaction."""
        audit_log().begin(records)
        with self.transaction():
            for record in records:
                if self.moves_on(record):
                    self.pay(record)
            # Before the commit: who is killed behind it has no say any more, and nobody gets these records again.
            audit_log().end(records)


class KeptBatches(KeptRecords):
    """A batch in a transaction; it is of one partition."""

    def handle(self, batch: Any) -> None:
        self.keep(batch)
