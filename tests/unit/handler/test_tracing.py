"""Spans around the handler's calls, as an exporter gets them."""

from __future__ import annotations

import asyncio
import inspect
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Message
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context, attach, detach, get_current, set_value
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes.messaging_attributes import (
    MESSAGING_BATCH_MESSAGE_COUNT,
    MESSAGING_CLIENT_ID,
    MESSAGING_DESTINATION_NAME,
    MESSAGING_KAFKA_MESSAGE_KEY,
    MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
    MESSAGING_MESSAGE_BODY_SIZE,
    MESSAGING_OPERATION_NAME,
    MESSAGING_OPERATION_TYPE,
    MESSAGING_SYSTEM,
)
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from kunicorn.errors import HandlerLoadError
from kunicorn.handler.call import calls_of
from kunicorn.handler.config import Decoding, HandlerConfig, Tracing
from kunicorn.handler.load import Handler, handler_of
from kunicorn.handler.outcome import Send, Skip
from kunicorn.handler.outputs import Outgoing, calls_sending
from kunicorn.handler.record import Batch, Record
from kunicorn.handler.rows import following_offsets
from kunicorn.handler.tracing import Pairs, SendSpans, span_in_hand, with_context
from kunicorn.testing import HandlerTest, record
from kunicorn.worker.produce.outbox import Entry
from kunicorn.worker.produce.telemetry import SendTelemetry
from kunicorn.worker.stats import Counters
from tests.fakes.half_read import HALF_READ, HalfRead

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = ("traceparent", f"00-{TRACE}-{SPAN}-01".encode())
JSON = Decoding(value="json")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[ReadableSpan, ...]]]:
    """What was exported."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter.get_finished_spans
    provider.shutdown()


def message(offset: int, value: bytes | None = b"1", headers: Any = ()) -> Message:
    return Message(topic="orders", partition=3, offset=offset, value=value, key=b"k", headers=list(headers))


def call(
    handle: Callable[..., Any],
    *messages: Message,
    mode: str = "record",
    decoding: Decoding = JSON,
    tracing: Tracing = Tracing("shop"),  # noqa: B008 - it is frozen
) -> None:
    is_async = inspect.iscoroutinefunction(handle)
    calls = calls_of(Handler("x:y", handle, is_async), mode, decoding, tracing)
    cells = memoryview(array("q", [messages[0].offset() or 0]))
    with suppress(Exception):
        calls(messages, following_offsets(messages), cells, 0, [])
    calls.close()


def see(record: Record) -> None:
    assert record.data == 1
    assert trace.get_current_span().is_recording()


async def see_async(record: Record) -> None:
    see(record)


@pytest.mark.parametrize("handle", [see, see_async])
def test_each_record_has_a_span_that_goes_on_with_its_producers_trace(
    spans: Callable[[], tuple[ReadableSpan, ...]], handle: Callable[..., Any]
) -> None:
    call(handle, message(7, headers=[PARENT, ("tracestate", b"vendor=1")]), message(8))
    first, second = spans()
    assert (first.name, first.kind, first.status.status_code) == ("process orders", SpanKind.CONSUMER, StatusCode.UNSET)
    assert first.parent is not None
    assert (f"{first.parent.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, SPAN)
    assert first.parent.trace_state.get("vendor") == "1"
    assert first.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "shop",
        "messaging.kafka.offset": 7,
    }
    assert [f"{link.context.span_id:016x}" for link in first.links] == [SPAN]
    assert (second.parent, second.links) == (None, ())
    assert first.instrumentation_scope is not None
    assert first.instrumentation_scope.schema_url == Schemas.V1_44_0.value


def test_a_worker_tells_who_it_is_and_keys_and_sizes_are_told_where_they_are_asked_for(
    spans: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    asked = Tracing("shop", "shop-worker-1", "cluster", with_key=True, with_size=True)
    no_text = Message(topic="orders", partition=3, offset=8, value=b"1", key=b"\xff", headers=[])
    call(see, message(7), no_text, tracing=asked)
    first, second = spans()
    assert first.attributes is not None
    assert second.attributes is not None
    assert first.attributes[MESSAGING_CLIENT_ID] == "shop-worker-1"
    assert first.attributes["messaging.kafka.cluster.id"] == "cluster"
    assert first.attributes[MESSAGING_KAFKA_MESSAGE_KEY] == "k"
    assert first.attributes[MESSAGING_MESSAGE_BODY_SIZE] == 1
    assert MESSAGING_KAFKA_MESSAGE_KEY not in second.attributes, "a key that is no text has no form beyond doubt"


def test_what_is_sent_together_has_a_span_for_each_topic_with_links_to_what_was_created(
    spans: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    outputs = sent(lambda record: [Send("a", value=b"1"), Send("a", value=None), Send("b", value=b"1")], message(7))
    made = SendSpans([(output.topic, output.headers or []) for output in outputs])
    made.end({("b", "NOT_ENOUGH_REPLICAS"): 1})
    by_name = {span.name: span for span in spans() if not span.name.startswith("create")}
    created = [span.context.span_id for span in spans() if span.name.startswith("create")]
    assert by_name.keys() == {"process orders", "send a", "send b"}
    a, b = by_name["send a"], by_name["send b"]
    assert [link.context.span_id for link in (*a.links, *b.links)] == created
    assert (a.kind, a.parent, a.status.status_code) == (SpanKind.CLIENT, None, StatusCode.UNSET)
    assert a.attributes == {
        MESSAGING_SYSTEM: "kafka",
        MESSAGING_OPERATION_NAME: "send",
        MESSAGING_OPERATION_TYPE: "send",
        MESSAGING_DESTINATION_NAME: "a",
        MESSAGING_BATCH_MESSAGE_COUNT: 2,
    }
    assert b.attributes is not None
    assert (b.attributes[ERROR_TYPE], b.status.status_code) == ("NOT_ENOUGH_REPLICAS", StatusCode.ERROR)
    tombstones = [span.attributes and span.attributes.get(MESSAGING_KAFKA_MESSAGE_TOMBSTONE) for span in spans()[:3]]
    assert tombstones == [None, True, None]


def test_with_nobody_who_collects_nothing_is_told_of_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setattr(trace, "get_tracer", lambda *_, **__: pytest.fail("a span was begun"))
    SendSpans([("a", [])]).end({})


class Failing(SpanProcessor):
    """Raises where a span begins, or where it ends."""

    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self._fail("begins")

    def on_end(self, span: Any) -> None:
        self._fail("ends")

    def _fail(self, at: str) -> None:
        if self._at == at:
            raise RuntimeError("the processor's own")


@pytest.mark.parametrize("at", ["begins", "ends"])
def test_what_a_span_processor_raises_over_outputs_that_are_sent_is_said_once_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Failing(at))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    telemetry, entry = SendTelemetry(Counters(), traced=True), mock.Mock(spec=Entry)
    for _ in range(2):
        telemetry.begun([(entry, Outgoing("a", b"v", None, [], -1, 0))]).ended([])
    assert [record.message[:32] for record in caplog.records] == ["the spans of outputs that are se"]


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"00-zero-one-02", None])
def test_a_header_that_is_no_trace_context_begins_a_trace(
    spans: Callable[[], tuple[ReadableSpan, ...]], value: bytes | None
) -> None:
    call(see, message(7, headers=[("traceparent", value)]))
    assert [span.parent for span in spans()] == [None]


def test_a_batch_has_one_span_with_links_to_its_producers(spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    def handle(batch: Batch) -> None:
        assert batch.data() == [1, 1, 1]

    call(handle, message(7, headers=[PARENT]), message(8), message(9, headers=[PARENT]), mode="batch")
    (span,) = spans()
    assert (span.parent, span.status.status_code) == (None, StatusCode.UNSET)
    assert [f"{link.context.span_id:016x}" for link in span.links] == [SPAN, SPAN]
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == 3
    assert "messaging.kafka.offset" not in span.attributes, "it is that of a single record"


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_what_the_handler_raised_is_the_spans_error_and_what_it_said_an_attribute(
    spans: Callable[[], tuple[ReadableSpan, ...]], how: str
) -> None:
    def handle(record: Record) -> Any:
        if record.value is None:
            return Skip("a tombstone")
        if how == "returns":
            return KeyError("who")
        raise KeyError("who")

    call(handle, message(7, None))
    call(handle, message(8))
    said, failed = spans()
    assert said.attributes is not None
    assert failed.attributes is not None
    assert (said.attributes["kunicorn.outcome"], said.status.status_code) == ("Skip", StatusCode.UNSET)
    assert said.attributes["messaging.kafka.message.tombstone"] is True
    assert (failed.attributes["error.type"], failed.status.status_code) == ("KeyError", StatusCode.ERROR)
    assert [event.name for event in failed.events] == ["exception"]


def test_without_the_api_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kunicorn.handler.tracing", None)
    with pytest.raises(HandlerLoadError, match=r"tracing.enabled = true needs .*\.whl\[tracing\]'"):
        calls_of(Handler("x:y", see, False), "record", JSON, Tracing("shop"))


@pytest.fixture
def nobody_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracer provider is set up. A span that is begun all the same fails the test."""
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setattr(trace, "get_tracer", lambda *_, **__: pytest.fail("a span was begun"))


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("is_async", [False, True])
def test_with_nobody_who_collects_a_trace_goes_on_and_no_span_is_begun(is_async: bool) -> None:
    seen: list[Mapping[str, str]] = []

    def note(record: Record) -> None:
        seen.append(span_in_hand())

    async def note_async(record: Record) -> None:
        await asyncio.sleep(0)
        note(record)

    call(note_async if is_async else note, message(7, headers=[PARENT]), message(8), message(9, headers=[("a", b"b")]))
    assert seen == [{"trace_id": TRACE, "span_id": SPAN}, {}, {}]
    assert span_in_hand() == {}


