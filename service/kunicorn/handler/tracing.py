"""OpenTelemetry tracing (an extra): spans around the handler's calls, and trace contexts in the records it sends.

One span for each record, or for each batch with links. A record's producer is its parent and is linked to, too: the
context is taken from the headers that the process's propagators know, W3C Trace Context (traceparent, tracestate)
unless OTEL_PROPAGATORS says otherwise. Each output gets a span of its own (operation "create", kind PRODUCER), a child
of the handler's, whose context goes into its headers. Outputs that are sent together have a span for each topic
(operation "send", kind CLIENT), which links to those. Names are those of OpenTelemetry's semantic conventions for
messaging and Kafka, 1.44. Values are told to nobody, and keys only where the settings ask for them.

Only the API is used. Whoever wants the spans sets a tracer provider up in the handler's `setup`: a provider made at
import would be forked without its thread. Nothing of this is imported where tracing is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from kunicorn import __version__
from kunicorn.handler.config import Tracing
from kunicorn.handler.decode.forms import Form, Gathered
from kunicorn.handler.messages import listed
from kunicorn.handler.outcome import HeaderValue, Outcome, error_type, said_in
from kunicorn.handler.record import Record

Attributes = Mapping[str, str | int | bool]
_SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""Which version of the conventions the names are of."""


class _Headers(Getter[Message]):
    """Record headers as a propagator reads them; a value that is no text counts as absent."""

    def get(self, carrier: Message, key: str) -> list[str] | None:
        values = [value for name, value in Record.of(carrier).headers if name.lower() == key and value is not None]
        return [value.decode("ascii", errors="ignore") for value in values] or None

    def keys(self, carrier: Message) -> list[str]:
        return [name for name, _ in Record.of(carrier).headers]


_HEADERS = _Headers()

IN_HAND: ContextVar[Sequence[Message]] = ContextVar("records in hand")
"""Within the span of a call that somebody collects: its records."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Form (`handler.decode.forms`) whose handler is called within a span; the arguments are those of `inner`."""

    inner: Form
    is_async: bool
    tracing: Tracing

    def adapted(self, handle: Callable[..., Any]) -> Callable[[Any], Any]:
        call = self.inner.adapted(handle)

        def within_span(pair: tuple[Any, Traceable]) -> Any:
            argument, of = pair
            if of is None:
                return call(argument)
            if isinstance(of, _ProducersContext):
                token = attach(of)
                try:
                    return call(argument)
                finally:
                    detach(token)
            with self._span(of) as tell:
                return tell(call(argument))

        async def awaited_within_span(pair: tuple[Any, Traceable]) -> Any:
            argument, of = pair
            if of is None:
                return await call(argument)
            if isinstance(of, _ProducersContext):
                token = attach(of)
                try:
                    return await call(argument)
                finally:
                    detach(token)
            with self._span(of) as tell:
                return tell(await call(argument))

        return awaited_within_span if self.is_async else within_span

    def each(self, messages: Sequence[Message]) -> Iterator[Any]:
        """Pairs of an argument and what a span of its call would be about."""
        of: Iterable[Traceable] = messages if _is_collected() else _going_on(messages)
        return zip(self.inner.each(messages), of, strict=True)

    def batch(self, messages: Sequence[Message]) -> Gathered:
        gathered = self.inner.batch(messages)
        of = messages[: gathered.records] if _is_collected() else None
        return Gathered((gathered.argument, of), gathered.records, gathered.undecodable)

    def blame(self, message: Message) -> None:
        self.inner.blame(message)

    @contextmanager
    def _span(self, of: Message | Sequence[Message]) -> Iterator[Callable[[Any], Any]]:
        """Span of one call. Yields a function that is told the handler's return value, and returns it."""
        records = listed(of)
        first = records[0]
        parent, links, attributes = _of_batch(records) if records is of else self._of_one(first)
        span = _tracer().start_span(
            f"process {first.topic()}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes={**self._common(first), **attributes},
        )

        def tell(returned: Any) -> Any:
            said = said_in(returned)
            if isinstance(said, Outcome):
                span.set_attribute("kunicorn.outcome", type(said).__name__)
            elif isinstance(said, Exception):
                fail(said)  # It counts as raised.
            return returned

        def fail(error: BaseException) -> None:
            span.record_exception(error)
            span.set_attribute("error.type", error_type(error))
            span.set_status(Status(StatusCode.ERROR))

        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            in_hand = IN_HAND.set(records)
            try:
                yield tell
            except Outcome as said:
                tell(said)
                raise
            except BaseException as error:
                fail(error)
                raise
            finally:
                IN_HAND.reset(in_hand)

    def _of_one(self, message: Message) -> tuple[Context, list[Link], Attributes]:
        """Parent, links and attributes of a record's span."""
        value = message.value()
        attributes: dict[str, str | int | bool] = {"messaging.kafka.offset": message.offset() or 0}
        if value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        elif self.tracing.with_size:
            attributes["messaging.message.body.size"] = len(value)
        if self.tracing.with_key and (key := _text(message.key())) is not None:
            attributes["messaging.kafka.message.key"] = key
        parent = propagate.extract(message, context=Context(), getter=_HEADERS)
        return parent, _links([parent]), attributes

    def _common(self, message: Message) -> Attributes:
        known = {
            "messaging.client.id": self.tracing.client_id,
            "messaging.kafka.cluster.id": self.tracing.cluster_id,
        }
        return {
            **{name: value for name, value in known.items() if value},
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": message.topic() or "",
            "messaging.destination.partition.id": str(message.partition()),
            "messaging.consumer.group.name": self.tracing.group,
        }


