"""Time-outs under the testing kit: from the moment at which the record is in hand, each handler's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kunicorn.testing.bench
from kunicorn import Record
from kunicorn.testing import HandlerTest, record

TWO_HANDLERS = """
[kafka]
bootstrap_servers = ["nowhere:9092"]

[group]
id = "shop"

[[handlers]]
topics = ["orders"]
entrypoint = "{module}:{first}"
{first_more}

[[handlers]]
topics = ["refunds"]
entrypoint = "{module}:{second}"
{second_more}
"""
SHORT = "handler_timeout_ms = 50\nmax_attempts = 1"


def at_once(given: Record) -> None: ...


def hangs(given: Record) -> None:
    time.sleep(60)


def takes_a_while(given: Record) -> None:
    time.sleep(0.4)


def decodes_for_ever(value: bytes) -> bytes:
    time.sleep(60)
    return value


def keeps_after_a_minute(given: Record) -> bool:
    time.sleep(60)
    return True


def enters_for_ever(call: Any) -> Iterator[None]:
    time.sleep(60)
    yield


def leaves_for_ever(call: Any) -> Iterator[None]:
    yield
    time.sleep(60)


@pytest.mark.parametrize(
    "settings",
    [
        {"value": f"{__name__}:decodes_for_ever"},
        {"filters": [{"function": f"{__name__}:keeps_after_a_minute"}]},
        {"middlewares": [f"{__name__}:enters_for_ever"]},
        {"middlewares": [f"{__name__}:leaves_for_ever"]},
    ],
    ids=["decoder", "filter", "middleware before", "middleware behind"],
)
def test_decoders_filters_and_middlewares_take_their_part_of_the_time(settings: dict[str, Any]) -> None:
    run = HandlerTest(at_once, handler_timeout_ms=50, max_attempts=1, **settings).run(record("a"))
    assert run.outcomes == ["halted"]
    assert isinstance(run.errors[0], TimeoutError)


def test_each_record_of_a_run_has_the_whole_time() -> None:
    run = HandlerTest(lambda given: time.sleep(0.4), handler_timeout_ms=5000, max_attempts=1).run(
        *map(record, "abcdefghijklmn")
    )
    assert run.outcomes == ["done"] * 14


@pytest.mark.parametrize(
    ("topic", "outcome"),
    [("orders", "done"), ("refunds", "halted")],
)
def test_each_topics_records_have_their_own_handlers_time_out(topic: str, outcome: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        TWO_HANDLERS.format(module=__name__, first="takes_a_while", first_more="", second="hangs", second_more=SHORT)
    )
    assert HandlerTest(config=config).run(record("a", topic=topic)).outcomes == [outcome]


def test_the_first_handlers_time_out_is_not_the_seconds(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        TWO_HANDLERS.format(module=__name__, first="hangs", first_more=SHORT, second="takes_a_while", second_more="")
    )
    assert HandlerTest(config=config).run(record("a", topic="refunds")).outcomes == ["done"]


def test_a_revoke_with_a_later_deadline_leaves_a_record_its_time_out() -> None:
    run = HandlerTest(hangs, handler_timeout_ms=50, max_attempts=1).run(
        record("a"), revoke_at=0, drain_timeout_ms=50_000
    )
    assert [type(each) for each in run.errors] == [TimeoutError]


def test_a_handler_that_has_just_worked_for_long_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kunicorn.testing.bench, "_PATIENCE", 4.0)
    run = HandlerTest(lambda given: time.sleep(4.5), rate_limit={"per_second": 1, "burst": 1}).run(
        record("a"), record("b")
    )
    assert run.outcomes == ["done", "done"]
