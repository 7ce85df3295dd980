"""The three recipes with which docs/failures.md begins do what their headings say."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from kunicorn import Record
from kunicorn.testing import HandlerTest, record
from tests.markdown import ROOT, blocks

BROKEN, AWAY, PATIENT = (
    tomllib.loads(block.text)["handler"]
    for block in [each for each in blocks(ROOT / "docs" / "failures.md") if each.language == "toml"][:3]
)


def tried(settings: dict[str, Any], handle: Callable[[Record], object]) -> HandlerTest:
    return HandlerTest(handle, **{name: value for name, value in settings.items() if name != "entrypoint"})


def failing(error: Exception, times: int = 1_000_000) -> Callable[[Record], None]:
    calls = iter(range(times))

    def handle(record: Record) -> None:
        if record.value == b"bad" and next(calls, None) is not None:
            raise error

    return handle


def test_a_broken_record_stops_nothing_and_everything_else_is_tried_again() -> None:
    broken = tried(BROKEN, failing(ValueError("broken"))).run(record("bad"), record("good"))
    assert broken.outcomes == ["dead_letter", "done"]
    assert broken.records[0].attempts == 1
    away = tried(BROKEN, failing(ConnectionError("away"), times=4)).run(record("bad"), record("good"))
    assert away.outcomes == ["done", "done"]
    assert away.records[0].attempts == 5


def test_while_the_database_is_away_its_partition_goes_on() -> None:
    run = tried(AWAY, failing(ConnectionError("away"))).run(record("bad"), record("good"))
    assert run.outcomes == ["retry_topic", "done"]
    assert run.records[0].attempts == 2
    assert len(AWAY["retry_topic_delays_ms"]) == 3


@pytest.mark.parametrize("times", [3, 12])
def test_what_is_behind_a_failed_record_waits_until_it_is_handled(times: int) -> None:
    order: list[bytes | None] = []
    fail = failing(ConnectionError("away"), times)

    def handle(each: Record) -> None:
        fail(each)
        order.append(each.value)

    run = tried(PATIENT, handle).run(record("bad"), record("good"))
    assert run.outcomes == ["done", "done"]
    assert order == [b"bad", b"good"]


def test_after_an_hour_the_partition_halts() -> None:
    run = tried(PATIENT, failing(ConnectionError("away"))).run(record("bad"), record("good"))
    assert run.outcomes == ["halted", "unhandled"]
    assert run.records[0].attempts < PATIENT["max_attempts"]
