"""What each feature adds to a record, in memory: what of a worker stands around its handler. `make bench-features`

    python -m bench.features [--rounds N] [--write]

No broker: CPU time of this thread, so that neighbours disturb little; of each the best of some rounds counts. What is
switched off costs nothing, as the form of a call is chosen once, before the first record: the first row is all of it.
What decoding costs by the kind of model is `bench.decoding`'s; concurrency as a whole `bench.concurrency`'s.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import descriptor_pb2, message_factory
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from rich.console import Console
from rich.table import Table

from bench.decoding import RECORDS, messages, plain
from bench.pages import write_section
from bench.quick_handlers import copy
from kunicorn import Send
from kunicorn.handler.call import Calls, OfSome, calls_of
from kunicorn.handler.config import (
    CircuitBreaking,
    Decoding,
    Encoding,
    FilterRule,
    HandlerConfig,
    OutputEncoding,
    RateLimiting,
    Tracing,
)
from kunicorn.handler.dead_letters import cause_of, letter_of
from kunicorn.handler.decode.schema_registry import client_of
from kunicorn.handler.encode.encoders import Encoder
from kunicorn.handler.filter import filters_of, untold
from kunicorn.handler.load import Handler
from kunicorn.handler.middleware import Call, loaded
from kunicorn.handler.outcome import BatchError
from kunicorn.handler.record import Batch, Record
from kunicorn.handler.tracing import span_in_hand
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import Delays, TopicDelays
from kunicorn.worker.fetching.fetched import runs
from kunicorn.worker.limits.gate import Gate, gate_of
from kunicorn.worker.produce.outbox import Entry, Limits, Outbox
from kunicorn.worker.produce.sender import Outputs, outputs_in, put
from kunicorn.worker.progress import InFlight, Lane, OffsetTracker, Slots
from kunicorn.worker.scheduler import Scheduler
from kunicorn.worker.stats import Counters

TURNS = 10
KEYS = 100
_EVERYTHING = Limits(1 << 60, 1 << 60, 3600.0)
_HEAD = """\
`make bench-features`: CPU time of one thread around a handler that does nothing, best of some rounds on two shared
cores. What is not switched on is not there: the form of a call is chosen before the first record.

Judge by the last column: the nanoseconds are those of a busy machine.

| switched on | ns a record | times nothing |
|---|--:|--:|
"""


async def plain_async(record: Record) -> None: ...
def batch(records: Batch) -> None: ...


def asking(record: Record) -> None:
    """Something within its call tells its trace."""
    span_in_hand()


def half(records: Batch) -> None:
    """One of the batch has failed."""
    raise BatchError(done=len(records) // 2)


def called(calls: Calls, some: Sequence[Message], origin: InFlight | None = None) -> Callable[[], None]:
    """One go over all records."""
    following, cells = range(1, len(some) + 1), memoryview(array("q", [0]))

    def go() -> None:
        with suppress(OfSome):
            calls(some, following, cells, 0, [], origin)

    return go


def form(handle: Callable[..., Any], mode: str = "record", *, is_async: bool = False, **more: Any) -> Calls:
    """How a worker calls it."""
    return calls_of(Handler("bench", handle, is_async=is_async), mode, **more)


def around(call: Call) -> Iterator[None]:
    """A middleware that does nothing."""
    yield


def wanted(record: Record) -> bool:
    """A filter that lets every record through."""
    return True


def _config(**more: Any) -> HandlerConfig:
    return HandlerConfig("bench", "record", {}, 1, 1, 0, 0, **more)


def filtered(*by: FilterRule, **more: Any) -> Calls:
    """How a worker calls a handler that gets every record, behind these filters."""
    config = _config(filters=list(by), **more)
    return calls_of(Handler("bench", plain, is_async=False, filters=filters_of(config, untold)), "record")


def collected(some: Sequence[Message]) -> Callable[[], None]:
    """Calls whose spans an SDK has, and throws away."""
    go, provider = called(form(plain, tracing=Tracing("g")), some), TracerProvider()
    provider.add_span_processor(SpanProcessor())

    def within_provider() -> None:
        before = trace.get_tracer_provider
        trace.get_tracer_provider = lambda: provider
        try:
            go()
        finally:
            trace.get_tracer_provider = before

    return within_provider


def within(middlewares: int, handle: Callable[..., Any] = plain, mode: str = "record") -> Calls:
    """How a worker calls it within so many middlewares."""
    handler = Handler("bench", handle, is_async=handle is plain_async)
    return calls_of(loaded(handler, [f"{__name__}:around"] * middlewares), mode)


def _encoded(handler: Handler, encoding: Encoding | None) -> Handler:
    return handler if encoding is None else Encoder(encoding, "out").around(handler)


def returned(record: Record) -> dict[str, Any]:
    """A model for the default topic."""
    return {"id": 7, "by": "customer"}


def sent_on(record: Record) -> Send:
    """The record, as it was."""
    return Send.of(record, "archive")


_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "by", "type": "string"}],
}
_JSON = {"type": "object", "properties": {"id": {"type": "integer"}, "by": {"type": "string"}}, "required": ["id"]}
_FILE = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
_FILE.message_type.add(name="Order").field.extend(
    [
        descriptor_pb2.FieldDescriptorProto(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL"),
        descriptor_pb2.FieldDescriptorProto(name="by", number=2, type="TYPE_STRING", label="LABEL_OPTIONAL"),
    ]
)
ProtoOrder = message_factory.GetMessages([_FILE])["bench.Order"]


def by_registry(encoder: str, schema: dict[str, Any] | None = None) -> Encoding:
    """By a schema registry in memory; without a schema of its own the message's class has one."""
    properties: dict[str, Any] = {"url": f"mock://bench-{encoder}"}
    if schema is None:
        return Encoding(OutputEncoding(encoder, register_schemas=True), schema_registry=properties)
    kind = {"avro": "AVRO", "jsonschema": "JSON"}[encoder]
    client_of(SchemaRegistryClient, properties).register_schema("out-value", Schema(json.dumps(schema), kind, []))
    return Encoding(OutputEncoding(encoder), schema_registry=properties)


