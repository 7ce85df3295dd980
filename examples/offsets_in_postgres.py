"""Exactly once into PostgreSQL: effects and offset in one transaction. Needs `psycopg`.

[handler]
entrypoint = "examples.offsets_in_postgres:Payments"
[handler.options]
dsn = "host=db dbname=shop"      # the password: PGPASSFILE, or PGPASSWORD in the environment
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from kunicorn import DrainDeadline, HandlerTimeout, Record, TopicPartition, Worker

TABLES = """
CREATE TABLE IF NOT EXISTS kept_offsets (
    group_id text, topic text, partition integer, next_offset bigint NOT NULL,
    PRIMARY KEY (group_id, topic, partition));
CREATE TABLE IF NOT EXISTS payments (topic text, partition integer, at bigint, amount text);
"""
_ONE_AT_A_TIME = 6281  # CREATE TABLE IF NOT EXISTS fails where two workers run it at once.


class Payments:
    """Enters every record as a payment."""

    def setup(self, worker: Worker, options: Mapping[str, Any]) -> None:
        self.group = worker.group_id
        self.dsn = options["dsn"]
        self._db: psycopg.Connection | None = None
        with self.db.transaction():
            self.db.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
            self.db.execute(TABLES)

    @property
    def db(self) -> psycopg.Connection:
        """A connection; a new one where the old one broke, so that the next try of a record has one that works. Neither
        does one that an interruption (`DrainDeadline`, `HandlerTimeout`) has left waiting for an answer.
        """
        if self._db is not None and self._db.info.transaction_status == TransactionStatus.ACTIVE:
            self._db.close()
        if self._db is None or self._db.closed:
            self._db = psycopg.connect(self.dsn, autocommit=True)
        return self._db

    def teardown(self) -> None:
        self.db.close()

    def load_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        rows = self.db.execute(
            "SELECT topic, partition, next_offset FROM kept_offsets WHERE group_id = %s", (self.group,)
        )
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def store_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self.db.transaction(), self.db.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO kept_offsets VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (group_id, topic, partition) DO UPDATE SET next_offset = excluded.next_offset",
                [(self.group, tp.topic, tp.partition, offset) for tp, offset in offsets.items()],
            )

    def handle(self, record: Record) -> None:
        try:
            with self.db.transaction():
                if self.moves_on(record):
                    self.pay(record)
        except (DrainDeadline, HandlerTimeout):
            # psycopg ends no query for these, and takes no other one meanwhile. Nor is the transaction over, for which
            # the partition's next owner would wait.
            if self._db is not None:
                self._db.close()
            raise

    def moves_on(self, record: Record) -> bool:
        """Whether this record is still to be done. Whoever was slower waits for the other's transaction here, finds
        the offset moved on, and does nothing."""
        place = (self.group, record.topic, record.partition)
        moved = self.db.execute(
            "UPDATE kept_offsets SET next_offset = %s"
            " WHERE group_id = %s AND topic = %s AND partition = %s AND next_offset <= %s",
            (record.offset + 1, *place, record.offset),
        )
        if moved.rowcount:
            return True
        known = self.db.execute(
            "SELECT 1 FROM kept_offsets WHERE group_id = %s AND topic = %s AND partition = %s", place
        ).fetchone()
        if known is None:
            raise LookupError(f"no offset is kept for {record!r}: who has deleted it?")
        return False

    def pay(self, record: Record) -> None:
        """The effect; inside the transaction."""
        amount = record.value.decode() if record.value is not None else None
        self.db.execute(
            "INSERT INTO payments VALUES (%s, %s, %s, %s)", (record.topic, record.partition, record.offset, amount)
        )
