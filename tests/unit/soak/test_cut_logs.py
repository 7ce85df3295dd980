"""A gap is excused where a member has said that it went over it, in one step or in several."""

from __future__ import annotations

import pytest

from tests.chaos.calls import Call, Repeat
from tests.soak.cut_logs import _SAID, Said, is_poison, taken_up_anew, unsaid

GAP = (3, range(100, 250))


@pytest.mark.parametrize(
    "told",
    [
        [Said(3, 100, 250)],
        [Said(3, 100, 180), Said(3, 180, 250)],
        [Said(3, 100, 180), Said(3, 180, 250), Said(3, 250, 300)],
    ],
)
def test_a_gap_that_was_told_is_excused(told: list[Said]) -> None:
    assert unsaid([GAP], told) == []


@pytest.mark.parametrize(
    "told",
    [
        [],
        [Said(4, 100, 250)],
        [Said(3, 100, 240)],
        [Said(3, 101, 250)],
        [Said(3, 100, 260)],
        [Said(3, 100, 100)],
    ],
)
def test_a_gap_that_was_not_told_as_it_is_is_not(told: list[Said]) -> None:
    assert unsaid([GAP, (5, range(0))], told) == [GAP]


def test_what_a_member_says_is_read_from_its_log() -> None:
    line = "WARNING soak-0-0-11: position 4711 is not in the log (6000-6100), going on at 6000 skipped=1289"
    assert [Said(*map(int, found.groups())) for found in _SAID.finditer(line)] == [Said(11, 4711, 6000)]


def test_a_gap_of_nothing_but_poison_is_one_that_letters_tell_of() -> None:
    poison = {(3, 100), (3, 101), (4, 102)}
    assert is_poison(3, range(100, 102), poison)
    assert not is_poison(3, range(100, 103), poison), "offset 102 is another partition's poison"
    assert not is_poison(3, range(100, 250), poison)


def repeat(partition: int = 0, offset: int = 90, pid: int = 2, load: int = 1) -> Repeat:
    call = Call(0, partition, offset, 1, "member-1", 1, load)
    return Repeat(call, call._replace(pid=pid))


def test_whoever_takes_a_partition_up_where_it_was_committed_before_the_logs_part_has_nothing_to_say() -> None:
    assert taken_up_anew([repeat()], 1, {0: 100}) == {0}


@pytest.mark.parametrize(
    "again",
    [
        repeat(pid=1),
        repeat(load=0),
        repeat(offset=100),
        repeat(partition=3),
    ],
)
def test_whoever_goes_on_behind_that_place_has(again: Repeat) -> None:
    """The same process, records of another load, one that is behind, another partition."""
    assert taken_up_anew([again], 1, {0: 100}) == set()
