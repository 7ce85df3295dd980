"""Handlers that keep their offsets beside their effects (`load_offsets`), under the testing kit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kunicorn import Record, TopicPartition
from kunicorn.testing import HandlerTest, bench, record

P0 = TopicPartition("test", 0)
MOVE_ON = "UPDATE kept SET next = ? WHERE topic = ? AND partition = ? AND next <= ?"


class Orders:
    """As in the tutorial: what is stored says where a partition begins, and which record comes again."""

    def setup(self, options: Mapping[str, Any]) -> None:
        self.db = sqlite3.connect(options["path"], isolation_level=None)
        self.db.execute("CREATE TABLE IF NOT EXISTS kept (topic, partition, next, PRIMARY KEY (topic, partition))")
        self.db.execute("CREATE TABLE IF NOT EXISTS orders (value)")

    def teardown(self) -> None:
        self.db.close()

    def load_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        rows = self.db.execute("SELECT topic, partition, next FROM kept")
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def store_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", [(*tp, at) for tp, at in offsets.items()])

    def handle(self, given: Record) -> None:
        if given.value == b"bad":
            raise ValueError("bad")
        self.db.execute("BEGIN IMMEDIATE")
        place = (given.offset + 1, given.topic, given.partition, given.offset)
        assert self.db.execute(MOVE_ON, place).rowcount == 1, "nobody has told where the partition begins"
        self.db.execute("INSERT INTO orders VALUES (?)", (given.value,))
        self.db.execute("COMMIT")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orders.db")


@pytest.fixture
def orders(path: str) -> HandlerTest:
    return HandlerTest(Orders, options={"path": path}, max_attempts=1)


def stored(path: str) -> tuple[list[Any], list[bytes]]:
    database = sqlite3.connect(path)
    try:
        orders = [value for (value,) in database.execute("SELECT value FROM orders")]
        return list(database.execute("SELECT * FROM kept")), orders
    finally:
        database.close()


def test_a_partition_begins_where_the_handler_says_and_it_is_told_of_one_that_it_does_not_know(
    orders: HandlerTest, path: str
) -> None:
    assert orders.run(record("a", offset=7), record("b")).outcomes == ["done", "done"]
    assert stored(path) == ([("test", 0, 9)], [b"a", b"b"])
    again = orders.run(record("a", offset=7), record("b"), record("c"))
    assert again.outcomes == ["stored", "stored", "done"]
    assert [each.attempts for each in again.records] == [0, 0, 1]
    assert again.committed == {P0: 10}
    assert stored(path) == ([("test", 0, 10)], [b"a", b"b", b"c"])


def test_what_a_killed_worker_has_stored_its_successor_does_not_get(orders: HandlerTest, path: str) -> None:
    killed = orders.run(record("1"), record("2"), record("3"), kill_at=1)
    assert [each.value for each in killed.handled_again] == [b"2"], "so the group would have it, which is not asked"
    assert orders.run(*killed.left).outcomes == ["stored", "done"]
    assert stored(path) == ([("test", 0, 3)], [b"1", b"2", b"3"])


def test_records_that_a_lost_session_leaves_to_others_are_not_handled_twice(orders: HandlerTest, path: str) -> None:
    lost = orders.run(record("1"), record("2"), record("3"), lose_session_at=1)
    assert lost.committed == {P0: 0}
    assert orders.run(*lost.left).outcomes == ["stored", "stored", "done"]
    assert stored(path)[1] == [b"1", b"2", b"3"]


def test_a_partition_halts_before_a_record_that_fails_and_goes_on_there(orders: HandlerTest) -> None:
    halted = orders.run(record("1"), record("bad"), record("3"))
    assert halted.outcomes == ["done", "halted", "unhandled"]
    assert orders.run(record("1"), record("2"), record("3")).outcomes == ["stored", "done", "done"]


@pytest.mark.parametrize("patience", [bench._PATIENCE, 0.0], ids=["at once", "after a connection's time-out"])
def test_a_handler_that_never_says_where_to_begin_ends_the_test_with_its_reason(
    orders: HandlerTest, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(bench, "_PATIENCE", patience)

    class Broken(Orders):
        def load_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            raise sqlite3.OperationalError("no such table: kept")

    with pytest.raises(TimeoutError, match=r"not take on its partitions: load_offsets raised .*no such table: kept"):
        HandlerTest(Broken, options={"path": ":memory:"}).run(record("a"))


def test_a_handler_that_takes_its_partition_on_at_the_second_try_gets_its_records() -> None:
    calls: list[Sequence[TopicPartition]] = []

    class Late:
        async def load_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
            calls.append(partitions)
            if len(calls) == 1:
                raise ConnectionError("the database is away")
            return {P0: None}

        async def handle(self, given: Record) -> None: ...

    assert HandlerTest(Late).run(record("a")).outcomes == ["done"]
    assert calls == [[P0], [P0]]
