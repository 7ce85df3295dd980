"""Cutting work into rounds and tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.positions import (
    OffsetRange,
    TopicPartition,
    between,
    cut,
    first_of_each,
    largest_first,
    next_round,
    skew,
    total,
)

RANGES = st.lists(st.integers(1, 5000), min_size=1, max_size=20).map(
    lambda sizes: [OffsetRange("orders", number, 7, 7 + size) for number, size in enumerate(sizes)]
)


def test_between_leaves_out_partitions_with_nothing_to_read() -> None:
    starts = {TopicPartition("b", 0): 5, TopicPartition("a", 1): 5, TopicPartition("a", 0): 9}
    stops = {TopicPartition("b", 0): 6, TopicPartition("a", 1): 5, TopicPartition("a", 0): 12}
    assert between(starts, stops) == [OffsetRange("a", 0, 9, 12), OffsetRange("b", 0, 5, 6)]


@given(RANGES, st.integers(1, 10_000))
def test_a_round_takes_the_beginning_of_every_range_in_proportion(ranges: list[OffsetRange], limit: int) -> None:
    taken = first_of_each(ranges, limit)
    assert [(each.tp, each.start) for each in taken] == [(each.tp, each.start) for each in ranges]
    assert all(1 <= part.size <= whole.size for part, whole in zip(taken, ranges, strict=True))
    assert total(taken) <= max(limit, len(ranges)) + len(ranges)


def test_without_a_limit_a_round_is_everything() -> None:
    ranges = [OffsetRange("orders", 0, 0, 10)]
    assert first_of_each(ranges, None) == ranges


@given(RANGES, st.integers(1, 200))
def test_pieces_tile_what_they_were_cut_from(ranges: list[OffsetRange], pieces: int) -> None:
    parts = cut(ranges, pieces)
    assert len(parts) >= min(pieces, total(ranges)) or len(parts) == len(ranges)
    for whole in ranges:
        mine = [part for part in parts if part.tp == whole.tp]
        assert (mine[0].start, mine[-1].stop) == (whole.start, whole.stop)
        assert all(before.stop == after.start for before, after in pairwise(mine))
        assert all(part.size > 0 for part in mine)


def test_the_largest_range_starts_first() -> None:
    small, large = OffsetRange("a", 0, 0, 1), OffsetRange("b", 0, 0, 9)
    assert largest_first([small, large]) == [large, small]
    assert skew([small, large, small]) == 9.0


@pytest.mark.parametrize(
    ("last", "seconds", "limit", "size"),
    [
        (0, 0.0, None, 4_000),  # The first one only learns the pace.
        (4_000, 2.0, None, 60_000),
        (4_000, 0.001, None, 200_000),  # By no more than fifty times.
        (4_000, 2.0, 10_000, 10_000),
        (4_000, 40_000.0, None, 4),  # A record a partition is the least.
    ],
)
def test_the_next_round_takes_as_long_as_wanted_at_the_last_ones_pace(
    last: int, seconds: float, limit: int | None, size: int
) -> None:
    assert next_round(4, last, seconds, 30.0, limit) == size
