"""Records that are too old (`max_age_ms`), under the testing kit: by the worker's clock, which a wait turns on."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn import Record, Wait
from kunicorn.ipc.clock import wall_ms
from kunicorn.testing import HandlerTest, record

MINUTE = 60_000


def test_a_record_that_waits_for_longer_than_it_lives_is_too_old_at_its_next_try() -> None:
    calls: list[int] = []

    def busy(given: Record) -> Wait:
        calls.append(given.offset)
        return Wait(600, "429 Too Many Requests")

    run = HandlerTest(busy, max_age_ms=5 * MINUTE).run(record("a", timestamp=wall_ms()))
    assert (run.outcomes, calls) == (["filtered"], [0])


@pytest.mark.parametrize("more", [{}, {"mode": "batch"}])
def test_a_record_grows_old_while_another_one_of_its_partition_is_tried_again(more: dict[str, Any]) -> None:
    def fails(given: Any) -> None:
        raise ValueError("bad")

    rules: dict[str, Any] = {"max_attempts": 3, "retry_backoff_ms": 4 * MINUTE, "retry_backoff_max_ms": 4 * MINUTE}
    test = HandlerTest(fails, max_age_ms=5 * MINUTE, on_failure="skip", **rules, **more)
    run = test.run(record("a"), record("b", timestamp=wall_ms()))
    assert run.outcomes == ["skipped", "filtered"]


def test_the_age_of_a_retry_counts_from_the_records_own_time_and_with_its_delay() -> None:
    def fails(given: Record) -> None:
        raise ConnectionError("away")

    topics: dict[str, Any] = {"max_attempts": 1, "on_failure": "skip", "retry_topic_delays_ms": [10 * MINUTE]}
    for age, outcome in ((5 * MINUTE, "filtered"), (30 * MINUTE, "skipped")):
        test = HandlerTest(fails, max_age_ms=age, **topics)
        first = test.run(record("a", timestamp=wall_ms()))
        assert first.outcomes == ["retry_topic"]
        assert test.run(*first.retries).outcomes == [outcome]


def test_the_clock_is_the_machines_own_again_behind_a_run() -> None:
    began = wall_ms()
    run = HandlerTest(lambda given: Wait(86_400), max_age_ms=MINUTE).run(record("a", timestamp=began))
    assert run.outcomes == ["filtered"]
    run = HandlerTest(lambda given: None, max_age_ms=10 * MINUTE).run(record("a", timestamp=began))
    assert run.outcomes == ["done"]
