"""From bounds to ranges, and what is refused on the way."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from kunicorn.errors import ConfigError
from kunicorn.group.protocol import Committed
from kunicorn.ipc import bitmap
from kunicorn.kafka.stored_positions import resolve_all
from kunicorn.pipeline.catch_up import ahead_of, starts_of
from kunicorn.pipeline.lake.files import file_name
from kunicorn.pipeline.plan import (
    Bound,
    Bounds,
    ByOffset,
    ByTime,
    Everywhere,
    Plan,
    check_not_truncated,
    check_nothing_lost,
    created_anew,
    plan,
)
from kunicorn.positions import NO_OFFSET, Edges, OffsetRange, Offsets, Position, TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
EDGES = {A0: Edges(10, 100), A1: Edges(0, 50), B0: Edges(0, 0)}
EARLIEST, LATEST = Everywhere(-2), Everywhere(-1)


class Brokers:
    """Answers from `EDGES`; records are as old as their offsets."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: f"id of {topic}" for topic in topics}

    def edges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Edges]:
        return {tp: EDGES[tp] for tp in partitions}

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        return {tp: max(time, EDGES[tp].first) if time < EDGES[tp].end else -1 for tp, time in times.items()}


def planned(start: Bound, stop: Bound = LATEST, *, latest: bool = False, strict: bool = True) -> Plan:
    return plan([A0, A1, B0], Bounds(start, stop, latest), Brokers(), fail_on_data_loss=strict)


def test_a_stored_position_goes_on_only_where_the_log_reaches_it() -> None:
    assert resolve_all({A0: 10, A1: 50}, EDGES) == ({A0: 10, A1: 50}, [])
    check_nothing_lost([])
    cases: list[tuple[Offsets, tuple[str, ...], str, Offsets]] = [
        ({A0: 9}, (), "a-0 from 9 to 10 is deleted already", {A0: 10}),
        ({A1: 51}, (), "a-1 ends at 50 now, before 51: it was truncated", {A1: 50}),
        ({A0: 40}, ("a",), "a-0 was created anew: what the former one had from offset 40 on is gone", {A0: 10}),
    ]
    for positions, anew, why, on in cases:
        found, lost = resolve_all(positions, EDGES, anew)
        assert (found, len(lost)) == (on, 1)
        with pytest.raises(ConfigError, match=f"{why}.*fail_on_data_loss = false"):
            check_nothing_lost(lost)


def test_what_a_run_counts_has_to_be_in_the_log_of_its_leaders_epoch() -> None:
    check_not_truncated({A0: 90, A1: 50}, {A0: 90})
    with pytest.raises(ConfigError, match=r"a-0 ends at 60 now, before 90: it was truncated.*underway does not count"):
        check_not_truncated({A0: 90, A1: 50}, {A0: 60})


