"""Ranges of offsets hold what sets of them hold."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.offsets import Offsets


@given(st.lists(st.integers(0, 40)), st.integers(0, 45), st.integers(0, 30))
def test_ranges_hold_what_a_set_holds(added: list[int], end: int, below: int) -> None:
    ranges, plain = Offsets(), set[int]()
    for offset in added:
        assert ranges.add(offset) == (offset not in plain)
        plain.add(offset)
    ranges.add_below(below)
    plain |= set(range(below))
    assert {offset for offset in range(50) if offset in ranges} == plain
    assert len(ranges) == len(plain)
    assert ranges.end == max(plain, default=-1) + 1
    gaps = list(ranges.missing(end))
    assert {offset for gap in gaps for offset in gap} == set(range(end)) - plain
    assert all(a.stop < b.start for a, b in pairwise(gaps)), "no two that touch"
