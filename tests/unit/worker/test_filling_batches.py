"""Records that wait for a fuller batch, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.rows import fitting
from kunicorn.ipc.messages import FailureKind, FetcherStopped, Stopped
from kunicorn.worker.fetching.assignment import from_where
from kunicorn.worker.progress import Attempt, Bounds, OffsetTracker, Slots
from kunicorn.worker.scheduler import Scheduler
from tests.unit.worker.tables import LATER, P0, P1, Table, offsets_of

WAIT = 100


def batching(**more: Any) -> Table:
    """Two partitions are fetched, from offset 0 on."""
    bounds = Bounds(**{"records": 3, "bytes": None, "wait_ns": WAIT, "memory": 1_000_000, **more})
    table = Table(Slots("partition", 1, runs=True, bounds=bounds))
    table.start(P0, 1)
    table.start(P1, 2)
    table.table.begin_turn(0)
    return table


def due(table: Table, now: int = 0) -> list[list[int]]:
    """The batches that are handled now."""
    found = list[list[int]]()
    while True:
        table.table.balance(now)
        if (flight := table.table.start_next(table.slots)) is None:
            return found
        found.append(offsets_of(flight))
        table.handle(flight)


def test_records_wait_until_their_batch_is_full() -> None:
    table = batching()
    table.fetch(P0, 0, 1)
    table.fetch(P1, 0)
    assert due(table) == []
    table.fetch(P0, 2, 3)
    assert due(table) == [[0, 1, 2]]
    table.fetch(P0, 4, 5, 6, 7, 8)
    assert due(table) == [[3, 4, 5], [6, 7, 8]]
    assert table.consumed() == 9


class Counted:
    """A message that counts how often its size is asked for."""

    asked = 0

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def __len__(self) -> int:
        Counted.asked += 1
        return 100


@pytest.mark.parametrize("across", [False, True])
def test_a_batch_that_fills_in_small_pieces_is_counted_once(across: bool) -> None:
    """Senders, threads and the control thread wait for the lock meanwhile."""
    records = 400
    slots = Slots("partition", 1, runs=True, bounds=Bounds(records, 10**9, LATER, 10**9), across=across)
    scheduler, tracker = Scheduler(), OffsetTracker(P0, 1, slots, 0)
    Counted.asked = 0
    messages: Any = [Counted(offset) for offset in range(records)]
    for offset in range(records):
        assert scheduler.start(slots, 0) is None
        scheduler.arrive_run(tracker, 0, messages[offset : offset + 1], 100, 0)
        scheduler.ripen(slots, 0)
    flight = scheduler.start(slots, 0)
    assert flight is not None
    assert len(flight.messages) == records
    assert Counted.asked <= 3 * records


def test_what_was_dropped_of_a_batch_that_fills_counts_no_more() -> None:
    table = batching(records=4)
    table.fetch(P0, 0, 1, 2)
    assert due(table) == []
    grant = next(iter(table.table._open.values()))
    table.table._scheduler.note_done(grant.tracker, [1])
    table.fetch(P0, 3)
    assert due(table) == [], "three are left"
    table.fetch(P0, 4)
    assert due(table) == [[0, 2, 3, 4]]


def test_no_record_waits_longer_than_it_may_counted_from_the_first() -> None:
    table = batching()
    table.fetch(P0, 0, now=0)
    table.fetch(P1, 0, now=50)
    table.fetch(P0, 1, now=90)
    assert due(table, 99) == []
    assert table.table.patience(90, 1.0) == pytest.approx(10e-9)
    assert due(table, 100) == [[0, 1]]
    assert due(table, 149) == []
    assert due(table, 150) == [[0]]
    assert table.table.patience(150, 1.0) == 1.0


def test_what_is_left_of_a_cut_batch_waits_from_when_it_came() -> None:
    table = batching()
    table.fetch(P0, 0, 1, 2, 3, now=60)
    assert due(table, 60) == [[0, 1, 2]]
    assert due(table, 159) == []
    assert due(table, 160) == [[3]]


def test_a_stop_lets_go_of_what_waits_and_reports_it_as_not_handled() -> None:
    table = batching()
    table.fetch(P0, 0, 1)
    assert due(table) == []
    table.table.stop([1])
    assert table.reports == [FetcherStopped([Stopped(1, 0, -1)])]
    assert due(table, WAIT) == []
    assert table.table.patience(WAIT, 1.0) == 1.0
    table.start(P0, 3)
    table.table.begin_turn(1)
    table.fetch(P0, 0, 1, now=10)
    assert due(table, WAIT) == [], "nothing of the grant before comes with it"
    assert due(table, 10 + WAIT) == [[0, 1]]


def test_the_consumed_offset_does_not_follow_the_clients_position_past_what_waits() -> None:
    table = batching()
    table.fetch(P0, 0, 1)
    assert due(table) == []
    table.client.told = 10
    table.table.begin_turn(LATER)
    assert [table.consumed(1), table.consumed(2)] == [0, 10]
    due(table, LATER)
    table.table.begin_turn(2 * LATER)
    assert table.consumed(1) == 10, "nothing waits any more"


def test_a_batch_has_one_leader_epoch() -> None:
    table = batching()
    table.fetch(P0, 0, epoch=1)
    table.fetch(P0, 1, epoch=2)
    assert due(table) == [[0]]
    assert due(table, WAIT) == [[1]]


def test_when_what_waits_takes_too_much_memory_the_oldest_goes_first() -> None:
    table = batching(records=100, memory=5_000)
    table.fetch(P0, *range(5), now=1)
    assert due(table, 1) == []
    table.fetch(P1, *range(6), now=2)
    assert [*due(table, 2), *due(table, 2)] == [list(range(5))], "with the next turn at the latest"
    assert not table.table.full
    assert table.table.bytes == 0, "what waits for a fuller batch has a bound of its own"


def test_records_of_a_batch_that_killed_workers_do_not_wait() -> None:
    table = batching()
    table.table.stop([1])
    table.start(P0, 3, singly_until=2)
    table.table.begin_turn(1)
    table.fetch(P0, 0, 1, 2)
    assert due(table) == [[0], [1]]
    assert due(table, WAIT) == [[2]]


def test_batches_fill_again_behind_a_record_that_killed_workers_and_was_compacted_away() -> None:
    table = batching()
    table.table.stop([1])
    table.start(P0, 3, poison="2 workers died", poison_deaths=2, poison_offset=0)
    table.table.begin_turn(1)
    table.fetch(P0, 1, 2)
    assert due(table) == []
    assert due(table, WAIT) == [[1, 2]]


def test_a_batch_that_failed_is_tried_again_as_it_was_and_waits_for_no_more() -> None:
    table = batching()
    table.fetch(P0, 0, 1)
    assert due(table) == []
    table.table.balance(WAIT)
    failed = table.take()
    failed.failures = 1
    table.table.park(Attempt(failed), "retry", "why")
    table.fetch(P0, 2, now=WAIT)
    table.table.try_again(failed)
    assert due(table, WAIT) == [[0, 1]]
    assert due(table, 2 * WAIT) == [[2]]


def test_a_batch_that_its_handler_has_wait_comes_as_soon_as_that_is_over_and_waits_for_no_more() -> None:
    table = batching()
    table.fetch(P0, 0, 1)
    assert due(table) == []
    table.table.balance(WAIT)
    table.table.park(Attempt(waiting := table.take()), "wait", "why")
    table.table.try_again(waiting)
    assert due(table, WAIT) == [[0, 1]]


def test_a_partition_that_has_just_come_is_the_next_also_where_its_batch_was_waited_for() -> None:
    table = batching()
    table.fetch(P0, *range(9))
    table.fetch(P1, 0)
    for _ in range(2):
        table.handle(table.take())
    table.table.balance(WAIT)
    assert table.take().tp == P1


def test_nothing_waits_of_a_partition_from_which_nothing_more_comes() -> None:
    table = batching()
    table.fetch(P0, 0, 1)
    table.fetch(P1, 0)
    assert due(table) == []
    table.table.broken(P0, FailureKind.PARTITION, "damaged")
    assert due(table) == [[0, 1]]
    table.table.balance(1)
    assert len(table.reports) == 1
    assert due(table, WAIT) == [[0]]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 5), st.none() | st.integers(1, 20))
def test_full_batches_are_cut_so_that_nothing_more_would_have_fitted(
    sizes: list[int], records: int, most_bytes: int | None
) -> None:
    table = batching(records=records, bytes=most_bytes)
    some = [
        Message(topic="t", partition=0, offset=at, value=b"x" * size, timestamp=(1, 1)) for at, size in enumerate(sizes)
    ]
    table.table.feed(P0, 0, some, 0)
    handled = due(table)
    left = sizes[sum(map(len, handled)) :]
    for batch in handled:
        assert batch == list(range(batch[0], batch[0] + fitting(some[batch[0] : batch[0] + records], most_bytes)))
    assert len(left) < records
    assert most_bytes is None or len(left) <= 1 or sum(left) <= most_bytes
    table.ledger.close()


def test_the_first_that_is_queued_behind_a_batch_in_hand_is_not_dropped_to_make_room() -> None:
    table = batching()
    for first in (0, 3, 6):
        table.fetch(P0, first, first + 1, first + 2)
    table.table.balance(0)
    in_hand = table.take()
    assert offsets_of(in_hand) == [0, 1, 2]
    assert table.table._scheduler.shed(in_hand.tracker, in_hand.size)
    assert from_where(in_hand.tracker).offset == 6, "3 would be fetched and dropped until 0 is done"
    table.handle(in_hand)
    assert due(table) == [[3, 4, 5]]
