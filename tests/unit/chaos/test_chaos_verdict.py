"""What is held against a fault, and what is excused by it. Times are seconds."""

from __future__ import annotations

from dataclasses import replace

from kunicorn.ipc.clock import NANOSECONDS
from tests.chaos.calls import Call, Repeat
from tests.chaos.faults import FAULTS, Hurt, Repeats
from tests.chaos.stream import KEPT, Found
from tests.chaos.verdict import Bounds, Outcome, Step, judge
from tests.chaos.verdict import judged as judge_one


def at(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def call(begin: float, offset: int, end: float | None, member: str = "a", pid: int = 1) -> Call:
    return Call(at(begin), 0, offset, None if end is None else at(end), member, pid)


def judged(fault: str, *calls: Call, appended: float = 0.0, rebalances: int = 0) -> Outcome:
    """The outcome of a fault at 10 s that was over at 20 s; its victim is member a, worker 1, its poison offset 4."""
    step = Step(fault, Hurt(at(10), frozenset({1}), "a", frozenset({(0, 4)})), at(20), rebalances)
    times = [at(appended)] * (max(each.offset for each in calls) + 1)
    return judge([step], {0: sorted(calls)}, {0: times})[0]


def test_nothing_happens_twice_in_a_rolling_restart() -> None:
    assert judged("rolling-restart", call(9, 0, 9.1), call(12, 0, 12.1, pid=2)).broken
    assert not judged("rolling-restart", call(9, 0, 9.1), call(12, 1, 12.1, pid=2)).broken


def test_a_killed_worker_excuses_one_record_and_only_its_own() -> None:
    died_with_it = call(9.9, 0, None)
    assert not judged("kill-worker", died_with_it, call(11, 0, 11.1, pid=2)).broken
    two = (call(9.8, 0, 9.85), call(9.9, 1, None), call(11, 0, 11.1, pid=2), call(11.2, 1, 11.3, pid=2))
    assert judged("kill-worker", *two).broken
    anothers = call(9.9, 0, 9.95, pid=7)
    assert judged("kill-worker", anothers, call(11, 0, 11.1, pid=2)).broken


def test_poison_excuses_its_own_second_try_and_nothing_else() -> None:
    deaths = [call(11 + number, 4, None, pid=number + 1) for number in range(3)]
    assert not judged("poison", *deaths[:2]).broken
    assert judged("poison", *deaths).broken, "the third try belongs in the dead-letter topic"
    assert judged("poison", *deaths[:2], call(9, 0, 9.1), call(14, 0, 14.1, pid=2)).broken


def test_a_killed_supervisor_excuses_what_was_handled_since_the_commit_before() -> None:
    assert not judged("kill-supervisor", call(9, 0, 9.1), call(15, 0, 15.1, "b", 2)).broken
    assert judged("kill-supervisor", call(5, 0, 5.1), call(15, 0, 15.1, "b", 2)).broken, "long committed"
    assert judged("kill-supervisor", call(9, 0, 9.1, "c", 3), call(15, 0, 15.1, "b", 2)).broken, "not the victim's"


def test_what_no_transaction_had_committed_is_told_by_outputs_whenever_it_was_handled() -> None:
    fault = replace(FAULTS["kill-broker"], repeats=Repeats.UNCOMMITTED)
    step = Step("kill-broker", Hurt(at(10)), at(20), 0)
    again = Repeat(call(5, 0, 5.1), call(15, 0, 15.1, pid=2))
    assert not judge_one(step, fault, Found([again], 1), Bounds()).broken
    assert judge_one(step, FAULTS["kill-broker"], Found([again], 1), Bounds()).broken


def test_more_repetitions_than_are_looked_at_are_too_many_for_any_fault() -> None:
    step = Step("kill-supervisor", Hurt(at(10), victim="a"), at(20), 0)
    assert not judge_one(step, FAULTS[step.fault], Found(repeated=KEPT), Bounds()).broken
    assert judge_one(step, FAULTS[step.fault], Found(repeated=KEPT + 1), Bounds()).broken


def test_a_frozen_member_may_hold_a_record_for_each_worker_beside_its_heir() -> None:
    in_hand = [call(9.9 + number / 100, number, 34, pid=number) for number in range(3)]
    heirs = [call(25, number, 25.1, "b", 9) for number in range(2)]
    assert not judged("freeze-member", *in_hand[:1], *heirs[:1]).broken
    assert judged("freeze-member", *in_hand, *heirs).broken
    assert judged("freeze-worker", *in_hand[:1], call(25, 7, 25.1, "b", 9)).broken


def test_a_frozen_member_finishes_what_it_had_in_hand_after_its_heir_and_begins_nothing_else() -> None:
    step = Step("freeze-member", Hurt(at(10), victim="a"), at(40), 0)
    heirs = [call(25 + number / 10, number, 25.05 + number / 10, "b", 9) for number in range(5)]
    its_own = [call(34 + number / 100, number, None, pid=1) for number in range(5)]
    again = list(map(Repeat, heirs, its_own))
    beside = Bounds(in_hand=4)
    assert not judge_one(step, FAULTS[step.fault], Found(again[:4], 4), beside).broken
    assert judge_one(step, FAULTS[step.fault], Found(again, 5), beside).broken
    assert not judge_one(step, FAULTS[step.fault], Found(again, 5), Bounds()).broken, (
        "a run of a fast handler's records"
    )
    strangers = Repeat(heirs[0], call(34, 0, None, "c", 7))
    assert judge_one(step, FAULTS[step.fault], Found([strangers], 1), beside).broken


def test_a_pause_counts_from_when_the_record_was_there_and_the_one_before_was_done() -> None:
    assert judged("kill-worker", call(9, 0, 9.5), call(12, 1, 12.1, pid=2)).pauses == (2.5,)
    assert judged("kill-worker", call(9, 0, 9.5), call(12, 1, 12.1, pid=2), appended=11).pauses == (1.0,)
    assert judged("kill-worker", call(9, 0, 9.5), call(25, 1, 25.1, pid=2)).pauses == (0.0,), "after it was over"


def test_a_rebalance_needs_a_member_that_comes_or_goes() -> None:
    assert judged("kill-worker", call(12, 0, 12.1), rebalances=1).broken
    assert not judged("scale-out", call(12, 0, 12.1), rebalances=2).broken