def _tracer() -> trace.Tracer:
    """Asked for each time, as the provider may be set up later than this."""
    return trace.get_tracer("kunicorn", __version__, schema_url=_SCHEMA)


def _text(key: bytes | None) -> str | None:
    """The key as the conventions want it; None for one that is no text, which has no form that is beyond doubt."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def _links(contexts: Iterable[Context]) -> list[Link]:
    spans = [trace.get_current_span(context).get_span_context() for context in contexts]
    return [Link(span) for span in spans if span.is_valid]


def _is_collected() -> bool:
    """Whether somebody has set a tracer provider up. Looked at once a run of records: without one, the API's spans
    would cost many times what a record does, and tell nobody anything."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


(_SPAN,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())
(_BAGGAGE,) = baggage.set_baggage("any", "", Context())
"""The keys of a context under which the API keeps the current span, and its baggage."""


class _ProducersContext(Context):
    """The context of a call where nobody collects spans: span and baggage are those that the record's headers name.

    The headers are read when a log line, an output or the handler asks for either. Most calls do not, and to read
    them takes many times as long as everything else here.
    """

    __slots__ = ("is_read", "message")
    message: Message
    is_read: bool

    def get(self, key: str, default: Any = None) -> Any:
        if not self.is_read and key in (_SPAN, _BAGGAGE):
            self.is_read = True
            told = propagate.extract(self.message, context=Context(), getter=_HEADERS)
            # What was attached before, as in `setup`, stays beside the record's.
            carried = {**baggage.get_all(Context(self)), **baggage.get_all(told)}
            dict.update(self, {_SPAN: trace.get_current_span(told), _BAGGAGE: carried})
        return super().get(key, default)

    def copy(self) -> dict[str, object]:
        self.get(_SPAN)
        return super().copy()


Traceable = Message | Sequence[Message] | _ProducersContext | None
"""What a span would be about. Where nobody collects spans there is none: then this is the context of a record with
headers, in which its handler is called, or None."""


def _going_on(messages: Iterable[Message]) -> Iterator[_ProducersContext | None]:
    """The context of each record whose headers may name a span, which goes on into outputs and logs."""
    around = get_current()
    for message in messages:
        # By the record: the client raises where a header's name is not UTF-8, and its second answer ends the process.
        if Record.of(message).headers:
            context = _ProducersContext(around) if around else _ProducersContext()
            context.message, context.is_read = message, False
            yield context
        else:
            yield None