@pytest.mark.usefixtures("nobody_collects")
def test_with_nobody_who_collects_headers_are_read_only_when_something_asks_for_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int | None] = []
    extract = propagate.extract

    def noted(carrier: Any, *known: Any, **more: Any) -> Context:
        read.append(carrier.offset())
        return extract(carrier, *known, **more)

    monkeypatch.setattr(propagate, "extract", noted)

    def handle(record: Record) -> None:
        if record.offset == 8:
            span_in_hand()
            span_in_hand()

    call(handle, *(message(offset, headers=[PARENT]) for offset in (7, 8, 9)))
    assert read == [8]


@pytest.mark.usefixtures("nobody_collects")
def test_with_nobody_who_collects_a_header_whose_name_is_not_utf_8_ends_nothing() -> None:
    seen: list[Any] = []
    half_read = HalfRead(7)
    call(lambda record: seen.append(record.headers), half_read, decoding=Decoding())
    assert seen == [HALF_READ]
    assert Record.of(half_read).headers == HALF_READ, "its next try has them, too"


@pytest.mark.usefixtures("nobody_collects")
def test_with_nobody_who_collects_the_context_of_a_record_stays_its_own_when_it_is_read_later() -> None:
    kept: list[Context] = []
    other = ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01".encode())
    call(lambda record: kept.append(get_current()), message(7, headers=[PARENT]), message(8, headers=[other]))
    spans = [trace.get_current_span(context) for context in kept]
    assert [f"{span.get_span_context().trace_id:032x}" for span in spans] == [TRACE, "1" * 32]
    assert trace.get_current_span(set_value("of the handler", 1, kept[0])) is spans[0]


