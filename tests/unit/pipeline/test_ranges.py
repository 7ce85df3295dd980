"""Cutting work into ranges and tasks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.pipeline.shares import Shares, WholeRounds, next_size
from kunicorn.pipeline.spark import shared_out
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.positions import (
    OffsetRange,
    TopicPartition,
    between,
    cut,
    first_of_each,
    largest_first,
    skew,
    total,
)
from kunicorn.settings import PipelineSettings

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
    assert skew([small, large]) == 9.0


@pytest.mark.parametrize(
    ("last", "seconds", "size"),
    [
        (1_000, 0.5, 50_000),  # By no more than fifty times: the first one measures a start.
        (4_000, 2.0, 60_000),
        (4_000, 40_000.0, 3),
        (4_000, 10**9, 1),  # A record is the least.
        (0, 1.0, 1),
    ],
)
def test_a_partitions_next_range_takes_as_long_as_wanted_at_its_last_ones_pace(
    last: int, seconds: float, size: int
) -> None:
    assert next_size(last, seconds, 30.0) == size


A, B = OffsetRange("a", 0, 0, 9_000), OffsetRange("b", 0, 0, 90_000)


def shares(**settings: Any) -> Shares:
    return Shares(PipelineSettings(range_seconds=30, **settings))


def summary(whole: OffsetRange, seconds: float) -> Summary:
    return Summary(*whole, whole.stop, whole.size, 0, 0, None, "", seconds)


def test_each_partition_has_its_own_pace() -> None:
    own = shares()
    state = RunState((A, B))
    first = own.of(state, 8)
    assert first == [B._replace(stop=1_000), A._replace(stop=1_000)], "the largest first"
    own.learn([summary(first[0], 1.0), summary(first[1], 10.0)])
    ended = state.begin(first).end([summary(each, 1.0) for each in first], 1.0)
    assert {each.topic: each.size for each in own.of(ended, 8)} == {"a": 3_000, "b": 30_000}


def test_only_partitions_that_wait_are_begun_and_as_many_as_there_is_room_for() -> None:
    state = RunState((A, B))
    assert shares().of(state, 1) == [B._replace(stop=1_000)]
    assert shares().of(state, 0) == []
    assert shares().of(state.begin([B._replace(stop=1_000)]), 1) == [A._replace(stop=1_000)]


def test_all_that_is_underway_has_the_offsets_that_the_settings_allow() -> None:
    found = shares(max_offsets_per_trigger=110).of(RunState((A, B)), 8)
    assert [each.size for each in found] == [100, 10]
    assert [each.size for each in shares(max_offsets_per_trigger=1).of(RunState((A, B)), 8)] == [1, 1]


def test_a_hot_partition_has_no_more_of_a_round_than_the_others_may_have() -> None:
    hot, others = 999, [OffsetRange("orders", number, 7, 10_007) for number in range(999)]
    state = RunState((*others, OffsetRange("orders", hot, 7, 900_000_007)))
    begun = WholeRounds(None, 1_000_000, None).of(state, 8)
    assert begun == [*others, OffsetRange("orders", hot, 7, 1_000_007)]
    cut_up = WholeRounds(None, 1_000_000, 2_000).of(state, 8)
    assert total(cut_up) == total(begun)
    assert total(WholeRounds(20_000_000, 1_000_000, None).of(state, 8)) <= 20_000_000


def test_ranges_are_cut_into_the_tasks_that_the_settings_ask_for() -> None:
    found = shares(ordering="none", min_partitions=8).of(RunState((A, B)), 8)
    assert len(found) == 8
    assert total(found) == 2_000


@pytest.mark.parametrize(("cores", "at_once", "tasks"), [(2, 1, 10), (2, 4, 3), (4, 4, 4), (20, 4, 10), (2, 100, 2)])
def test_tasks_have_several_ranges_where_there_are_more_than_cores(cores: int, at_once: int, tasks: int) -> None:
    ranges = [OffsetRange("a", number, 0, 10 + number) for number in range(10)]
    found = shared_out(ranges, cores, at_once)
    assert sorted(each for task in found for each in task) == ranges
    assert len(found) == tasks
    assert max(map(len, found)) <= at_once
    assert found[0][0] == ranges[-1]


def test_pieces_of_one_partition_are_never_in_one_task() -> None:
    pieces = cut([OffsetRange("a", 0, 0, 100)], 6)
    assert all(len(task) == 1 for task in shared_out(pieces, 2, 4))
