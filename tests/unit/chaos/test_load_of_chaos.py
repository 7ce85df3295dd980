"""Load is held back while a group is too far behind, and then goes on at its rate."""

from __future__ import annotations

from tests.chaos.load import Load, customers


def test_load_is_held_back_beyond_so_many_seconds_of_it_and_goes_on_at_half() -> None:
    load = Load("127.0.0.1:1", "orders", rate=100)
    seen = []
    for unhandled in (0, 1_000, 1_001, 600, 499, 900):
        load.hold_back_beyond(10, unhandled)
        seen.append(load.is_held)
    assert seen == [False, False, True, True, False, False]


def test_a_load_that_has_ended_is_not_waited_for() -> None:
    load = Load("127.0.0.1:1", "orders", rate=100)
    load.appended[0].confirm(0, 5)
    assert not load.has_confirmed_since(6)
    assert load.has_confirmed_since(4)
    load.appended[1].confirm(0, 3)
    assert not load.has_confirmed_since(4), "each partition"
    load.stop()
    assert load.has_confirmed_since(6)


def test_no_load_has_a_key_of_another_nor_one_that_looks_so_in_the_audit() -> None:
    loads = [Load("127.0.0.1:1", "orders", 100, customers(1000, number)) for number in range(5)]
    assert len(frozenset().union(*(load.marks for load in loads))) == 5 * 1000