@pytest.mark.usefixtures("nobody_collects")
def test_with_nobody_who_collects_what_was_attached_in_setup_is_there_too() -> None:
    seen: list[object] = []
    token = attach(baggage.set_baggage("team", "shop"))
    try:
        call(lambda record: seen.append(baggage.get_baggage("team")), message(7, headers=[PARENT]))
    finally:
        detach(token)
    assert seen == ["shop"]


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("mode", ["record", "batch"])
def test_the_test_kit_calls_a_handler_within_its_records_trace(mode: str) -> None:
    seen: list[dict[str, str]] = []

    def handle(given: Any) -> None:
        seen.append(dict(span_in_hand()))

    test = HandlerTest(handle, mode=mode, settings={"tracing": {"enabled": True}})
    run = test.run(record(b"x", headers={"traceparent": f"00-{TRACE}-{SPAN}-01"}))
    # A batch has the records of several traces, and so is in none of them.
    assert (run.outcomes, seen) == (["done"], [{"trace_id": TRACE, "span_id": SPAN} if mode == "record" else {}])


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"00-zero-one-02", None])
def test_with_nobody_who_collects_a_header_that_is_no_trace_context_is_none(value: bytes | None) -> None:
    seen: list[Mapping[str, str]] = []
    call(lambda record: seen.append(span_in_hand()), message(7, headers=[("traceparent", value)]))
    assert seen == [{}]


@pytest.mark.usefixtures("nobody_collects")
def test_with_nobody_who_collects_the_records_baggage_goes_on_beside_what_was_attached_in_setup() -> None:
    told: list[object] = []
    carried: list[Pairs | None] = []

    def see(record: Record) -> None:
        told.append(dict(baggage.get_all()))
        carried.append(with_context("invoices", b"", []))

    token = attach(baggage.set_baggage("team", "shop"))
    try:
        call(see, message(7, headers=[PARENT, ("baggage", b"tenant=7")]))
    finally:
        detach(token)
    assert told == [{"team": "shop", "tenant": "7"}]
    assert carried[0] is not None
    assert ("baggage", b"team=shop,tenant=7") in carried[0]


