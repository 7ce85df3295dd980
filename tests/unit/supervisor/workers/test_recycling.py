"""When a worker has worked for long enough."""

from __future__ import annotations

from typing import Any

import pytest

from kunicorn.settings import WorkerSettings
from kunicorn.supervisor.workers.rolling import due

MB = 1024 * 1024
LIMITS = WorkerSettings(max_records=1000, max_age_s=100, max_rss_mb=300)
FRESH: dict[str, Any] = {"handled": 999, "age": 89.9, "rss_bytes": 300 * MB, "jitter": 0.0}


def test_a_worker_within_all_limits_goes_on() -> None:
    assert due(LIMITS, **FRESH) is None


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"handled": 1000}, "records", "1000 records (max_records = 1000)"),
        ({"age": 100.0}, "age", "100 s old (max_age_s = 100)"),
        ({"rss_bytes": 301 * MB}, "rss", "301 MB resident (max_rss_mb = 300)"),
    ],
)
def test_whoever_reaches_a_limit_is_due_and_it_is_said_which(changes: dict[str, Any], reason: str, words: str) -> None:
    found = due(LIMITS, **{**FRESH, **changes})
    assert found is not None
    assert (found.reason, found.words) == (reason, words)


def test_workers_of_the_same_age_are_not_due_together() -> None:
    at_95 = {**FRESH, "age": 95.0}
    assert due(LIMITS, **{**at_95, "jitter": 0.2}) is None
    assert due(LIMITS, **{**at_95, "jitter": 0.9}) is not None


def test_memory_of_a_worker_that_has_just_started_does_not_count() -> None:
    """Its successor would be as large, and so on without an end."""
    assert due(LIMITS, **{**FRESH, "age": 1.0, "rss_bytes": 900 * MB}) is None


def test_without_limits_nobody_is_ever_due() -> None:
    old: dict[str, Any] = {"handled": 10**12, "age": 1e9, "rss_bytes": 10**12, "jitter": 0.9}
    assert due(WorkerSettings(), **old) is None