def test_a_topic_is_another_one_only_where_both_ids_are_known() -> None:
    assert created_anew({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == {"b"}
    assert created_anew({}, {"a": "1"}) == created_anew({"a": "1"}, {}) == frozenset()


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


class Growing(Brokers):
    """A log in which a late record, 100, and one of the time that is asked for, 101, come once its edges are told."""

    def __init__(self) -> None:
        self.end = 100

    def edges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Edges]:
        found = {tp: Edges(0, self.end) for tp in partitions}
        self.end = 102
        return found

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        return dict.fromkeys(times, 101 if self.end > 101 else -1)


@pytest.mark.parametrize(
    ("start", "stop", "planned"),
    [
        (ByTime(5, {}), LATEST, OffsetRange(*A0, 101, 102)),
        (EARLIEST, ByTime(5, {}), OffsetRange(*A0, 0, 101)),
        (EARLIEST, LATEST, OffsetRange(*A0, 0, 100)),
    ],
)
def test_a_record_that_comes_while_times_are_asked_for_makes_no_bound_a_wrong_one(
    start: Bound, stop: Bound, planned: OffsetRange
) -> None:
    found = plan([A0], Bounds(start, stop, unmatched_is_latest=True), Growing(), fail_on_data_loss=True)
    assert found.ranges == [planned]


class ComesLate(Growing):
    """The records come when no record was found to be as young as the start."""

    def at(self, times: Offsets) -> dict[TopicPartition, int]:
        return dict.fromkeys(times, -1)


def test_a_record_that_comes_when_none_was_as_young_as_the_start_is_not_left_out() -> None:
    bounds = Bounds(ByTime(5, {}), LATEST, unmatched_is_latest=True)
    assert plan([A0], bounds, ComesLate(), fail_on_data_loss=True).ranges == [OffsetRange(*A0, 100, 102)]


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


def answers(committed: Offsets) -> dict[TopicPartition, Committed]:
    return {tp: Committed(0, committed.get(tp, NO_OFFSET)) for tp in EDGES}


@pytest.mark.parametrize(
    ("committed", "reset", "starts"),
    [
        ({}, "earliest", {A0: 10, A1: 0, B0: 0}),
        ({}, "latest", {A0: 100, A1: 50, B0: 0}),
        # A partition that is new on a topic of the group's is not skipped.
        ({A0: 60}, "latest", {A0: 60, A1: 0, B0: 0}),
    ],
)
def test_a_catch_up_begins_where_the_live_service_would(committed: Offsets, reset: str, starts: Offsets) -> None:
    found, lost = starts_of(answers(committed), EDGES, reset, fail_on_data_loss=True)
    assert ({tp: each.offset for tp, each in found.items()}, lost) == (starts, [])


@pytest.mark.parametrize(
    ("committed", "why"),
    [
        ({}, 'auto_offset_reset = "none"'),
        ({A0: 60, B0: 0}, "a-1 has no committed offset"),
        ({A0: 4, B0: 0}, "a-0 from 4 to 10 is deleted already"),
        ({A0: 101, B0: 0}, "was truncated"),
    ],
)
def test_a_catch_up_guesses_no_start(committed: Offsets, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        starts_of(answers(committed), EDGES, "none", fail_on_data_loss=True)


@pytest.mark.parametrize(
    ("committed", "ends", "start", "told"),
    [
        (4, {}, 100, "a-0 from 4 to 10 is deleted already"),
        (101, {}, 100, "a-0 ends at 100 now, before 101: it was truncated"),
        # The log has grown beyond the offset since, by other records.
        (70, {A0: 60}, 60, "a-0 ends at 60 now, before 70: it was truncated"),
    ],
)
def test_a_catch_up_goes_on_behind_what_is_lost_where_that_is_accepted_and_tells_of_it(
    committed: int, ends: Offsets, start: int, told: str
) -> None:
    stored = answers({A0: committed, A1: 7, B0: 0})
    with pytest.raises(ConfigError, match=f"{told}.*; set pipeline.fail_on_data_loss = false"):
        starts_of(stored, EDGES, "latest", fail_on_data_loss=True, epoch_ends=ends)
    found, lost = starts_of(stored, EDGES, "latest", fail_on_data_loss=False, epoch_ends=ends)
    assert found[A1].offset == 7
    assert [str(each).startswith(told) for each in lost] == [True]
    assert found[A0].offset == (10 if committed == 4 else start)


def test_a_catch_up_keeps_what_the_live_service_told_with_its_offsets_as_long_as_it_is_true() -> None:
    told = bitmap.with_partitions(2, bitmap.written(10, range(11, 91)))
    ahead = ahead_of({A0: Position(10, done=told), A1: Position(7)}, {})
    assert ahead.done == {A0: frozenset(range(11, 91))}
    first = ahead.metadata(A0, Position(10), "spark:over")
    assert (bitmap.read(10, first), bitmap.partitions(first)) == (frozenset(range(11, 91)), 2)
    assert bitmap.read(50, ahead.metadata(A0, Position(50), "spark:over")) == frozenset(range(50, 91))
    assert ahead.metadata(A0, Position(91), "spark:over").endswith(" spark:over")
    assert bitmap.read(91, ahead.metadata(A0, Position(91), "spark:over")) == frozenset()
    assert ahead.metadata(A1, Position(7), "spark:over") == "spark:over"


def test_a_catch_up_commits_the_leader_epoch_beside_what_the_live_service_told() -> None:
    told = bitmap.with_partitions(2, bitmap.written(10, range(11, 91), "ours"))
    ahead = ahead_of({A0: Position(10, done=told)}, {"a": "ours"})
    first = ahead.metadata(A0, Position(50, 7), "spark:over")
    assert bitmap.epoch(50, first, "ours") == 7
    assert (bitmap.read(50, first), bitmap.partitions(first)) == (frozenset(range(50, 91)), 2)
    assert first.endswith(" spark:over")


@pytest.mark.parametrize(
    ("committed", "end", "left"),
    [
        (60, 80, range(75, 80)),  # Strict or not: nothing that is not done is lost, but what came instead is to do.
        (60, None, range(75, 85)),
        (60, 60, ()),
        (90, 80, ()),  # Cut off before the offset itself, to which the log has grown since.
    ],
)
def test_a_catch_up_takes_nothing_for_done_that_came_after_a_truncation(
    committed: int, end: int | None, left: Collection[int]
) -> None:
    told = bitmap.with_partitions(2, bitmap.written(committed, range(committed + 15, committed + 25)))
    stored = {A0: Committed(0, committed, 3, told)}
    ends = {} if end is None else {A0: end}
    for strict in (False, True) if committed == 60 else (False,):
        found, _ = starts_of(stored, EDGES, "earliest", fail_on_data_loss=strict, epoch_ends=ends)
        ahead = ahead_of(found, {})
        assert ahead.done == ({A0: frozenset(left)} if left else {})
        assert bitmap.partitions(ahead.metadata(A0, Position(committed), "spark:over")) == 2


def test_a_catch_up_behind_deleted_records_heeds_what_is_done_and_still_there() -> None:
    told = bitmap.written(4, range(8, 15))
    found, _ = starts_of({A0: Committed(0, 4, 3, told)}, EDGES, "earliest", fail_on_data_loss=False)
    assert ahead_of(found, {}).done == {A0: frozenset(range(10, 15))}


def test_a_catch_up_takes_nothing_for_done_that_was_so_elsewhere_and_says_of_which_topic_it_speaks() -> None:
    """A group's offsets that MirrorMaker brought along, or a script has moved, with their metadata."""
    told = bitmap.written(60, range(61, 80), "ours")
    for at, topic in ((55, "ours"), (60, "another")):
        found, _ = starts_of({A0: Committed(0, at, 3, told)}, EDGES, "earliest", fail_on_data_loss=False)
        assert ahead_of(found, {"a": topic}).done == {}
    found, _ = starts_of({A0: Committed(0, 60, 3, told)}, EDGES, "earliest", fail_on_data_loss=False)
    ahead = ahead_of(found, {"a": "ours"})
    assert ahead.done == {A0: frozenset(range(61, 80))}
    assert bitmap.topic_in(ahead.metadata(A0, Position(70), "spark:over")) == "ours"


def test_a_topic_id_with_a_slash_makes_no_directory_of_its_own_in_a_lake() -> None:
    named = file_name(OffsetRange("orders", 0, 0, 600), "wSxxVB44ToOXA7+nwvf/WQ")
    assert named == "orders-0-wSxxVB44ToOXA7-nwvf_WQ-00000000000000000000-00000000000000000600.parquet"
