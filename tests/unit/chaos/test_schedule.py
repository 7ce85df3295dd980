"""Seeds stand for schedules."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.faults import FAULTS, Kind
from tests.chaos.group import PROTOCOLS
from tests.chaos.schedule import WHOLE, crowded, remember, remembered, schedule


def test_a_seed_is_always_the_same_schedule() -> None:
    assert schedule(17) == schedule(17)
    assert schedule(17).faults != schedule(17 + WHOLE).faults


def test_as_many_seeds_as_make_a_whole_put_every_protocol_through_every_fault_once() -> None:
    schedules = [schedule(6_000 + number) for number in range(WHOLE)]
    for protocol in PROTOCOLS:
        met = [name for each in schedules if each.protocol == protocol for name in each.faults]
        assert sorted(met) == sorted(FAULTS)


def test_what_needs_static_members_meets_static_members_only() -> None:
    for seed in range(WHOLE):
        kinds = {FAULTS[name].kind for name in schedule(seed).faults}
        assert kinds == {Kind.ANY, Kind.STATIC if schedule(seed).static else Kind.DYNAMIC}


def test_a_schedule_that_failed_is_kept_once_with_the_faults_it_stood_for(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    failed = schedule(5, ["kill-worker", "scale-out"])
    remember(failed, "lost: orders-0@1\nand more", path)
    remember(failed, "again", path)
    assert path.read_text() == "5 kill-worker scale-out  # lost: orders-0@1\n"
    assert remembered(path) == [failed]


def test_a_schedule_that_failed_over_our_own_fetcher_is_tried_over_it_again(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    failed = [schedule(5, ["kill-worker"], fetcher="own"), crowded(6, "key-tasks", "own"), crowded(6, "key-tasks")]
    for each in failed:
        remember(each, "lost", path)
    assert remembered(path) == failed


def test_every_schedule_that_failed_can_still_be_run() -> None:
    assert all(name in FAULTS for each in remembered() for name in each.faults)