def letters(some: Sequence[Message], style: str) -> Callable[[], None]:
    """A dead letter of each record, with its headers."""
    cause = cause_of(ValueError("no such customer"), 3)

    def go() -> None:
        for message in some:
            letter_of(Record.of(message), "shop", cause, 0, style)

    return go


class Sent:
    """A handler whose outputs go into an outbox, and from there to a client that has no broker."""

    def __init__(self, handle: Callable[..., Any] = copy, encoding: Encoding | None = None) -> None:
        self.outbox = Outbox(_EVERYTHING)
        outputs = Outputs("out", "at_least_once")
        self._tracker = OffsetTracker(TopicPartition("t", 0), 1, Slots("partition", 1, runs=True), 0)
        order = HandlerConfig("bench", "record", {}, 1, 1, 0, 0)
        self.calls = outputs.calls(_encoded(Handler("bench", handle, is_async=False), encoding), order)
        self._producer = Producer(
            {
                "bootstrap.servers": "127.0.0.1:1",
                "log_level": 0,
                "queue.buffering.max.messages": 10_000_000,
                "delivery.report.only.error": True,
            }
        )

    def handled(self, some: Sequence[Message]) -> Callable[[], None]:
        """The runner's part, and a batch that is taken and thrown away."""

        def handle() -> None:
            flight = self._in_flight(some)
            called(self.calls, some, flight)()
            self.outbox.put(flight.entries, len(some), 0)
            self._taken()

        return handle

    def delivered(self, some: Sequence[Message]) -> Callable[[], None]:
        """The sender's part: the client's own is most of it."""
        flight = self._in_flight(some)
        called(self.calls, some, flight)()
        self.outbox.put(flight.entries, len(some), 0)
        entries = self._taken()
        return lambda: put(self._producer, outputs_in(entries), lambda output, error: None)

    def _in_flight(self, some: Sequence[Message]) -> InFlight:
        return InFlight(1, self._tracker, Lane(self._tracker, None), 0, 0, 0, some, end=len(some))

    def _taken(self) -> list[Entry]:
        self.outbox.hurry()
        batch = self.outbox.take()
        assert batch is not None
        entries = batch.entries
        self.outbox.done(batch)
        return entries


def by_key(some: Sequence[Message], gate: Gate | None = None) -> None:
    """Everything through the lanes of a worker with several records in hand, and through the handler's gate."""
    scheduler, slots = Scheduler(), Slots("key", 16)
    tracker = OffsetTracker(TopicPartition("t", 0), 1, slots, 0)
    for offset, message in enumerate(some):
        scheduler.arrive(tracker, offset, 0, b"%d" % (offset % KEYS), message, 100)
    while (flight := scheduler.start(slots, 0)) is not None:
        if gate is not None and gate.room(0) and gate.admitted(flight, 0):
            gate.took(flight, 0)
            gate.succeeded(flight, 1, 0)
        scheduler.finish(flight)


def gated(**limits: Any) -> Gate:
    """A worker's gate of a handler with these limits."""
    config = HandlerConfig("bench", "record", {}, 1, 1, 0, 0, **limits)
    gate = gate_of(config, Counters())
    assert gate is not None
    return gate


def delayed(some: Sequence[Message], by_topic: Mapping[str, int]) -> Callable[[], None]:
    """Cutting where these topics' records wait so many milliseconds, and nothing waits any more."""
    table: Any = SimpleNamespace()
    delays = Delays(table, by_topic)

    def go() -> None:
        for run in runs(some, several_topics=True):
            delays.split(run.tp, run.messages)

    return go


