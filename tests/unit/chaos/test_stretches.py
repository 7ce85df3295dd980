"""What is gone is excused as far as brokers say so, and no further."""

from __future__ import annotations

import pytest

from tests.chaos.offsets import Offsets
from tests.chaos.stretches import Stretch


def handled(*ranges: range) -> Offsets:
    found = Offsets()
    for each in ranges:
        for offset in each:
            found.add(offset)
    return found


@pytest.mark.parametrize(
    ("ended", "lost", "gone"),
    [
        (handled(range(100)), 0, 0),
        (handled(range(80)), 0, 20),
        (handled(range(79)), 1, 20),
        (handled(range(90)), 0, 10),
        (handled(range(50), range(51, 100)), 1, 0),
    ],
)
def test_an_unclean_leader_excuses_what_it_never_had_and_nothing_before(ended: Offsets, lost: int, gone: int) -> None:
    stretch = Stretch({}, {0: 100}, {}, {0: 80})
    assert (stretch.lost(0, ended), stretch.gone(0, ended)) == (lost, gone)
    assert stretch.records(0) == 100


def test_the_load_behind_a_cut_is_owed_from_there_on() -> None:
    stretch = Stretch({0: 80}, {0: 120}, {}, {0: 120})
    assert stretch.lost(0, handled(range(80, 120))) == 0
    assert stretch.lost(0, handled(range(80, 119))) == 1
    assert stretch.lost(0, handled(range(100, 120))) == 20
    assert stretch.records(0) == 40


@pytest.mark.parametrize(
    ("ended", "lost", "gone"),
    [(handled(range(60)), 0, 40), (handled(range(30), range(31, 60)), 1, 40), (handled(), 0, 100)],
)
def test_of_a_topic_that_is_gone_nothing_may_be_left_out_before_what_was_handled(
    ended: Offsets, lost: int, gone: int
) -> None:
    stretch = Stretch({}, {0: 100}, {}, None)
    assert (stretch.lost(0, ended), stretch.gone(0, ended)) == (lost, gone)


@pytest.mark.parametrize(
    ("ended", "lost", "gone"),
    [(handled(range(30), range(31, 60)), 0, 41), (handled(range(29), range(30, 60)), 1, 40), (handled(), 30, 70)],
)
def test_of_a_topic_that_is_gone_nothing_may_be_left_out_before_what_was_committed_where_several_are_in_hand(
    ended: Offsets, lost: int, gone: int
) -> None:
    stretch = Stretch({}, {0: 100}, {}, None, {0: 30})
    assert (stretch.lost(0, ended), stretch.gone(0, ended)) == (lost, gone)


def test_what_lies_before_the_start_of_the_log_was_deleted() -> None:
    stretch = Stretch({}, {0: 100}, {0: 40}, {0: 100})
    assert (stretch.lost(0, handled(range(40, 100))), stretch.gone(0, handled(range(40, 100)))) == (0, 40)
    assert (stretch.lost(0, handled(range(50, 100))), stretch.gone(0, handled(range(30), range(50, 100)))) == (10, 10)


def test_poison_is_neither_lost_nor_gone() -> None:
    stretch = Stretch({}, {0: 10}, {0: 2}, {0: 10})
    ended = handled(range(2, 5), range(6, 10))
    assert (stretch.lost(0, ended, [5]), stretch.gone(0, ended, [5])) == (0, 2)
