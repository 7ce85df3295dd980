"""Which record may start next, and how far a partition is done, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.ipc.bitmap import WINDOW, written
from kunicorn.positions import Position, TopicPartition
from kunicorn.worker.fetching.assignment import from_where
from kunicorn.worker.progress import InFlight, OffsetTracker, Slots, Stage
from kunicorn.worker.scheduler import Scheduler

RECORD = Message()
NS = iter(range(1, 1 << 60))


def tracker(slots: Slots, start: int = 0, number: int = 0, **more: Any) -> OffsetTracker:
    return OffsetTracker(TopicPartition("t", number), number, slots, start, **more)


def arrive(scheduler: Scheduler, to: OffsetTracker, *keys: str | None, first: int = 0) -> None:
    for offset, key in enumerate(keys, first):
        scheduler.arrive(to, offset, 0, None if key is None else key.encode(), RECORD, 1)


def started(scheduler: Scheduler, of: OffsetTracker) -> list[InFlight]:
    """What starts for the slots that handle this one."""
    found = []
    while (flight := scheduler.start(of.slots, next(NS))) is not None:
        found.append(flight)
    return found


def offsets(flights: list[InFlight]) -> list[int]:
    return [flight.offset for flight in flights]


@pytest.mark.parametrize(
    ("ordering", "expected"), [("partition", [0]), ("key", [0, 1, 3, 4]), ("none", [0, 1, 2, 3, 4])]
)
def test_what_starts_at_once_is_the_first_of_each_lane_and_no_key_is_no_order(
    ordering: str, expected: list[int]
) -> None:
    scheduler, one = Scheduler(), tracker(Slots(ordering, 100))
    arrive(scheduler, one, "a", "b", "a", None, None)
    assert offsets(started(scheduler, one)) == expected


def test_no_more_start_than_hands_are_free() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 2))
    arrive(scheduler, one, *"abcd")
    first, second = started(scheduler, one)
    scheduler.finish(second)
    assert offsets(started(scheduler, one)) == [2]
    scheduler.finish(first)
    assert one.consumed == 2


def test_a_record_that_waits_holds_up_its_key_and_nothing_else() -> None:
    scheduler, one = Scheduler(), tracker(Slots("key", 100))
    arrive(scheduler, one, "a", "b", "a", "b")
    a, b = started(scheduler, one)
    scheduler.wait(a, "retry", "why")
    scheduler.finish(b)
    (b,) = started(scheduler, one)
    scheduler.finish(b)
    assert (one.consumed, sorted(one.done_ahead())) == (0, [1, 3])
    scheduler.queue_again(a)
    (again,) = started(scheduler, one)
    assert again is a
    scheduler.finish(a)
    assert one.consumed == 2


def test_nothing_starts_a_window_beyond_the_lowest_unfinished_record() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 2))
    for offset in (0, WINDOW - 1, WINDOW):
        scheduler.arrive(one, offset, 0, None, "", 1)
    first, last = started(scheduler, one)
    scheduler.finish(last)
    assert started(scheduler, one) == []
    scheduler.finish(first)
    assert offsets(started(scheduler, one)) == [WINDOW]


def test_where_all_keys_wait_for_the_window_each_record_that_ends_lets_one_start_and_touches_no_other() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 2))
    arrive(scheduler, one, *[None] * (3 * WINDOW))
    first = scheduler.start(one.slots, next(NS))
    assert first is not None
    while (flight := scheduler.start(one.slots, next(NS))) is not None:
        scheduler.finish(flight)
    assert len(one.beyond) == 2 * WINDOW
    scheduler.finish(first)
    (next_one, _) = started(scheduler, one)
    scheduler.finish(next_one)
    assert len(one.slots.ready) == WINDOW - 1, "what may start by that, and nothing beyond"


def test_each_handlers_hands_take_their_own_records_in_their_own_order() -> None:
    scheduler, one, other = Scheduler(), tracker(Slots("partition", 5)), tracker(Slots("none", 2), number=1)
    arrive(scheduler, one, *"aab")
    arrive(scheduler, other, *"aab")
    assert offsets(started(scheduler, one)) == [0]
    assert offsets(started(scheduler, other)) == [0, 1]
    assert scheduler.in_flight == 3


def test_a_gap_larger_than_the_window_is_nothing_unfinished() -> None:
    scheduler, one = Scheduler(), tracker(Slots("key", 2))
    scheduler.arrive(one, 10 * WINDOW, 0, b"a", "", 1)
    assert one.consumed == 10 * WINDOW
    assert offsets(started(scheduler, one)) == [10 * WINDOW]


def test_while_a_suspect_waits_for_what_is_before_it_nobody_is_told_to_start_it() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 10), suspects=frozenset({1}))
    arrive(scheduler, one, *"ab")
    (first,) = started(scheduler, one)
    assert not scheduler.startable(one.slots), "it is in hand, and the loop would ask again and again"
    scheduler.send(first, lane_waits=True)
    assert not scheduler.startable(one.slots), "it is on its way"
    scheduler.finish(first)
    assert scheduler.startable(one.slots)


def test_a_suspect_waits_until_it_is_known_what_becomes_of_records_that_have_failed() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 10), suspects=frozenset({1}))
    arrive(scheduler, one, *"ab")
    (first,) = started(scheduler, one)
    scheduler.fail(first)
    assert not scheduler.startable(one.slots), "its letter may go out beside it"
    scheduler.claim(first, next(NS))
    scheduler.finish(first)
    assert scheduler.startable(one.slots)


def test_nothing_starts_until_it_is_known_what_becomes_of_a_suspect_that_has_failed() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 10), suspects=frozenset({0}))
    arrive(scheduler, one, *"ab")
    (suspect,) = started(scheduler, one)
    scheduler.fail(suspect)
    assert started(scheduler, one) == []
    scheduler.claim(suspect, next(NS))
    scheduler.send(suspect, lane_waits=True)
    assert started(scheduler, one) == [], "its letter is on its way"
    scheduler.finish(suspect)
    assert offsets(started(scheduler, one)) == [1]


def test_failures_that_nobody_comes_to_free_slots_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunicorn.worker.scheduler._FAILURES_AHEAD", 3)
    scheduler, one = Scheduler(), tracker(Slots("none", 2))
    arrive(scheduler, one, *"abcdefgh")
    failed: list[InFlight] = []
    while now := started(scheduler, one):
        for flight in now:
            scheduler.fail(flight)
        failed += now
    assert offsets(failed) == [0, 1, 2, 3, 4], "the last two keep their slots"
    for flight in failed:
        scheduler.claim(flight, next(NS))
        scheduler.finish(flight)
    assert offsets(started(scheduler, one)) == [5, 6]


def test_a_suspect_whose_outputs_are_refused_is_dealt_with_and_the_others_go_on() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 10), suspects=frozenset({0}))
    arrive(scheduler, one, *"ab")
    (suspect,) = started(scheduler, one)
    scheduler.send(suspect, lane_waits=True)
    scheduler.claim(suspect, next(NS))
    scheduler.finish(suspect)
    assert offsets(started(scheduler, one)) == [1]


def test_what_was_done_before_is_passed_over() -> None:
    scheduler, one = Scheduler(), tracker(Slots("key", 10), done_before={1, 2, 5})
    arrive(scheduler, one, *"aaaa")
    (first,) = started(scheduler, one)
    scheduler.finish(first)
    assert one.consumed == 3
    assert offsets(started(scheduler, one)) == [3]
    assert sorted(one.done_ahead()) == [5], "told to the successor, though it was never fetched here"


def test_dropped_records_are_unfinished_until_they_are_fetched_again_or_gone() -> None:
    scheduler, one = Scheduler(), tracker(Slots("partition", 10))
    arrive(scheduler, one, *"abcdef")
    (first,) = started(scheduler, one)
    assert scheduler.shed(one, 2)
    assert from_where(one) == Position(3, 0)
    scheduler.finish(first)
    for _ in range(2):
        (flight,) = started(scheduler, one)
        scheduler.finish(flight)
    assert one.consumed == 3
    assert started(scheduler, one) == []
    # 3 comes again, 4 was compacted away meanwhile, 5 comes again.
    assert scheduler.arrive(one, 3, 0, b"d", "", 1) is not None
    assert scheduler.arrive(one, 5, 0, b"f", "", 1) is not None
    for _ in range(2):
        (flight,) = started(scheduler, one)
        scheduler.finish(flight)
    assert one.consumed == 6
    assert scheduler.bytes == 0


def test_a_closed_partition_starts_nothing_and_what_runs_still_counts() -> None:
    slots = Slots("key", 2)
    scheduler, one, other = Scheduler(), tracker(slots), tracker(slots, number=1)
    arrive(scheduler, one, *"aab")
    (first, second) = started(scheduler, one)
    scheduler.close(one)
    arrive(scheduler, other, "a")
    scheduler.finish(first)
    assert [flight.tp.partition for flight in started(scheduler, one)] == [1]
    assert one.consumed == 1
    scheduler.finish(second)
    assert list(one.done_ahead()) == [2]
    assert scheduler.bytes == 0


def test_a_record_that_failed_is_no_longer_held_once_its_partition_is_closed() -> None:
    scheduler, one = Scheduler(), tracker(Slots("key", 1))
    arrive(scheduler, one, "a")
    (flight,) = started(scheduler, one)
    scheduler.wait(flight, "retry", "")
    assert flight.held
    scheduler.close(one)
    assert not flight.held
    assert flight.stage is Stage.WAITING


def test_where_a_partition_will_be_is_told_over_gaps_and_with_what_was_done_before() -> None:
    scheduler, one = Scheduler(), tracker(Slots("none", 10), done_before={3, 2 * WINDOW + 9})
    for offset in (0, 2, 3, 2 * WINDOW, 2 * WINDOW + 1):
        scheduler.arrive(one, offset, 7, None, RECORD, 1)
    zero, two, far, farther = one.order[0], one.order[1], one.order[3], one.order[4]
    assert one.position_with({two: 3}) == Position(0, -1, written(0, {2, 3}))
    assert one.position_with({zero: 1, two: 3}) == Position(2 * WINDOW, 7, written(2 * WINDOW, {2 * WINDOW + 9}))
    assert one.position_with({zero: 1, two: 3, far: far.end}) == Position(
        2 * WINDOW + 1, 7, written(2 * WINDOW + 1, {2 * WINDOW + 9})
    )
    everything = one.position_with({zero: 1, two: 3, far: far.end, farther: farther.end})
    assert everything == Position(2 * WINDOW + 2, 7, written(2 * WINDOW + 2, {2 * WINDOW + 9}))
