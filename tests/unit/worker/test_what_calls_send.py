"""What handlers return to be sent, in every way of calling them, with the real worker in this process: it is made, and
fails, within the call's span and middlewares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kunicorn import Call, Done, Record, Send
from kunicorn.handler.config import Tracing
from kunicorn.testing import record
from tests.unit.worker.whole import Worker, order_of

PARENT = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
NO_BYTES: Any = 5
SEVERAL = {"ordering": "key", "concurrency": 4}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "one at a time": ("returns", {"concurrency": 1}),
    "one at a time, yielding": ("yields", {"concurrency": 1}),
    "a batch": ("returns", {"mode": "batch"}),
    "async, one at a time": ("returns_async", {"concurrency": 1}),
    "async, one at a time, yielding": ("yields_async", {"concurrency": 1}),
    "threads": ("returns", SEVERAL),
    "threads, yielding": ("yields", SEVERAL),
    "tasks": ("returns_async", SEVERAL),
    "tasks, yielding": ("yields_async", SEVERAL),
}
SINGLE = {name: way for name, way in WAYS.items() if name != "a batch"}
"""A batch has many producers, and the context of none."""
YIELDING = {name: way for name, way in WAYS.items() if "yielding" in name}
RETURNING = {name: way for name, way in WAYS.items() if name not in YIELDING}

value: Any = b"v"
says_done = False
said: list[object] = []
"""What a middleware saw of each call."""


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    said.clear()


def returns(given: object) -> Send:
    return Send(value=value)


def yields(given: object) -> Iterator[Send]:
    yield Send(value=value)
    if says_done:
        raise Done


async def returns_async(given: Record) -> Send:
    return returns(given)


async def yields_async(given: Record) -> AsyncIterator[Send]:
    yield Send(value=value)
    if says_done:
        raise Done


def watching(call: Call) -> Iterator[None]:
    try:
        yield
    finally:
        said.append(call.error or call.outcome)


def handled(handler: str, *, sends: bool = True, **settings: Any) -> Worker:
    """A worker that has handled one record, which a producer has sent within a trace."""
    order = order_of(f"{__name__}:{handler}", **{"middlewares": [f"{__name__}:watching"], **settings})
    worker = Worker(order, sends=sends)
    worker.handle([record(b"x", topic="t", headers=dict([PARENT]))])
    return worker


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[ReadableSpan, ...]]]:
    """Spans that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter.get_finished_spans
    provider.shutdown()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_output_carries_the_context_of_a_span_below_its_calls(
    way: tuple[str, Mapping[str, Any]], collected: Callable[[], tuple[ReadableSpan, ...]]
) -> None:
    handler, settings = way
    (output,) = handled(handler, tracing=Tracing("g"), **settings).sent
    spans = {span.name: span for span in collected()}
    create, process = spans["create out"].context, spans["process t"].context
    assert spans["create out"].parent is not None
    assert spans["create out"].parent.span_id == process.span_id
    told = f"00-{create.trace_id:032x}-{create.span_id:016x}-{create.trace_flags:02x}".encode()
    assert output.raw_headers == (("traceparent", told),)


@pytest.mark.parametrize("way", SINGLE.values(), ids=SINGLE)
def test_with_nobody_who_collects_an_output_carries_its_records_context(way: tuple[str, Mapping[str, Any]]) -> None:
    handler, settings = way
    (output,) = handled(handler, tracing=Tracing("g"), **settings).sent
    assert output.raw_headers == (PARENT,)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_middleware_sees_that_an_output_cannot_be_sent(
    way: tuple[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, settings = way
    monkeypatch.setattr(f"{__name__}.value", NO_BYTES)
    worker = handled(handler, **settings)
    assert [type(each).__name__ for each in said] == ["NotToBeSent"]
    assert (worker.sent, len(worker.halted)) == ([], 1)


@pytest.mark.parametrize("way", RETURNING.values(), ids=RETURNING)
def test_a_middleware_sees_that_nothing_sends_what_is_returned(way: tuple[str, Mapping[str, Any]]) -> None:
    handler, settings = way
    worker = handled(handler, sends=False, **settings)
    assert [type(each).__name__ for each in said] == ["NotToBeSent"]
    assert len(worker.halted) == 1


@pytest.mark.parametrize("way", YIELDING.values(), ids=YIELDING)
def test_what_was_yielded_before_done_was_raised_is_sent(
    way: tuple[str, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, settings = way
    monkeypatch.setattr(f"{__name__}.says_done", True)
    worker = handled(handler, **settings)
    assert [each.value for each in worker.sent] == [b"v"]
    assert [type(each).__name__ for each in said] == ["Done"]
