"""What the loop learns from records that it takes in. The client is played."""

from __future__ import annotations

import threading
from typing import Any

from kunicorn.worker.fetching.fetched import Run, Taken
from kunicorn.worker.loop import Executors, Loop
from tests.unit.worker.tables import P0, P1, Table, messages


class Answering:
    """A client with a backlog of one partition, which is stopped while it answers, and one record of another."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.asked_for: list[int] = []

    def take(self, most: int, seconds: float, **how: bool) -> Taken:
        self.asked_for.append(most)
        self._table.table.stop([1])
        return Taken([Run(P0, 0, messages(P0, *range(1000))), Run(P1, 0, messages(P1, 0))], [])


class NothingFailed:
    """In the place of what looks after failures."""

    def patience(self, now: int, longest: float) -> float:
        return longest


def test_records_of_a_partition_that_is_stopped_while_they_are_taken_in_say_nothing_of_how_large_records_are() -> None:
    table = Table(ahead_bytes=10_000)
    table.begin(P0)
    table.begin(P1)
    client: Any = Answering(table)
    failures: Any = NothingFailed()
    hooks: Any = None
    loop = Loop(client, table.table, Executors({}, threading.Event.wait), hooks, failures)
    for _ in range(2):
        loop._fetch(0)
    assert client.asked_for == [10, 19], "so many as the one that was kept would go into what is left"