def features(some: Sequence[Message], of_two_topics: Sequence[Message]) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    sent, as_json = Sent(), Encoding(OutputEncoding("json"))
    breaker = gated(circuit_breaker=CircuitBreaking(["builtins.OSError"], 0.5, 10_000, 10, 30_000, 1))
    limited = gated(rate_limit=RateLimiting(1e9, 1e9, "service", "records"))
    limited_by_key = gated(rate_limit=RateLimiting(1e9, 1e9, "key", "records"))
    tracing, header = Tracing("g"), ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    in_traces = [Message(topic="t", partition=0, offset=at, value=b"v", headers=[header]) for at in range(RECORDS)]
    long_ago = [Message(topic="t", partition=0, offset=at, value=b"v", timestamp=(1, 1)) for at in range(RECORDS)]
    return {
        "nothing": called(form(plain), some),
        "`async def`": called(form(plain_async, is_async=True), some),
        '`value = "json"`': called(form(plain, decoding=Decoding(value="json")), some),
        "`[tracing]`, with nobody who collects": called(form(plain, tracing=tracing), some),
        "the same, records with a trace context, which goes on": called(form(plain, tracing=tracing), in_traces),
        "the same, and each handler asks for it, as a log line does": called(form(asking, tracing=tracing), in_traces),
        "`[tracing]`, with an SDK that keeps every span": collected(in_traces),
        "one of `filters`, by key": called(filtered(FilterRule(on="key", none_of=["none"])), some),
        "the same, by header": called(filtered(FilterRule(on="header:traceparent", prefix="00-")), in_traces),
        "one of them, a function": called(filtered(FilterRule(function=f"{__name__}:wanted")), some),
        "`max_age_ms`": called(filtered(max_age_ms=1 << 50), long_ago),
        "one of `middlewares`": called(within(1), some),
        "two of them": called(within(2), some),
        "one around `async def`": called(within(1, plain_async), some),
        '`mode = "batch"`': called(form(batch, "batch"), some),
        "the same, every batch raising `BatchError`": called(form(half, "batch"), some),
        '`mode = "batch"` with one of `middlewares`': called(within(1, batch, "batch"), some),
        '`mode = "batch"` with `[tracing]`, nobody who collects, records with a context': called(
            form(batch, "batch", tracing=tracing), in_traces
        ),
        "cutting what was fetched: one topic": lambda: list(runs(some, several_topics=False)),
        "cutting what was fetched: `[[handlers]]`, two topics": lambda: list(runs(of_two_topics, several_topics=True)),
        "the same with `retry_topic_delays_ms`, while nothing fails": delayed(of_two_topics, {"r": 5000}),
        "the same, records of a retry topic whose time has come": delayed(long_ago, {"t": 5000}),
        "the same with `delay_ms`, records whose time has come": delayed(
            long_ago, TopicDelays([_config(delay_ms=5000)])
        ),
        "`[producing]`: handler and outbox, one output each": sent.handled(some),
        "`[producing]`: the sender, client included": sent.delivered(some),
        '`[producing] value = "json"`: the same, a dict returned': Sent(returned, as_json).handled(some),
        '`[producing] value = "avro"`: the same, by a registered schema': Sent(
            returned, by_registry("avro", _AVRO)
        ).handled(some),
        '`[producing] value = "jsonschema"`: the same': Sent(returned, by_registry("jsonschema", _JSON)).handled(some),
        '`[producing] value = "protobuf:…"`: the same': Sent(
            returned, by_registry(f"protobuf:{__name__}:ProtoOrder")
        ).handled(some),
        "the same, the record sent on as it was": Sent(sent_on, by_registry("avro", _AVRO)).handled(some),
        "a dead letter, but for sending it": letters(in_traces, "kunicorn"),
        'the same with `headers = "spring"`': letters(in_traces, "spring"),
        '`ordering = "key"`: its lanes': lambda: by_key(some),
        "the same, and `[handler.circuit_breaker]`": lambda: by_key(some, breaker),
        "the same, and `[handler.rate_limit]`": lambda: by_key(some, limited),
        "the same, by key": lambda: by_key(some, limited_by_key),
    }


def nanoseconds(call: Callable[[], Any]) -> float:
    """CPU time a record, of one go."""
    began = time.thread_time_ns()
    for _ in range(TURNS):
        call()
    return (time.thread_time_ns() - began) / TURNS / RECORDS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.features", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    some = messages()
    two = [Message(topic="tu"[at > RECORDS // 2], partition=0, offset=at, value=b"v") for at in range(RECORDS)]
    every = features(some, two)
    best = dict.fromkeys(every, float("inf"))
    for _ in range(options.rounds):
        for name, call in every.items():
            best[name] = min(best[name], nanoseconds(call))
    table = Table("switched on", "ns a record")
    for name, took in best.items():
        table.add_row(name.replace("[", r"\["), f"{took:.0f}")
    Console(width=100).print(table)
    if options.write:
        bare = best["nothing"]
        lines = (f"| {name} | {took:.0f} | {took / bare:.1f} |" for name, took in best.items())
        write_section("What features cost", _HEAD + "\n".join(lines))


if __name__ == "__main__":
    main()
