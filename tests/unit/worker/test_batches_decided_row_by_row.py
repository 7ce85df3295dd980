"""A batch whose handler says of each row how it ends, each time otherwise than of the row before: what that costs grows
with the batch, and hardly faster. Else a worker would answer no ping meanwhile, and so would its successor.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from confluent_kafka import Message

from kunicorn.handler.call import Decided, OfSome
from kunicorn.handler.outcome import Skip
from kunicorn.worker.progress import Bounds, InFlight, Slots
from tests.unit.worker.tables import P0, Table, messages

ROWS = 1024
HALVINGS = 10
"""From all rows to a single one."""


class _Cut(list[Message]):
    """Records that count how many were copied out of them, and of what was copied."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if not isinstance(at, slice):
            return found
        _Cut.copied += len(found)
        return _Cut(found)


class _Searched(deque[InFlight]):
    """A queue that counts what is passed in it on the way to what is looked for."""

    passed = 0

    def index(self, *sought: Any) -> int:
        at = super().index(*sought)
        _Searched.passed += at
        return at


def batch_in_hand() -> tuple[Table, InFlight]:
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(ROWS, None, 0, 1 << 30)), ahead_bytes=1 << 30)
    table.begin(P0)
    table.table.feed(P0, 0, _Cut(messages(P0, *range(ROWS))), 0)
    flight = table.take()
    assert len(flight.messages) == ROWS
    return table, flight


def in_turn(rows: int) -> list[Decided]:
    return [Decided(Skip("odd" if row % 2 else "even"), 1) for row in range(rows)]


def test_rows_that_end_each_in_another_way_are_cut_apart_at_the_cost_of_a_few_copies_of_the_batch() -> None:
    table, flight = batch_in_hand()
    (first, count), *behind = in_turn(ROWS)
    flight.lane.queue = queue = _Searched(flight.lane.queue)
    _Cut.copied = _Searched.passed = 0
    failed = table.table.failed(flight, 0, 10, OfSome(first, count=count, decided=behind))
    assert failed is flight
    assert [(each.offset, len(each.messages)) for each in queue] == [(row, 1) for row in range(ROWS)]
    assert [str(each.decided) for each in list(queue)[1:]] == [str(each.error) for each in behind]
    assert _Cut.copied <= ROWS * (HALVINGS + 2)
    assert _Searched.passed <= ROWS * HALVINGS
