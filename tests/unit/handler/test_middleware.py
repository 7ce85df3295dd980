"""Middlewares: contexts around the handler's calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.call import AS_BYTES, arguments_of
from kunicorn.handler.decode.forms import form_of
from kunicorn.handler.load import Handler, find_middleware
from kunicorn.handler.middleware import Within, loaded
from kunicorn.testing import HandlerTest, record
from tests.unit.handler import middlewares_under_test
from tests.unit.handler.middlewares_under_test import NOTED

HERE = middlewares_under_test.__name__


@pytest.fixture(autouse=True)
def _nothing_noted() -> Iterator[None]:
    NOTED.clear()
    yield
    NOTED.clear()


def handled(handler: str, *names: str, **settings: Any) -> HandlerTest:
    return HandlerTest(f"{HERE}:{handler}", middlewares=[f"{HERE}:{name}" for name in names], **settings)


def test_the_first_is_outermost_and_each_sees_what_came_of_the_call() -> None:
    done = handled("handle", "outer", "inner").run(record("a"))
    assert done.outcomes == ["done"]
    assert NOTED == ["outer begins 0", "inner begins", "handles 0", "inner ends", "outer ends with Done"]


def test_a_call_with_columns_is_one_call_whose_records_it_has() -> None:
    seen: list[tuple[int, list[int]]] = []

    def handle(batch: Any) -> None:
        seen.append((batch.num_rows, batch.column("offset").to_pylist()))

    run = HandlerTest(handle, mode="arrow", middlewares=[f"{HERE}:counts"]).run(*[record(b"x")] * 5)
    assert run.outcomes == ["done"] * 5
    assert seen == [(5, [0, 1, 2, 3, 4])]
    assert NOTED == ["5 records, [0, 1, 2, 3, 4], Done"]


def test_across_partitions_a_call_has_the_records_of_all_of_them() -> None:
    rows: list[int] = []

    def handle(batch: Any) -> None:
        rows.append(batch.num_rows)

    test = HandlerTest(handle, mode="arrow", batch_across_partitions=True, middlewares=[f"{HERE}:counts"])
    run = test.run(*(record(b"x", partition=partition) for partition in (0, 1, 0)))
    assert (run.outcomes, rows) == (["done"] * 3, [3])
    assert NOTED == ["3 records, [0, 1, 0], Done"]


@pytest.mark.parametrize("mode", ["record", "batch", "arrow"])
def test_without_middlewares_the_call_has_the_form_that_it_had(mode: str) -> None:
    plain = Handler("x:y", lambda argument: None, is_async=False)
    assert type(arguments_of(loaded(plain, []), mode)) is type(form_of(plain.call, mode, AS_BYTES))
    assert type(arguments_of(loaded(plain, [f"{HERE}:outer"]), mode)) is Within


@pytest.mark.parametrize(
    ("value", "outcome", "seen"),
    [
        ("old", "skipped", "outer ends with Skip"),
        ("fail", "halted", "ValueError"),
        ("returned", "halted", "KeyError"),
    ],
)
def test_outcomes_and_exceptions_go_through(value: str, outcome: str, seen: str) -> None:
    done = handled("handle", "outer", max_attempts=1).run(record(value))
    assert done.outcomes == [outcome]
    assert NOTED[-1].endswith(seen)


def test_a_batch_error_that_is_returned_is_what_came_of_the_call() -> None:
    handled("first_done", "outer", mode="batch", max_attempts=1, on_failure="skip").run(record("a"), record("b"))
    assert NOTED[1] == "outer ends with BatchError"


def test_what_a_middleware_keeps_to_itself_is_a_failure_nevertheless() -> None:
    assert handled("handle", "keeps_errors", max_attempts=1).run(record("fail")).outcomes == ["halted"]
    assert NOTED == ["handles 0", "kept"]


def test_a_middleware_may_say_an_outcome_before_the_call_and_in_place_of_an_exception() -> None:
    assert handled("handle", "skips").run(record("skip"), record("a")).outcomes == ["skipped", "done"]
    assert NOTED == ["handles 1"]
    assert handled("handle", "replaces").run(record("fail")).outcomes == ["skipped"]


def test_a_context_manager_and_a_function_that_yields_are_both_middlewares() -> None:
    assert handled("handle", "decorated", "inner").run(record("a")).outcomes == ["done"]
    assert NOTED == ["decorated", "inner begins", "handles 0", "inner ends"]


@pytest.mark.parametrize(
    ("handler", "name"), [("handle", "partly"), ("handle_async", "partly"), ("handle_async", "partly_async")]
)
def test_a_partial_of_a_function_that_yields_is_a_middleware(handler: str, name: str) -> None:
    assert handled(handler, name).run(record("a")).outcomes == ["done"]
    assert list(NOTED) == [name, "handles 0"]


def test_a_batch_is_one_call() -> None:
    done = handled("handle_batch", "Counting", mode="batch").run(record("a"), record("b"), record("c"))
    assert set(done.outcomes) == {"done"}
    assert "handles 3" in NOTED
    assert any(each.startswith("counted 3 of ") for each in NOTED)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_body_of_a_handler_that_yields_runs_within_them(concurrency: int) -> None:
    sending = {"producing": {"delivery": "at_least_once", "topic": "totals"}}
    names = [f"{HERE}:outer"]
    done = HandlerTest(f"{HERE}:sends", settings=sending, middlewares=names, concurrency=concurrency).run(record("a"))
    assert done.outcomes == ["done"]
    assert [each.topic for each in done.sent] == ["totals"]
    assert NOTED == ["outer begins 0", "body begins", "body ends", "outer ends with Done"]


def test_an_async_handler_may_have_both_kinds() -> None:
    assert handled("handle_async", "outer", "waits").run(record("a")).outcomes == ["done"]
    assert NOTED == ["outer begins 0", "waits", "handles 0", "waited", "outer ends with Done"]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_cancellation_that_the_handler_has_asked_for_is_none_of_a_middleware_that_waits(concurrency: int) -> None:
    done = handled("cancels_itself", "commits_behind", concurrency=concurrency).run(record("a"), record("b"))
    assert done.outcomes == ["done", "done"]
    assert NOTED == ["committed 0", "committed 1"]


def test_they_are_set_up_first_and_torn_down_last() -> None:
    test = handled("WithHooks", "Counting", options={"dsn": "x"})
    test.run(record("a"))
    assert NOTED[0].startswith("set up in ")
    assert NOTED[0].endswith("with {'dsn': 'x'}")
    assert NOTED[1:] == ["handler set up", "handles", NOTED[3], "handler torn down", "torn down"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("number", "is int, which cannot be called with kunicorn.Call"),
        ("Plain", "is type, which cannot be called with kunicorn.Call"),
        ("no_context", "is async def without a yield"),
        ("absent", "has no 'absent'"),
    ],
)
def test_what_cannot_be_a_middleware_is_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(HandlerLoadError, match=r"handler\.middlewares: ") as refused:
        find_middleware(f"{HERE}:{name}")
    assert why in str(refused.value)


def test_an_asynchronous_one_around_a_plain_function_is_refused() -> None:
    with pytest.raises(HandlerLoadError, match=r"waits' is asynchronous, and .*handle is a plain function"):
        handled("handle", "waits").run(record("a"))


def test_a_function_that_forgot_to_yield_fails_its_record_by_name() -> None:
    done = handled("handle", "forgot_to_yield", max_attempts=1).run(record("a"))
    assert done.outcomes == ["halted"]
    assert "forgot_to_yield' returned NoneType, which is no context manager" in str(done)