def _of_batch(messages: Sequence[Message]) -> tuple[Context, list[Link], Attributes]:
    """Parent, links and attributes of a batch's span: a batch has many producers, which are linked to."""
    contexts = (propagate.extract(message, context=Context(), getter=_HEADERS) for message in messages)
    return Context(), _links(contexts), {"messaging.batch.message_count": len(messages)}


def span_in_hand() -> Mapping[str, str]:
    """`trace_id` and `span_id` of the span that the caller is in, as OpenTelemetry writes them; empty outside of any.
    Caller: whatever logs, in the thread or task that logs."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


Pairs = list[tuple[str, HeaderValue]]


class _Pairs(Setter[Pairs], Getter[Pairs]):
    """Headers of an output as a propagator writes and reads them."""

    def set(self, carrier: Pairs, key: str, value: str) -> None:
        carrier.append((key, value.encode()))

    def get(self, carrier: Pairs, key: str) -> list[str] | None:
        values = [value for name, value in carrier if name.lower() == key and value is not None]
        return [v if isinstance(v, str) else v.decode("ascii", errors="ignore") for v in values] or None

    def keys(self, carrier: Pairs) -> list[str]:
        return [name for name, _ in carrier]


_PAIRS = _Pairs()


def with_context(topic: str, value: bytes | None, headers: Pairs) -> Pairs | None:
    """Headers of an output with its trace context. Caller: within the handler's span.

    A context that the handler copied with its record's other headers is replaced. One that the handler set itself stays
    (a custom creation context, which the conventions say is not to be touched).
    """
    fields = {field.lower() for field in propagate.get_global_textmap().fields}
    told = [pair for pair in headers if pair[0].lower() in fields]
    if told and not _copied(told):
        return headers
    pairs: Pairs = [pair for pair in headers if pair[0].lower() not in fields]
    if _is_collected():
        with trace.use_span(_created(topic, value), end_on_exit=True):
            propagate.inject(pairs, setter=_PAIRS)
    else:
        propagate.inject(pairs, setter=_PAIRS)
    return pairs or None


def _created(topic: str, value: bytes | None) -> trace.Span:
    """The span of an output, below that of the handler's call."""
    attributes: dict[str, str | int | bool] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": topic,
    }
    if value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    return _tracer().start_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=attributes)


def _copied(told: Pairs) -> bool:
    """Whether one record that the handler has in hand has all of these headers."""
    context = get_current()
    in_hand = [context.message] if isinstance(context, _ProducersContext) else IN_HAND.get(())
    return any(set(told) <= set(Record.of(message).headers) for message in in_hand)


class SendSpans:
    """Spans of what is sent together: one for each topic, with links to the contexts that its records carry; none
    where nobody collects spans. Caller: a sender's thread."""

    def __init__(self, outputs: Iterable[tuple[str, Pairs]]) -> None:
        """Begins them, for outputs that are given by topic and headers."""
        by_topic: dict[str, list[Pairs]] = {}
        for topic, headers in outputs if _is_collected() else ():
            by_topic.setdefault(topic, []).append(headers)
        self._spans = {topic: _sent_together(topic, headers) for topic, headers in by_topic.items()}

    def end(self, errors: Mapping[tuple[str, str], int]) -> None:
        """End them. `errors`: how many outputs were refused, by topic and error."""
        for topic, error in errors:
            if (span := self._spans.get(topic)) is not None:
                span.set_attribute("error.type", error)
                span.set_status(Status(StatusCode.ERROR))
        for span in self._spans.values():
            span.end()


def _sent_together(topic: str, headers: Sequence[Pairs]) -> trace.Span:
    contexts = (propagate.extract(pairs, context=Context(), getter=_PAIRS) for pairs in headers)
    return _tracer().start_span(
        f"send {topic}",
        context=Context(),
        kind=SpanKind.CLIENT,
        links=_links(contexts),
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
            "messaging.batch.message_count": len(headers),
        },
    )
