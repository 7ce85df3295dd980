"""What a failing handler had in hand is out of memory once its try is over, in every way in which it is called. The
garbage collector has no part in that: a worker has it look seldom, thousands of failed tries apart.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from kunicorn.handler.call import calls_of
from kunicorn.handler.config import Batching, CircuitBreaking, Decoding, FilterRule, Tracing
from kunicorn.handler.load import clear_frames, load
from kunicorn.handler.retry import describe
from kunicorn.testing import record
from kunicorn.testing.memory import message_of
from tests.unit.worker import failing_handlers
from tests.unit.worker.failing_handlers import FAILURES, begun, handled, tries
from tests.unit.worker.whole import Worker, order_of
from tests.waiting import wait_until

RECORDS = 6
OF_ONE = {"ordering": "none", "concurrency": 3}


def named(function: str) -> str:
    return f"{failing_handlers.__name__}:{function}"


@dataclass(frozen=True)
class Form:
    """How a handler is called."""

    handler: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sends: bool = False
    topics: tuple[str, ...] = ("t",)

    def within(self, **settings: Any) -> Form:
        """Likewise, with more around the handler."""
        return Form(self.handler, {**self.settings, **settings}, self.sends, self.topics)

    def worker(self) -> Worker:
        known = {"max_attempts": 100, "on_failure": "dead_letter"}
        return Worker(order_of(named(self.handler), **{**known, **self.settings}), sends=self.sends)


CALLED = {
    "a record": Form("record"),
    "a batch": Form("batch", {"mode": "batch"}),
    "columns": Form("columns", {"mode": "arrow"}),
    "async": Form("record_async"),
    "async batch": Form("batch_async", {"mode": "batch"}),
    "async columns": Form("columns_async", {"mode": "arrow"}),
    "threads": Form("record", OF_ONE),
    "tasks": Form("record_async", OF_ONE),
    "across partitions": Form(
        "batch", {"mode": "batch", "batching": Batching(batch_across_partitions=True)}, topics=("t", "u", "v")
    ),
    "sending": Form("yielding", sends=True),
    "async sending": Form("yielding_async", sends=True),
    "threads sending": Form("yielding", OF_ONE, sends=True),
    "tasks sending": Form("yielding_async", OF_ONE, sends=True),
}
FAILED = {
    "an exception that is returned": Form("returning"),
    "returned in threads": Form("returning", OF_ONE),
    "one with a cause": Form("cause"),
    "one with a cause in threads": Form("cause", OF_ONE),
    "a group": Form("group"),
    "an outcome": Form("passing"),
    "an outcome in threads": Form("passing", OF_ONE),
    "a wait": Form("waiting"),
    "a wait in threads": Form("waiting", OF_ONE),
    "a part of a batch": Form("in_part", {"mode": "batch"}),
    "a part of a batch across partitions": Form(
        "in_part", {"mode": "batch", "batching": Batching(batch_across_partitions=True)}, topics=("t", "u")
    ),
    "outcomes of a batch": Form("by_outcomes", {"mode": "batch"}),
    "what cannot be sent": Form("unsendable", sends=True),
    "what cannot be sent by threads": Form("unsendable", OF_ONE, sends=True),
    "a filter": Form("takes_all", {"filters": [FilterRule(function=named("filter_that_fails"))]}),
    "a filter of a batch": Form(
        "takes_batches", {"mode": "batch", "filters": [FilterRule(function=named("filter_that_fails"))]}
    ),
    "a decoder": Form("takes_all", {"decoding": Decoding(value=named("decoder_that_fails"))}),
    "a decoder of a batch": Form(
        "takes_batches", {"mode": "batch", "decoding": Decoding(value=named("decoder_that_fails"))}
    ),
    "a decoder in threads": Form("takes_all", {**OF_ONE, "decoding": Decoding(value=named("decoder_that_fails"))}),
    "with a circuit breaker": Form(
        "record", {"circuit_breaker": CircuitBreaking([named("Away").replace(":", ".")], 0.1, 1000, 1, 1, 1)}
    ),
}
FILTERS = [FilterRule(function=named("keeps_all")), FilterRule(function=named("keeps_none_that_is_first"))]
AROUND: Mapping[str, Mapping[str, Any]] = {
    "middlewares": {"middlewares": [named("middleware"), named("replacing")]},
    "filters": {"filters": FILTERS},
    "spans": {"tracing": Tracing("g")},
    "all of them": {
        "middlewares": [named("middleware"), named("replacing")],
        "filters": FILTERS,
        "tracing": Tracing("g"),
    },
}
ASYNC = {"middlewares": [named("middleware_async"), named("replacing")]}


def every_form() -> Iterator[Any]:
    for name, form in (CALLED | FAILED).items():
        yield pytest.param(form, id=name)
    for name, form in CALLED.items():
        for around in AROUND if form.settings in ({}, OF_ONE) and not form.sends else ["all of them"]:
            settings = AROUND[around]
            more = ASYNC if "async" in name and "middlewares" in settings else {}
            yield pytest.param(form.within(**{**settings, **more}), id=f"{name} within {around}")


@pytest.fixture(autouse=True)
def _without_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    failing_handlers.forget()
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    gc.disable()
    yield
    gc.enable()
    failing_handlers.forget()


def until_nothing_is_kept(records: int) -> None:
    """Once all are handled; while the worker lives."""
    wait_until(lambda: len(handled) >= records, "all to be handled")
    wait_until(lambda: not any(each() is not None for each in begun), "the tries to be forgotten")
    assert len(begun) >= FAILURES


@pytest.mark.parametrize("form", [*every_form()])
def test_what_a_failed_try_had_in_hand_is_out_of_memory_once_that_is_over(form: Form) -> None:
    given = [record(b"%d" % at, key=f"k{at}", topic=topic) for topic in form.topics for at in range(RECORDS)]
    form.worker().handle(given, meanwhile=lambda: until_nothing_is_kept(len(given)))
    assert len(tries) >= FAILURES


def test_whoever_is_told_of_a_failure_can_look_into_the_handlers_variables_and_print_its_traceback() -> None:
    calls = calls_of(load(named("record")), "record")
    cells = memoryview(array("q", [0]))
    with pytest.raises(failing_handlers.Away) as raised:
        calls([message_of(record(b"0", topic="t", partition=0, offset=0))], [1], cells, 0, [])
    text = describe(raised.value)
    clear_frames(raised.value)
    assert describe(raised.value) == text
    assert "failing_handlers.py" in text
    frames = [frame for frame, _ in walk_tb(raised.value.__traceback__)]
    assert set(frames[-1].f_locals) == {"held", "record"}
    assert frames[-2].f_locals == {}, "that of a function of kunicorn"


@pytest.mark.parametrize(
    "form",
    [
        Form("again_and_again"),
        Form("again_and_again_async"),
        Form("again_and_again", OF_ONE),
        Form("again_and_again_async", OF_ONE),
    ],
    ids=["a record", "async", "threads", "tasks"],
)
def test_of_tries_that_fail_by_one_and_the_same_exception_the_last_one_is_kept_with_it(form: Form) -> None:
    def meanwhile() -> None:
        wait_until(lambda: len(handled) >= RECORDS, "all to be handled")
        wait_until(lambda: sum(each() is not None for each in begun) <= 1, "the tries to be forgotten")

    form.worker().handle([record(b"%d" % at, key=f"k{at}") for at in range(RECORDS)], meanwhile=meanwhile)


@pytest.mark.parametrize(
    "form",
    [Form("hanging"), Form("hanging_async"), Form("hanging", OF_ONE), Form("hanging_async", OF_ONE)],
    ids=["a record", "async", "threads", "tasks"],
)
def test_what_a_try_had_in_hand_that_took_too_long_is_out_of_memory_once_that_is_over(form: Form) -> None:
    worker = form.worker()

    def ended(number: int) -> bool:
        """A time-out that comes before the call, or behind it, ends nothing."""
        if len(tries) == number + 1 and not handled:
            worker.time_out(1, 0)
        return len(tries) > number + 1

    def meanwhile() -> None:
        for number in range(FAILURES):
            wait_until(lambda: ended(number), "it to be tried again")  # noqa: B023
        until_nothing_is_kept(1)

    worker.handle([record(b"0")], meanwhile=meanwhile)
