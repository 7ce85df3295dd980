"""A batch whose handler says of each row how it ends, each time otherwise than of the row before: what that costs grows
with the batch, and hardly faster. Else a worker would answer no ping meanwhile, and so would its successor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Message

from kunicorn.handler.call import Decided, OfSome
from kunicorn.handler.outcome import Skip
from kunicorn.handler.retry import End
from kunicorn.ipc.clock import now_ns
from kunicorn.worker.progress import Attempt, Bounds, InFlight, Slots
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


class _LookedThrough(set[int]):
    """Offsets that count how many were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        _LookedThrough.looks += len(self)
        return super().__iter__()


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


def test_rows_that_are_done_ahead_are_looked_through_a_few_times_while_those_between_them_end_one_by_one() -> None:
    table, flight = batch_in_hand()
    (first, count), *behind = in_turn(ROWS // 2)
    ahead = range(1, ROWS, 2)
    following = table.table.failed(flight, 0, 10, OfSome(first, ahead, count, behind))
    _LookedThrough.looks = 0
    while following is not None:
        tracker = following.tracker
        tracker.done_before = _LookedThrough(tracker.done_before)
        table.table.put_down(following)
        table.table.take_up(following, now_ns())
        table.table.pass_over(Attempt(following, calls=0), End.SKIP, None)
        following = table.table.start_next(table.slots)
    assert table.consumed() == ROWS
    assert _LookedThrough.looks <= 2 * ROWS


def test_what_is_done_ahead_is_forgotten_also_where_a_call_tells_itself_how_far_it_is() -> None:
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(100, None, 0, 1 << 30)), ahead_bytes=1 << 30)
    table.begin(P0)
    table.table.feed(P0, 0, messages(P0, *range(1_000)), 0)
    kept = 0
    while (flight := table.table.start_next(table.slots)) is not None:
        ahead = range(flight.offset + 1, flight.end - 1)
        first = table.table.failed(flight, 0, 10, OfSome(ValueError(), ahead, 1))
        table.handle(first or flight)
        kept = max(kept, len(flight.tracker.done_before))
    assert table.consumed() == 1_000
    assert kept <= 2 * 98
