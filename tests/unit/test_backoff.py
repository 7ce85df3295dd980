"""Waiting longer each time, never all at once."""

from __future__ import annotations

import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.backoff import Backoff, Retries


def test_waits_double_up_to_the_longest() -> None:
    retries = Retries(Backoff(0.05, 1.0), Random(1).random)
    waits = [retries.failed() for _ in range(8)]
    for wait, expected in zip(waits, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert wait == pytest.approx(expected, rel=0.2)


def test_without_jitter_a_wait_depends_on_the_failures_alone() -> None:
    backoff = Backoff(0.1, 5.0, jitter=0.0)
    assert [backoff.seconds(failures) for failures in (1, 2, 3, 50)] == [0.1, 0.2, 0.4, 5.0]


def test_success_starts_over() -> None:
    retries = Retries(Backoff(0.1, 10.0), Random(1).random)
    for _ in range(5):
        retries.failed()
    retries.succeeded()
    assert retries.failed() == pytest.approx(0.1, rel=0.2)


def test_two_clients_do_not_wait_equally_long() -> None:
    once = Backoff(1.0, 1.0)
    assert Retries(once, Random(1).random).failed() != Retries(once, Random(2).random).failed()


@given(failures=st.integers(0, sys.maxsize), chance=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_part_however_often_it_failed(failures: int, chance: float) -> None:
    backoff = Backoff(0.1, 60.0)
    plain = backoff.seconds(failures)
    assert 0.1 <= plain <= 60.0
    assert 0.8 * plain <= backoff.seconds(failures, chance) <= 1.2 * plain
