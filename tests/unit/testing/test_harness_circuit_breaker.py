"""A circuit breaker under the testing kit: the handler is not called, and no record pays for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kunicorn import Batch, BatchError, DeadLetter, Done, Record, Retry, Skip, Wait
from kunicorn.errors import ConfigError
from kunicorn.handler.rows import Rows
from kunicorn.ipc import clock
from kunicorn.testing import HandlerTest, record

BREAKER = {"exceptions": ["builtins.ConnectionError"], "min_calls": 3, "open_ms": 60_000}
MINUTE = 60 * clock.NANOSECONDS


class Api:
    """Away for its first calls, and when it was called, by value."""

    def __init__(self, away: int, error: Callable[[], BaseException] = ConnectionResetError) -> None:
        self.away = away
        self.error = error
        self.calls: list[tuple[bytes | None, int]] = []

    def handle(self, record: Record) -> None:
        self.calls.append((record.value, clock.now_ns()))
        if len(self.calls) <= self.away:
            raise self.error()

    async def handle_async(self, record: Record) -> None:
        self.handle(record)

    def handle_batch(self, batch: Batch) -> None:
        for each in batch:
            self.handle(each)

    def handle_arrow(self, batch: Any) -> None:
        self.handle_batch([Record.of(message) for message in Rows(batch)])  # type: ignore[arg-type]


def harness(handle: Any, **more: Any) -> HandlerTest:
    return HandlerTest(handle, **{"max_attempts": 3, "on_failure": "dead_letter", "circuit_breaker": BREAKER, **more})


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("handle", "record"), ("handle_async", "record"), ("handle_batch", "batch"), ("handle_arrow", "arrow")],
)
def test_an_outage_is_probed_once_a_minute_and_costs_no_record(kind: str, mode: str) -> None:
    api = Api(away=12)
    run = harness(getattr(api, kind), mode=mode).run(*map(record, "abcde"))
    assert run.outcomes == ["done"] * 5
    assert run.dead_letters == []
    assert [value for value, _ in api.calls[:13]] == [b"a"] * 13, "no other record is tried meanwhile"
    times = [at for _, at in api.calls]
    gaps = [(after - before) / MINUTE for before, after in pairwise(times[2:13])]
    assert all(1 <= gap < 1.05 for gap in gaps), "three calls, then probes"
    assert [value for value, _ in api.calls[13:]] == [b"b", b"c", b"d", b"e"]


def test_other_failures_open_nothing_and_go_by_their_rules() -> None:
    api = Api(away=6, error=ValueError)
    run = harness(api.handle).run(*map(record, "abc"))
    assert run.outcomes == ["dead_letter", "dead_letter", "done"]
    assert len(api.calls) == 7


@pytest.mark.parametrize("returned", [True, False])
def test_an_outcome_is_no_failure_of_what_the_handler_calls_though_it_is_an_exception(returned: bool) -> None:
    outcomes = [Skip("a"), DeadLetter("b"), Done(), Retry("c"), None, Skip("d"), DeadLetter("e"), Done()]
    breaker = {**BREAKER, "exceptions": ["builtins.Exception"], "failure_share": 0.1}

    def handle(record: Record) -> Any:
        said = outcomes.pop(0)
        if returned or said is None:
            return said
        raise said

    run = harness(handle, circuit_breaker=breaker).run(*map(record, "abcdefg"))
    assert run.outcomes == ["skipped", "dead_letter", "done", "done", "skipped", "dead_letter", "done"]
    assert outcomes == []


def test_a_probe_that_says_an_outcome_shows_that_the_other_side_answers() -> None:
    said: list[Any] = [*[ConnectionError()] * 3, Skip("a test"), None]

    def handle(record: Record) -> Any:
        if isinstance(each := said.pop(0), ConnectionError):
            raise each
        return each

    breaker = {**BREAKER, "exceptions": ["builtins.Exception"]}
    run = harness(handle, circuit_breaker=breaker).run(record("a"), record("b"))
    assert (run.outcomes, said) == (["skipped", "done"], [])


def test_a_probe_that_fails_otherwise_shows_that_the_other_side_answers() -> None:
    errors = [*[ConnectionError()] * 3, ValueError("a bad record"), None]

    def handle(record: Record) -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    run = harness(handle, failures=[{"exceptions": ["builtins.ValueError"], "max_attempts": 1}]).run(
        record("a"), record("b")
    )
    assert run.outcomes == ["dead_letter", "done"]
    assert errors == []


def test_a_value_that_cannot_be_decoded_is_no_probe() -> None:
    seen: list[tuple[Any, int]] = []

    def handle(record: Record) -> None:
        seen.append((record.data, clock.now_ns()))
        if len(seen) <= 4:
            raise ConnectionError

    run = harness(handle, value="json", on_undecodable="skip", max_attempts=10).run(
        record(json=1), record("no json", partition=1), record(json=2)
    )
    assert run.outcomes == ["done", "skipped", "done"]
    assert [data for data, _ in seen] == [1, 1, 1, 1, 1, 2]


def test_a_row_whose_outcome_is_decided_already_is_no_probe() -> None:
    sizes: list[int] = []

    def batches(batch: Batch) -> Any:
        sizes.append(len(batch))
        if len(sizes) == 1:
            masks = [[True, False, False], [False, True, False], [False, False, True]]
            return BatchError(outcomes=list(zip([ConnectionError(), Skip("a"), Skip("b")], masks, strict=True)))
        return None

    breaker = {**BREAKER, "min_calls": 1, "probes": 2}
    test = harness(batches, mode="batch", batch_max_records=3, circuit_breaker=breaker)
    run = test.run(*map(record, "abcd"))
    assert (run.outcomes, sizes) == (["done", "skipped", "skipped", "done"], [3, 1, 1])


def test_the_time_of_an_outage_is_none_of_a_records_retry_timeout() -> None:
    errors = [*[ConnectionError()] * 5, ValueError("the first answer"), None]

    def handle(record: Record) -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    run = harness(handle, max_attempts=9, retry_timeout_ms=30_000).run(record("a"))
    assert (run.outcomes, run.records[0].attempts) == (["done"], 7), "three minutes of them were the outage's"


def test_calls_that_take_too_long_open_it_where_the_settings_say_so() -> None:
    slow = [True] * 4

    def handle(record: Record) -> None:
        if slow:
            slow.pop()
            time.sleep(60)

    breaker = {**BREAKER, "exceptions": ["builtins.TimeoutError"]}
    run = harness(handle, handler_timeout_ms=100, circuit_breaker=breaker).run(record("a"), record("b"))
    assert (run.outcomes, slow) == (["done", "done"], [])
    assert {type(error) for error in run.errors} == {TimeoutError}
    assert len(run.errors) >= 4, "one more than there are tries: a probe; on a slow machine a quick call may be late"


def test_what_the_handler_has_wait_opens_it_where_the_settings_say_so() -> None:
    times: list[int] = []

    def busy(record: Record) -> Any:
        times.append(clock.now_ns())
        return Wait(1) if len(times) <= 4 else None

    run = harness(busy, circuit_breaker={**BREAKER, "exceptions": ["kunicorn.Wait"]}).run(record("a"))
    assert run.outcomes == ["done"]
    assert (times[3] - times[2]) / MINUTE == pytest.approx(1, rel=0.05)


def test_a_revoke_finds_what_waits_for_it_undone() -> None:
    api = Api(away=3)
    run = harness(api.handle).run(*map(record, "abc"), revoke_at=0)
    assert (run.outcomes, run.committed) == (["unhandled"] * 3, {run.records[0].record.tp: 0})


def test_a_handler_that_never_works_again_ends_the_test() -> None:
    often = {**BREAKER, "open_ms": 1}
    with pytest.raises(TimeoutError, match="offset 0 waits for ever: 1000 times in all"):
        harness(Api(2000).handle, circuit_breaker=often).run(record("a"))


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ({"exceptions": []}, "handler.circuit_breaker.exceptions"),
        (
            {"exceptions": ["builtins.NoSuchError"]},
            "handler.circuit_breaker names the exception 'builtins.No",
        ),
        ({"failure_share": 0.0}, "handler.circuit_breaker.failure_share"),
        ({"failure_share": 1.5}, "handler.circuit_breaker.failure_share"),
        ({"min_calls": 0}, "handler.circuit_breaker.min_calls"),
        ({"window_ms": 0}, "handler.circuit_breaker.window_ms"),
        ({"open_ms": -1}, "handler.circuit_breaker.open_ms"),
        ({"probes": 0}, "handler.circuit_breaker.probes"),
        ({"half_open_ms": 5}, "handler.circuit_breaker.half_open_ms: unknown setting"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError) as refused:
        harness(lambda record: None, circuit_breaker={**BREAKER, **wrong}).run(record("a"))
    assert refusal in str(refused.value)


def test_a_breaker_that_is_no_table_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"handler.circuit_breaker = 5: not a table; write a table \[handler.circuit_br"
    ):
        harness(lambda record: None, circuit_breaker=5).run(record("a"))


WANTED = {"name": "wanted", "on": "key", "exists": True}


@pytest.mark.parametrize("kind", ["handle", "handle_async", "handle_batch"])
def test_records_that_a_filter_drops_are_no_calls_and_no_probes(kind: str) -> None:
    api = Api(away=5)
    more = {"mode": "batch", "batch_max_records": 1} if kind == "handle_batch" else {}
    # Of a hundred records before each one that comes to the handler none is a call that did not fail.
    given = [record(str(number), key="k" if number % 100 == 99 else None) for number in range(500)]
    breaker = {**BREAKER, "failure_share": 0.9}
    run = harness(getattr(api, kind), circuit_breaker=breaker, filters=[WANTED], **more).run(*given)
    assert [outcome for outcome in run.outcomes if outcome != "filtered"] == ["done"] * 5
    assert run.dead_letters == []
    times = [at for _, at in api.calls]
    gaps = [(after - before) / MINUTE for before, after in pairwise(times[2:6])]
    assert all(1 <= gap < 1.05 for gap in gaps), "opened by three calls, then probed"


def test_a_dropped_record_in_the_probes_place_does_not_close_it() -> None:
    asked: list[bytes | None] = []

    def wanted(record: Record) -> bool:
        # The record that opens it is dropped when it comes again.
        asked.append(record.value)
        return record.value != b"a" or asked.count(b"a") <= 3

    api = Api(away=4)
    sys.modules["wanted_once"] = SimpleNamespace(wanted=wanted)  # type: ignore[assignment]
    try:
        filters = [{"function": "wanted_once:wanted"}]
        run = harness(api.handle, max_attempts=9, filters=filters).run(*map(record, "abc"))
    finally:
        del sys.modules["wanted_once"]
    assert run.outcomes == ["filtered", "done", "done"]
    values = [value for value, _ in api.calls]
    assert values[:5] == [b"a", b"a", b"a", b"b", b"b"]
    assert api.calls[4][1] - api.calls[3][1] >= MINUTE, "the probe that failed opened it again"
