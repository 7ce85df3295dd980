"""A gap is excused where a member has said that it went over it, in one step or in several."""

from __future__ import annotations

import pytest

from tests.soak.cut_logs import _SAID, Said, is_poison, unsaid

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
