"""Ranges of offsets hold what sets of them hold."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.offsets import Offsets


@given(st.lists(st.integers(0, 40)), st.integers(0, 45))
def test_ranges_hold_what_a_set_holds(added: list[int], end: int) -> None:
    ranges, plain = Offsets(), set[int]()
    for offset in added:
        assert ranges.add(offset) == (offset not in plain)
        plain.add(offset)
    assert {offset for offset in range(50) if offset in ranges} == plain
    assert len(ranges) == len(plain)
    assert ranges.end == max(plain, default=-1) + 1
    gaps = list(ranges.missing(end))
    assert {offset for gap in gaps for offset in gap} == set(range(end)) - plain
    assert all(a.stop < b.start for a, b in pairwise(gaps)), "no two that touch"


@given(st.sets(st.integers(0, 30)), st.integers(0, 35), st.integers(0, 35), st.sets(st.integers(0, 35)))
def test_what_is_lacking_is_counted_between_its_bounds_and_without_the_excused(
    added: set[int], begin: int, end: int, excused: set[int]
) -> None:
    ranges = Offsets()
    for offset in added:
        ranges.add(offset)
    assert ranges.lacking(begin, end, excused) == len(set(range(begin, end)) - added - excused)
