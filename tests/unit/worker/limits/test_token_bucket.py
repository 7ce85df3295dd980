"""The token bucket's table; times are seconds."""

from __future__ import annotations

import pytest

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.worker.limits.token_bucket import TokenBucket

S = NANOSECONDS


@pytest.mark.parametrize(
    ("taken", "at", "tokens", "wait"),
    [
        ([], 0, 5, 0),
        ([], 100, 5, 0),
        ([(0, 5)], 0, 0, 0.1),
        ([(0, 5)], 0.05, 0.5, 0.05),
        ([(0, 5)], 0.1, 1, 0),
        ([(0, 5)], 100, 5, 0),
        ([(0, 25)], 0, -20, 2.1),
        ([(0, 25)], 2, 0, 0.1),
        ([(0, 5), (0.2, 2)], 0.2, 0, 0.1),
        ([(0, 5), (0, -2)], 0, 2, 0),
        ([(0, -100)], 0, 5, 0),
        ([(10, 5)], 9, 0, 0.1),
    ],
)
def test_ten_tokens_a_second_and_five_at_once(
    taken: list[tuple[float, float]], at: float, tokens: float, wait: float
) -> None:
    bucket = TokenBucket(10, 5, 0)
    for when, count in taken:
        bucket.take(count, round(when * S))
    now = round(at * S)
    assert bucket.tokens(now) == pytest.approx(tokens)
    assert bucket.wait_ns(now) / S == pytest.approx(wait)
    assert bucket.is_full(now) is (tokens == 5)


def test_another_rate_keeps_what_was_earned_and_owed() -> None:
    bucket = TokenBucket(10, 5, 0)
    bucket.take(7, 0)
    bucket.change(1, 1, 0)
    assert (bucket.tokens(0), bucket.wait_ns(0)) == (-2, 3 * S)
    bucket.change(10, 100, 3 * S)
    assert (bucket.tokens(3 * S), bucket.tokens(4 * S)) == (1, 11)
    bucket.change(10, 2, 4 * S)
    assert bucket.tokens(4 * S) == 2


def test_a_bucket_holds_one_token_at_least() -> None:
    bucket = TokenBucket(0.5, 0.1, 0)
    assert bucket.tokens(0) == 1
    bucket.take(1, 0)
    assert bucket.wait_ns(0) == 2 * S
