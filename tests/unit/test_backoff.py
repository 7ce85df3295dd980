"""Waiting longer each time, never all at once."""

from __future__ import annotations

from random import Random

import pytest

from kunicorn.errors import Backoff


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.05, 1.0, Random(1))
    delays = [backoff.next() for _ in range(8)]
    for delay, expected in zip(delays, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0], strict=True):
        assert delay == pytest.approx(expected, rel=0.2)


def test_success_starts_over() -> None:
    backoff = Backoff(0.1, 10.0, Random(1))
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1, rel=0.2)


def test_two_clients_do_not_wait_equally_long() -> None:
    assert Backoff(1.0, 1.0, Random(1)).next() != Backoff(1.0, 1.0, Random(2)).next()
