"""What becomes of a record whose handler raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.worker.retry import RetryPolicy, describe

POLICY = RetryPolicy(attempts=4, backoff_ms=100, backoff_max_ms=250)
MS = 1_000_000


def test_the_wait_doubles_up_to_its_limit_and_then_the_record_is_given_up() -> None:
    waits = [POLICY.wait_ns(failures, ValueError(), 0.5) for failures in (1, 2, 3, 4)]
    assert waits == [100 * MS, 200 * MS, 250 * MS, None]


def test_one_attempt_means_no_retry() -> None:
    assert RetryPolicy(1, 100, 250).wait_ns(1, ValueError(), 0.5) is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_not_an_exception_is_not_tried_again(error: BaseException) -> None:
    assert POLICY.wait_ns(1, error, 0.5) is None


@given(failures=st.integers(1, 10_000), random=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_a_fifth_however_often_it_failed(failures: int, random: float) -> None:
    wait = RetryPolicy(1_000_000, 100, 60_000).wait_ns(failures, ValueError(), random)
    assert wait is not None
    plain = min(100 * 2 ** min(failures - 1, 20), 60_000) * MS
    assert 0.8 * plain - 1 <= wait <= 1.2 * plain + 1


def test_an_error_is_told_with_its_type_its_message_and_where() -> None:
    def charge() -> None:
        raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such") as caught:
        charge()
    text = describe(caught.value)
    assert text.startswith("ValueError: no such customer\n")
    assert "in charge" in text


def test_an_error_without_a_message_is_told_by_its_type() -> None:
    assert describe(TimeoutError()) == "TimeoutError"
