"""From bounds to ranges, and what is refused on the way."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kunicorn.errors import ConfigError
from kunicorn.pipeline.bounds import Bound, Bounds, ByOffset, ByTime, Everywhere
from kunicorn.pipeline.catch_up import starts_of
from kunicorn.pipeline.log import Edges
from kunicorn.pipeline.planning import Plan, plan
from kunicorn.pipeline.ranges import OffsetRange, Offsets
from kunicorn.topics import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
EDGES = Edges(first={A0: 10, A1: 0, B0: 0}, end={A0: 100, A1: 50, B0: 0})
EARLIEST, LATEST = Everywhere(-2), Everywhere(-1)


class Brokers:
    """Answers from `EDGES`; records are as old as their offsets."""

    def edges(self, partitions: Iterable[TopicPartition]) -> Edges:
        wanted = set(partitions)
        return Edges(
            {tp: at for tp, at in EDGES.first.items() if tp in wanted},
            {tp: at for tp, at in EDGES.end.items() if tp in wanted},
        )

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        return {tp: max(time, EDGES.first[tp]) if time < EDGES.end[tp] else -1 for tp, time in times.items()}


def planned(start: Bound, stop: Bound = LATEST, *, latest: bool = False, strict: bool = True) -> Plan:
    return plan([A0, A1, B0], Bounds(start, stop, latest), Brokers(), fail_on_data_loss=strict)


def test_everything_is_from_the_first_offset_to_the_end() -> None:
    assert planned(EARLIEST).ranges == [OffsetRange(*A0, 10, 100), OffsetRange(*A1, 0, 50)]


def test_offsets_in_json_choose_their_topics_and_name_every_partition() -> None:
    found = planned(ByOffset({A0: 20, A1: -2}), ByOffset({A0: 30, A1: -1}))
    assert found.ranges == [OffsetRange(*A0, 20, 30), OffsetRange(*A1, 0, 50)]
    with pytest.raises(ConfigError, match="leave out a-1"):
        planned(ByOffset({A0: 20}))
    with pytest.raises(ConfigError, match="there is no partition a-7"):
        planned(ByOffset({A0: 20, A1: 0, TopicPartition("a", 7): 0}))
    with pytest.raises(ConfigError, match="no topic in common"):
        planned(ByOffset({A0: 20, A1: 0}), ByOffset({B0: -1}))


def test_a_time_begins_at_its_first_record_and_ends_before_the_ends() -> None:
    assert planned(ByTime(40, {}), ByTime(45, {}), latest=True).ranges == [
        OffsetRange(*A0, 40, 45),
        OffsetRange(*A1, 40, 45),
    ]
    with pytest.raises(ConfigError, match="no record is as young as the start: b-0"):
        planned(ByTime(40, {}))


def test_an_end_before_the_start_and_one_behind_the_log_are_refused() -> None:
    with pytest.raises(ConfigError, match="a-0 from 40 to 30"):
        planned(ByOffset({A0: 40, A1: 0}), ByOffset({A0: 30, A1: 10}))
    with pytest.raises(ConfigError, match="a-0 ends at 100, not at 300"):
        planned(ByOffset({A0: 40, A1: 0}), ByOffset({A0: 300, A1: 10}))


def test_what_is_gone_is_named_or_passed_over() -> None:
    start = ByOffset({A0: 3, A1: 0})
    with pytest.raises(ConfigError, match="a-0 from 3 to 10, it begins at 10 now"):
        planned(start)
    found = planned(start, strict=False)
    assert (found.gone, found.ranges[0]) == ([OffsetRange(*A0, 3, 10)], OffsetRange(*A0, 10, 100))


@pytest.mark.parametrize(
    ("committed", "reset", "starts"),
    [
        ({}, "earliest", {A0: 10, A1: 0, B0: 0}),
        ({}, "latest", {A0: 100, A1: 50, B0: 0}),
        # A partition that is new on a topic of the group's is not skipped.
        ({A0: 60}, "latest", {A0: 60, A1: 0, B0: 0}),
        ({A0: 60, B0: 0}, "none", {A0: 60, A1: 0, B0: 0}),
    ],
)
def test_a_catch_up_begins_where_the_live_service_would(committed: Offsets, reset: str, starts: Offsets) -> None:
    assert starts_of([A0, A1, B0], committed, EDGES, reset, fail_on_data_loss=True) == starts


@pytest.mark.parametrize(
    ("committed", "why"),
    [
        ({}, 'auto_offset_reset = "none"'),
        ({A0: 4, B0: 0}, "6 offsets are deleted already"),
        ({A0: 101, B0: 0}, "was truncated"),
    ],
)
def test_a_catch_up_guesses_no_start(committed: Offsets, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        starts_of([A0, A1, B0], committed, EDGES, "none", fail_on_data_loss=True)
