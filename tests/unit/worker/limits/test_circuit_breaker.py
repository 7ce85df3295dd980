"""The circuit breaker's table, walked; times are seconds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.worker.limits.circuit_breaker import TRANSITIONS, CircuitBreaker, Event, Limits, State

S = NANOSECONDS
LIMITS = Limits(window_ns=10 * S, min_calls=4, failure_share=0.5, open_ns=30 * S, probes=1)

Step = tuple[float, str, State]
"""When, what, and the state behind it. "ok 3": three calls succeeded; "bad": one failed; "probe ok"; "look"."""
C, O, H = State.CLOSED, State.OPEN, State.HALF_OPEN  # noqa: E741


def played(breaker: CircuitBreaker, steps: Sequence[Step]) -> None:
    for at, what, state in steps:
        now = round(at * S)
        match what.split():
            case ["ok", calls]:
                breaker.called(int(calls), 0, now)
            case ["bad"]:
                breaker.called(1, 1, now)
            case ["probe", how]:
                breaker.probed(now, failed=how == "bad")
            case _:
                assert what == "look"
        assert breaker.look(now) is state, f"{what} at {at}"


OPENED: list[Step] = [(0, "bad", C), (0, "bad", C), (0, "bad", C), (0, "bad", O)]
STORIES: dict[str, list[Step]] = {
    "too few calls say nothing": [(0, "bad", C), (0, "bad", C), (0, "bad", C)],
    "the share opens it": OPENED,
    "fewer failures do not": [(0, "ok 5", C), (1, "bad", C), (1, "bad", C), (2, "ok 1", C), (2, "bad", C)],
    "a success opens nothing": [(0, "bad", C), (0, "bad", C), (0, "bad", C), (0, "ok 1", C)],
    "what is older than the window is forgotten": [(0, "bad", C), (0, "bad", C), (0, "bad", C), (11, "bad", C)],
    "what is younger is not": [(0, "bad", C), (0, "bad", C), (0, "bad", C), (9, "bad", O)],
    "it is probed once its time is over": [*OPENED, (29.9, "look", O), (30, "look", H)],
    "a probe closes it, and what was before is forgotten": [
        *OPENED, (30, "look", H), (31, "probe ok", C), (31, "bad", C), (31, "bad", C), (31, "bad", C), (31, "bad", O),
    ],
    "a probe that fails opens it for as long again": [
        *OPENED, (30, "look", H), (31, "probe bad", O), (60.9, "look", O), (61, "look", H), (62, "probe ok", C),
    ],
    "calls that were in hand when it opened change nothing": [
        *OPENED, (1, "ok 100", O), (2, "bad", O), (30, "look", H), (31, "ok 100", H), (31, "bad", H),
    ],
    "the end of a probe that is none changes nothing": [(0, "probe bad", C), *OPENED, (1, "probe ok", O)],
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_it_opens_and_closes(story: str) -> None:
    played(CircuitBreaker(LIMITS), STORIES[story])


def test_it_closes_only_when_all_probes_in_a_row_succeed() -> None:
    breaker = CircuitBreaker(Limits(10 * S, 4, 0.5, 30 * S, probes=2))
    played(breaker, [*OPENED, (30, "look", H), (31, "probe ok", H), (32, "probe bad", O)])
    played(breaker, [(62, "look", H), (63, "probe ok", H), (64, "probe ok", C)])


def test_the_time_of_handling_stands_still_while_it_is_not_closed() -> None:
    breaker = CircuitBreaker(LIMITS)
    assert breaker.handling_time(0) == 0
    played(breaker, [(5, what, state) for _, what, state in OPENED])
    assert [breaker.handling_time(at * S) for at in (5, 20, 40)] == [5 * S] * 3
    played(breaker, [(40, "look", H), (41, "probe bad", O), (71, "look", H), (75, "probe ok", C)])
    assert breaker.handling_time(75 * S) == 5 * S
    assert breaker.handling_time(80 * S) == 10 * S


def test_every_state_is_left_and_reached() -> None:
    assert {state for state, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)
