"""What a reset would do, before it is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kunicorn.commands.group_lag import Standing
from kunicorn.commands.offsets import FromFile, ShiftBy, Target, ToDatetime, ToOffset, lines, planned
from kunicorn.errors import ConfigError
from kunicorn.positions import EARLIEST, LATEST, TopicPartition

TP = TopicPartition("orders", 0)


def standing(committed: int | None = 50, first: int | None = 10, end: int | None = 100) -> Standing:
    return Standing(TP, committed, first, end)


@pytest.mark.parametrize(
    ("target", "then", "effect"),
    [
        (ToOffset(EARLIEST), 10, "40 again"),
        (ToOffset(LATEST), 100, "50 skipped"),
        (ToDatetime(0), 70, "20 skipped"),
        (ShiftBy(-20), 30, "20 again"),
        (ToOffset(50), 50, "stays"),
        (FromFile({TP: 51}), 51, "1 skipped"),
    ],
)
def test_each_target_says_where_a_partition_ends_up_and_what_that_costs(target: Target, then: int, effect: str) -> None:
    (move,) = planned(target, [standing()], {TP: 70})
    assert (move.then, move.effect, move.note) == (then, effect, "")


@pytest.mark.parametrize(("target", "then"), [(ShiftBy(-1000), 10), (ShiftBy(1000), 100), (ToOffset(101), 100)])
def test_an_offset_outside_of_the_log_is_kept_within_it_and_said_to_be(target: Target, then: int) -> None:
    (move,) = planned(target, [standing()], {})
    assert move.then == then
    assert "is not in the log (10 to 100)" in move.note


@pytest.mark.parametrize(
    ("log", "at"),
    [
        ({"anew": True}, 10),
        ({"epoch_end": 30}, 30),
        ({"first": 60}, 60),
        ({"end": 40}, 40),
    ],
    ids=["created anew", "truncated and grown", "deleted", "truncated"],
)
def test_what_a_reset_costs_is_counted_from_where_the_group_would_go_on(log: dict[str, Any], at: int) -> None:
    """What is committed is no place in this log: the service would begin elsewhere, and so it is shifted from there."""
    stands = replace(standing(), **log)
    first, end = stands.first or 0, stands.end or 0
    assert (stands.committed, stands.start) == (50, at)
    (latest,) = planned(ToOffset(LATEST), [stands], {})
    assert latest.effect == ("stays" if at == end else f"{end - at} skipped")
    (shifted,) = planned(ShiftBy(-5), [stands], {})
    assert shifted.then == max(at - 5, first)
    assert shifted.note.startswith(stands.loss or "-")
    assert f"{end - at} never" in list(lines([latest]))[-1]


@pytest.mark.parametrize(
    ("policy", "start", "to_earliest", "to_latest", "back_by_5"),
    [
        ("earliest", 60, "stays", "40 skipped", 60),
        ("latest", 100, "40 again", "stays", 95),
        ("none", None, "", "", 60),
    ],
)
def test_where_a_group_goes_on_behind_deleted_records_its_policy_says(
    policy: str, start: int | None, to_earliest: str, to_latest: str, back_by_5: int
) -> None:
    """Whoever reads "stays" does not execute it, and by latest the service would skip what is left of the log."""
    stands = replace(standing(first=60), policy=policy)
    (earliest,) = planned(ToOffset(EARLIEST), [stands], {})
    (latest,) = planned(ToOffset(LATEST), [stands], {})
    (shifted,) = planned(ShiftBy(-5), [stands], {})
    assert (earliest.start, earliest.effect, latest.effect) == (start, to_earliest, to_latest)
    assert shifted.then == back_by_5


def test_a_partition_that_was_never_committed_can_be_put_somewhere_but_not_shifted() -> None:
    (move,) = planned(ToOffset(EARLIEST), [standing(committed=None)], {})
    assert (move.now, move.then, move.effect) == (None, 10, "")
    with pytest.raises(ConfigError, match="orders-0 has no committed offset to shift; use --to-earliest"):
        planned(ShiftBy(1), [standing(committed=None)], {})


def test_a_partition_whose_log_is_not_known_stops_the_whole_plan() -> None:
    with pytest.raises(ConfigError, match="orders-0: its leader does not answer; leave it out with --topic"):
        planned(ToOffset(3), [standing(end=None)], {})


def test_partitions_that_a_file_leaves_out_stay() -> None:
    assert planned(FromFile({TopicPartition("orders", 1): 5}), [standing()], {}) == []


def test_the_sum_of_a_plan_is_said() -> None:
    shown = list(lines(planned(ToOffset(EARLIEST), [standing(), standing(committed=None)], {})))
    assert shown[0].split() == ["partition", "committed", "then", "records", "note"]
    assert shown[-1] == "2 partitions: 40 offsets would be handled again, 0 never"
