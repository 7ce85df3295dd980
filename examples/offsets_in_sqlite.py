"""Exactly once into SQLite: effects and offset in one transaction.

    [handler]
    entrypoint = "examples.offsets_in_sqlite:Payments"
    [handler.options]
    path = "/var/lib/shop/payments.db"

One file for all workers of a service. SQLite has one writer at a time: for more than that take a database server, as
in `offsets_in_postgres`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kunicorn import Record, TopicPartition, Worker

TABLES = """
CREATE TABLE IF NOT EXISTS kept_offsets (
    group_id TEXT, topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL,
    PRIMARY KEY (group_id, topic, partition));
CREATE TABLE IF NOT EXISTS payments (topic TEXT, partition INTEGER, at INTEGER, amount TEXT);
"""
_WRITER_SECONDS = 30.0


class Payments:
    """Enters every record as a payment."""

    def setup(self, worker: Worker, options: Mapping[str, Any]) -> None:
        self.group = worker.group_id
        # Transactions begin where it is written: the module's own begin too late, after the first read.
        self.db = sqlite3.connect(options["path"], timeout=_WRITER_SECONDS, isolation_level=None)
        # Of two workers that switch the file at once, one is told that it is locked: the other one does it.
        with suppress(sqlite3.OperationalError):
            self.db.execute("PRAGMA journal_mode = WAL")
        self.db.executescript(TABLES)

    def teardown(self) -> None:
        self.db.close()

    def load_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        rows = self.db.execute(
            "SELECT topic, partition, next_offset FROM kept_offsets WHERE group_id = ?", (self.group,)
        )
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def store_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.db.executemany(
            "INSERT INTO kept_offsets VALUES (?, ?, ?, ?)"
            " ON CONFLICT (group_id, topic, partition) DO UPDATE SET next_offset = excluded.next_offset",
            [(self.group, tp.topic, tp.partition, offset) for tp, offset in offsets.items()],
        )

    def handle(self, record: Record) -> None:
        with self.transaction():
            if self.moves_on(record):
                self.pay(record)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it, or nothing: also where an interruption meets the beginning, which may wait for another writer."""
        with self.db:
            self.db.execute("BEGIN IMMEDIATE")
            yield

    def moves_on(self, record: Record) -> bool:
        """Whether this record is still to be done. Whoever was slower finds the offset moved on, and does nothing."""
        place = (self.group, record.topic, record.partition)
        moved = self.db.execute(
            "UPDATE kept_offsets SET next_offset = ?"
            " WHERE group_id = ? AND topic = ? AND partition = ? AND next_offset <= ?",
            (record.offset + 1, *place, record.offset),
        )
        if moved.rowcount:
            return True
        known = self.db.execute(
            "SELECT 1 FROM kept_offsets WHERE group_id = ? AND topic = ? AND partition = ?", place
        ).fetchone()
        if known is None:
            raise LookupError(f"no offset is kept for {record!r}: who has deleted it?")
        return False

    def pay(self, record: Record) -> None:
        """The effect; inside the transaction."""
        amount = record.value.decode() if record.value is not None else None
        self.db.execute(
            "INSERT INTO payments VALUES (?, ?, ?, ?)", (record.topic, record.partition, record.offset, amount)
        )