@pytest.mark.usefixtures("nobody_collects")
def test_with_nobody_who_collects_outputs_carry_the_records_context() -> None:
    state = ("tracestate", b"vendor=1")
    own = ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01".encode())

    def handle(record: Record) -> Any:
        yield Send(value=b"1")
        yield Send(value=b"1", headers=record.headers)
        yield Send(value=b"1", headers=[own])

    carried, copied, set_by_it, without = sent(handle, message(7, headers=[PARENT, state])) + sent(plain, message(8))
    assert (carried.headers, copied.headers) == ([PARENT, state], [PARENT, state])
    assert (set_by_it.headers, without.headers) == ([own], [("own", b"1")])


def sent(handle: Callable[..., Any], *messages: Message, mode: str = "record") -> list[Outgoing]:
    """What a traced handler left to be sent."""
    outputs: list[Outgoing] = []
    order = HandlerConfig("x:y", mode, {}, 100, 1, 1, 1, decoding=JSON, tracing=Tracing("shop"))
    calls = calls_sending(handler_of("x:y", handle), order, "totals", lambda _, __, ___, made: outputs.extend(made))
    cells = memoryview(array("q", [messages[0].offset() or 0]))
    calls(messages, following_offsets(messages), cells, 0, [])
    calls.close()
    return outputs


def plain(record: Record) -> Any:
    return Send(value=b"1", headers={"own": b"1"})


def generator(record: Record) -> Any:
    assert trace.get_current_span().is_recording(), "its body runs within the span"
    yield Send(value=b"1", headers={"own": b"1"})


async def coroutine(record: Record) -> Any:
    return Send(value=b"1", headers={"own": b"1"})


async def async_generator(record: Record) -> Any:
    yield Send(value=b"1", headers={"own": b"1"})


def copying(record: Record) -> Any:
    return Send(value=b"1", headers=record.headers)


@pytest.mark.parametrize("handle", [plain, generator, coroutine, async_generator, copying])
def test_an_output_tells_the_context_of_its_making_below_the_handlers_span(
    handle: Callable[..., Any], spans: Callable[[], tuple[ReadableSpan, ...]]
) -> None:
    (output,) = sent(handle, message(7, headers=[("own", b"1"), PARENT]))
    create, process = spans()
    assert (create.name, create.kind, process.name) == ("create totals", SpanKind.PRODUCER, "process orders")
    assert create.attributes is not None
    assert create.attributes["messaging.operation.type"] == "create"
    assert create.attributes["messaging.destination.name"] == "totals"
    assert create.parent is not None
    assert create.parent.span_id == process.context.span_id
    made = f"00-{TRACE}-{create.context.span_id:016x}-01".encode()
    assert output.headers == [("own", b"1"), ("traceparent", made)]


def test_a_context_that_the_handler_has_put_there_itself_stays(
    spans: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    own = ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01".encode())
    (output,) = sent(lambda record: Send(value=b"1", headers=[own]), message(7, headers=[PARENT]))
    assert output.headers == [own]
    assert [span.name for span in spans()] == ["process orders"]


def test_outputs_of_a_batch_are_made_within_its_span(spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    outputs = sent(
        lambda batch: [Send(value=b"1") for _ in batch],
        message(7, headers=[PARENT]),
        message(8, headers=[PARENT]),
        mode="batch",
    )
    first, second, process = spans()
    assert {span.parent and span.parent.span_id for span in (first, second)} == {process.context.span_id}
    assert len({str(output.headers) for output in outputs}) == 2


def test_without_tracing_outputs_are_as_the_handler_made_them() -> None:
    outputs: list[Outgoing] = []
    order = HandlerConfig("x:y", "record", {}, 100, 1, 1, 1)
    calls = calls_sending(handler_of("x:y", plain), order, "totals", lambda _, __, ___, made: outputs.extend(made))
    one = message(7, headers=[PARENT])
    calls([one], following_offsets([one]), memoryview(array("q", [7])), 0, [])
    assert outputs == [Outgoing("totals", b"1", None, [("own", b"1")], -1, 0)]


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_record_that_fails_at_its_spans_end_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    class Breaking(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if span.kind is SpanKind.CONSUMER:
                raise ValueError("the exporter is broken")

    provider = TracerProvider()
    provider.add_span_processor(Breaking())
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)

    def plain(record: Record) -> Send:
        return Send(value=b"1")

    async def awaited(record: Record) -> Send:
        return Send(value=b"1")

    outputs: list[Outgoing] = []
    order = HandlerConfig("x:y", "record", {}, 10, 1, 1, 1, tracing=Tracing("shop"))
    handler = handler_of("x:y", awaited if is_async else plain)
    calls = calls_sending(handler, order, "totals", lambda _, __, ___, made: outputs.extend(made))
    one = [message(5)]
    cells = memoryview(array("q", [5]))
    with pytest.raises(ValueError, match="broken"):
        calls(one, following_offsets(one), cells, 0, [])
    calls.close()
    assert (outputs, cells[0]) == ([], 5)
