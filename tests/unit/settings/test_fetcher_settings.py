"""[kafka] fetcher: what our own fetcher does not have is refused, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from kunicorn.supervisor.workers.config import configure
from tests.unit.settings.files import LEAST, loaded, problems


def with_kafka(*lines: str) -> str:
    """The least settings, with these lines in [kafka]."""
    return LEAST.replace("[kafka]\n", "\n".join(["[kafka]", 'fetcher = "own"', *lines, ""]))


def test_a_worker_is_told_who_fetches(tmp_path: Path) -> None:
    assert configure(loaded(tmp_path, LEAST), 0, ["t"], None, 1).fetcher == "librdkafka"
    assert configure(loaded(tmp_path, with_kafka()), 0, ["t"], None, 1).fetcher == "own"


def test_properties_that_mean_the_same_to_both_are_taken(tmp_path: Path) -> None:
    text = with_kafka('librdkafka = { "fetch.wait.max.ms" = 100, "socket.keepalive.enable" = true }')
    assert configure(loaded(tmp_path, text), 0, ["t"], None, 1).client["fetch.wait.max.ms"] == 100


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ('librdkafka = { "fetch.error.backoff.ms" = 5 }', "only librdkafka's consumer knows"),
        ("statistics_interval_ms = 15000", "remove one of the two"),
    ],
)
def test_what_only_librdkafka_has_is_refused_with_what_to_do(tmp_path: Path, line: str, remedy: str) -> None:
    (found,) = problems(tmp_path, with_kafka(line))
    assert remedy in found
