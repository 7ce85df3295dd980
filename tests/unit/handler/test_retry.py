"""What becomes of a record whose handler raised."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.config import RetryTopic
from kunicorn.handler.decode import Undecodable
from kunicorn.handler.outcome import DeadLetter, Done, Halt, Outcome, Retry, Skip
from kunicorn.handler.retry import End, Policies, RetryPolicy, TryAgain, describe

MS = 1_000_000
POLICY = RetryPolicy(max_attempts=4, retry_backoff_ms=100, retry_backoff_max_ms=250)
POLICIES = Policies(
    POLICY,
    [
        ((ConnectionError,), RetryPolicy(10, 1000, 1000, on_failure=End.HALT)),
        ((OSError, ValueError), RetryPolicy(1, 100, 100, on_failure=End.DEAD_LETTER)),
    ],
)


def test_the_wait_doubles_up_to_its_limit_and_then_the_record_is_given_up() -> None:
    verdicts = [POLICY.verdict(ValueError(), failures, 0, 0.5) for failures in (1, 2, 3, 4)]
    assert verdicts == [TryAgain(100 * MS, 4), TryAgain(200 * MS, 4), TryAgain(250 * MS, 4), End.HALT]


@pytest.mark.parametrize("end", [End.HALT, End.SKIP, End.DEAD_LETTER])
def test_after_the_last_try_the_record_ends_as_the_policy_says(end: End) -> None:
    assert RetryPolicy(1, 100, 250, on_failure=end).verdict(ValueError(), 1, 0, 0.5) is end


def test_no_try_begins_after_the_timeout() -> None:
    policy = RetryPolicy(100, 100, 100, retry_timeout_ms=1000)
    assert policy.verdict(ValueError(), 5, 900 * MS, 0.5) == TryAgain(100 * MS, 100)
    assert policy.verdict(ValueError(), 5, 901 * MS, 0.5) is End.HALT


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_not_an_exception_is_not_tried_again(error: BaseException) -> None:
    assert POLICY.verdict(error, 1, 0, 0.5) is End.HALT


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionResetError(), TryAgain(1000 * MS, 10)),
        (FileNotFoundError(), End.DEAD_LETTER),
        (UnicodeError(), End.DEAD_LETTER),
        (KeyError(), TryAgain(100 * MS, 4)),
    ],
)
def test_the_first_rule_that_names_one_of_the_errors_classes_counts(error: Exception, verdict: TryAgain | End) -> None:
    assert POLICIES.verdict(error, 1, 0, 0.5) == verdict


@pytest.mark.parametrize(
    ("outcome", "end"),
    [(Done(), End.DONE), (Skip("old"), End.SKIP), (DeadLetter("bad"), End.DEAD_LETTER), (Halt("stop"), End.HALT)],
)
def test_what_the_handler_says_goes_before_every_rule(outcome: Outcome, end: End) -> None:
    rules = Policies(POLICY, [((Exception,), RetryPolicy(9, 1, 1))])
    assert rules.verdict(outcome, 1, 0, 0.5) is end


@pytest.mark.parametrize(
    ("named", "policy"),
    [(Exception, "default"), (Outcome, "rule"), (Retry, "rule"), (DeadLetter, "default")],
)
def test_another_try_that_the_handler_asks_for_is_given_by_a_rule_only_if_the_rule_names_outcomes(
    named: type[Exception], policy: str
) -> None:
    rules = Policies(POLICY, [((named,), RetryPolicy(1, 1, 1, on_failure=End.SKIP, dead_letter_topic="rule"))])
    asked = Retry("locked", after=timedelta(seconds=7))
    assert rules.verdict(asked, 1, 0, 0.5) == (TryAgain(7000 * MS, 4) if policy == "default" else End.SKIP)
    assert rules.of(asked) is (rules.rules[0][1] if policy == "rule" else POLICY)


def test_a_handler_that_asks_for_another_try_says_when_and_is_still_counted() -> None:
    assert POLICIES.verdict(Retry(after=timedelta(seconds=7)), 1, 0, 0.0) == TryAgain(7000 * MS, 4)
    assert POLICIES.verdict(Retry("locked"), 1, 0, 0.5) == TryAgain(100 * MS, 4)
    assert POLICIES.verdict(Retry(after=timedelta(seconds=7)), 4, 0, 0.5) is End.HALT


@given(failures=st.integers(1, 10_000), random=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_a_fifth_however_often_it_failed(failures: int, random: float) -> None:
    wait = RetryPolicy(1_000_000, 100, 60_000).backoff_ns(failures, random)
    plain = min(100 * 2 ** min(failures - 1, 20), 60_000) * MS
    assert 0.8 * plain - 1 <= wait <= 1.2 * plain + 1


@given(
    attempts=st.integers(1, 50),
    backoff=st.integers(1, 10_000),
    timeout=st.none() | st.integers(1, 100_000),
    randoms=st.lists(st.floats(0, 1, exclude_max=True), min_size=50, max_size=50),
)
def test_a_record_that_always_fails_ends_within_its_tries_and_its_time(
    attempts: int, backoff: int, timeout: int | None, randoms: list[float]
) -> None:
    policy = RetryPolicy(attempts, backoff, 10 * backoff, timeout, End.SKIP)
    elapsed = 0
    for failures, random in enumerate(randoms, 1):
        verdict = policy.verdict(ValueError(), failures, elapsed, random)
        if not isinstance(verdict, TryAgain):
            break
        elapsed += verdict.wait_ns
    else:
        pytest.fail("it is tried for ever")
    assert verdict is End.SKIP
    assert failures <= attempts
    assert timeout is None or elapsed <= timeout * MS


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


SOON, LATE = RetryTopic("g.retry.5s", 5000), RetryTopic("g.retry.1m", 60_000)
NON_BLOCKING = RetryPolicy(2, 100, 100, on_failure=End.DEAD_LETTER, retry_topics=(SOON, LATE))


def test_after_the_tries_in_place_a_record_goes_through_the_retry_topics_and_then_as_on_failure_says() -> None:
    policies = Policies(NON_BLOCKING)
    assert isinstance(policies.verdict(ValueError(), 1, 0, 0.5), TryAgain)
    for waited, first in ((0, SOON), (5000, LATE)):
        behind = policies.behind(waited)
        assert behind.verdict(ValueError(), 2, 0, 0.5) is End.RETRY_TOPIC
        assert behind.of(ValueError()).retry_topics[0] == first
    assert policies.behind(60_000).verdict(ValueError(), 2, 0, 0.5) is End.DEAD_LETTER


def test_a_try_that_would_come_too_late_in_place_comes_in_a_retry_topic() -> None:
    assert replace(NON_BLOCKING, retry_timeout_ms=10).verdict(ValueError(), 1, 0, 0.5) is End.RETRY_TOPIC


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (SystemExit(), End.DEAD_LETTER),
        (Skip("no"), End.SKIP),
        (Halt("no"), End.HALT),
        (DeadLetter("no"), End.DEAD_LETTER),
        (Undecodable("no JSON"), End.DEAD_LETTER),
    ],
)
def test_what_no_other_try_would_change_goes_into_no_retry_topic(error: BaseException, end: End) -> None:
    assert Policies(NON_BLOCKING).verdict(error, 9, 0, 0.5) is end


def test_a_rule_without_retry_topics_sends_its_exceptions_past_them() -> None:
    rules = Policies(NON_BLOCKING, [((KeyError,), replace(NON_BLOCKING, retry_topics=()))])
    assert rules.behind(5000).verdict(KeyError(), 2, 0, 0.5) is End.DEAD_LETTER
    assert rules.behind(5000).verdict(ValueError(), 2, 0, 0.5) is End.RETRY_TOPIC
