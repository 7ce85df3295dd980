"""Whose turn it is where several records are in hand: one record of each partition after the other."""

from __future__ import annotations

import pytest

from kunicorn.positions import TopicPartition
from kunicorn.worker.progress import Lane, OffsetTracker, ReadyLanes, Slots


@pytest.fixture
def ready() -> ReadyLanes:
    return ReadyLanes()


def tracker(number: int) -> OffsetTracker:
    return OffsetTracker(TopicPartition("t", number), number, Slots("none", 1), 0)


def lanes(of: OffsetTracker, *keys: int) -> list[Lane]:
    return [Lane(of, key) for key in keys]


def tired(number: int) -> OffsetTracker:
    """A partition that has had a turn."""
    found = tracker(number)
    found.served = True
    return found


def add(ready: ReadyLanes, *some: Lane, first: bool = False) -> None:
    for lane in some:
        ready.add(lane, first=first)
        lane.ready = True


def taken(ready: ReadyLanes) -> list[tuple[int, object]]:
    found = []
    while ready:
        lane = ready.take()
        found.append((lane.tracker.tp.partition, lane.key))
    return found


def test_partitions_take_turns_each_in_its_own_order(ready: ReadyLanes) -> None:
    add(ready, *lanes(tired(0), 1, 2, 3), *lanes(tired(1), 7, 8))
    assert len(ready) == 5
    assert taken(ready) == [(0, 1), (1, 7), (0, 2), (1, 8), (0, 3)]
    assert not ready


def test_what_comes_to_a_partition_waits_for_one_record_of_each_other_one(ready: ReadyLanes) -> None:
    busy, new = tired(0), tired(1)
    add(ready, *lanes(busy, *range(100)))
    ready.take()
    add(ready, *lanes(new, 0))
    assert taken(ready)[:3] == [(0, 1), (1, 0), (0, 2)]


def test_a_partition_that_has_had_no_turn_yet_comes_before_those_that_have_then_behind(
    ready: ReadyLanes,
) -> None:
    new = tracker(2)
    add(ready, *lanes(tired(0), 1, 2), *lanes(tired(1), 7), *lanes(new, 5, 6))
    assert taken(ready) == [(2, 5), (0, 1), (1, 7), (2, 6), (0, 2)]
    add(ready, *lanes(tired(3), 1), *lanes(new, 9))
    assert taken(ready) == [(3, 1), (2, 9)]


def test_a_partition_that_had_its_turn_comes_behind_the_others_with_what_it_has_next(ready: ReadyLanes) -> None:
    one, other = tired(0), tired(1)
    add(ready, *lanes(one, 1), *lanes(other, 7, 8))
    ready.take()
    add(ready, *lanes(one, 2))
    assert taken(ready) == [(1, 7), (0, 2), (1, 8)]


def test_a_retry_whose_wait_is_over_waits_for_nothing_else(ready: ReadyLanes) -> None:
    one, other = tired(0), tired(1)
    add(ready, *lanes(one, 1, 2), *lanes(other, 7, 8))
    add(ready, *lanes(other, 6), first=True)
    assert taken(ready) == [(1, 6), (0, 1), (1, 7), (0, 2), (1, 8)]
    add(ready, *lanes(one, 1, 2))
    add(ready, *lanes(tired(2), 5), first=True)
    assert taken(ready) == [(2, 5), (0, 1), (0, 2)]


def test_nothing_of_a_partition_that_is_dropped_has_a_turn(ready: ReadyLanes) -> None:
    one, other = tired(0), tired(1)
    gone = lanes(one, 1, 2)
    add(ready, *gone, *lanes(other, 7))
    ready.drop(one)
    ready.drop(one)
    assert not any(lane.ready for lane in gone), "they may be made ready again"
    assert taken(ready) == [(1, 7)]
