"""Tries of a record in a task: what counts, and the time that it takes."""

from __future__ import annotations

from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.outcome import Skip, Wait
from kunicorn.handler.retry import End, Policies, RetryPolicy, TryAgain, Verdict
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.pipeline.tasks.tries import Failed, Tries, verdict_on

MS = NANOSECONDS // 1000
POLICIES = Policies(RetryPolicy(100, 10, 10, retry_timeout_ms=1000, on_failure=End.SKIP))


def met(tries: Tries, error: BaseException, began_ms: int, ended_ms: int) -> Verdict:
    return verdict_on(tries, Failed(error, began_ms * MS, ended_ms * MS), POLICIES, "offset 7")


def test_the_time_of_tries_begins_with_the_first_that_failed() -> None:
    tries = Tries()
    assert isinstance(met(tries, ValueError(), 0, 5000), TryAgain)
    assert isinstance(met(tries, ValueError(), 5100, 5900), TryAgain)
    assert met(tries, ValueError(), 5900, 6100) is End.SKIP
    assert tries.failures == 3


def test_the_time_of_a_wait_and_of_a_registry_that_is_away_is_none_of_the_tries() -> None:
    tries = Tries()
    met(tries, ValueError(), 0, 0)
    waits = met(tries, Wait(600), 100, 20_100)
    assert waits == TryAgain(600_000 * MS, None)
    away = met(tries, NotDecodableYet(), 620_200, 650_200)
    assert isinstance(away, TryAgain)
    assert (tries.failures, tries.undecoded) == (1, 1)
    assert isinstance(met(tries, ValueError(), 650_300, 650_900), TryAgain), "0.9 s by the tries' own time"
    assert (tries.failures, tries.undecoded) == (2, 0)
    assert met(tries, ValueError(), 651_000, 651_200) is End.SKIP


def test_a_registry_that_was_away_before_the_first_failure_takes_nothing_of_its_time() -> None:
    tries = Tries()
    met(tries, NotDecodableYet(), 0, 60_000)
    assert isinstance(met(tries, ValueError(), 70_000, 70_000), TryAgain)
    assert tries.failing_since == 70_000 * MS


def test_an_outcome_goes_before_every_rule() -> None:
    assert met(Tries(), Skip("x"), 0, 1) is End.SKIP
