"""What each feature adds to a record, in memory: what of a worker stands around its handler. `make bench-features`

    python -m bench.features [--rounds N] [--write]

No broker: CPU time of this thread, so that neighbours disturb little; of each the best of some rounds counts. What is
switched off costs nothing, as the form of a call is chosen once, before the first record: the first row is all of it.
What decoding costs by the kind of model is `bench.decoding`'s; concurrency as a whole `bench.concurrency`'s.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Message, Producer
from rich.console import Console
from rich.table import Table

from bench.decoding import RECORDS, messages, plain
from bench.pages import write_section
from bench.quick_handlers import copy
from kunicorn.handler.call import Calls, OfOne, calls_of
from kunicorn.handler.config import Decoding, HandlerConfig, Tracing
from kunicorn.handler.load import Handler
from kunicorn.handler.outcome import BatchError
from kunicorn.handler.record import Batch, Record
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import Delays
from kunicorn.worker.fetch import runs
from kunicorn.worker.partitions import TableSettings
from kunicorn.worker.produce.outbox import Entry, Limits, Outbox
from kunicorn.worker.produce.sender import Outputs, outputs_in, put
from kunicorn.worker.progress import Grant, OffsetTracker, Slots
from kunicorn.worker.scheduler import Scheduler

TURNS = 10
KEYS = 100
_EVERYTHING = Limits(1 << 60, 1 << 60, 3600.0)
_HEAD = """\
`make bench-features`: CPU time of one thread around a handler that does nothing, best of some rounds on two shared
cores. What is not switched on is not there: the form of a call is chosen before the first record.

| switched on | ns a record |
|---|--:|
"""


async def plain_async(record: Record) -> None: ...
def batch(records: Batch) -> None: ...


def half(records: Batch) -> None:
    """One of the batch has failed."""
    raise BatchError(done=len(records) // 2)


def called(calls: Calls, some: Sequence[Message], origin: Grant | None = None) -> Callable[[], None]:
    """One go over all records."""
    following, cells = range(1, len(some) + 1), memoryview(array("q", [0]))

    def go() -> None:
        with suppress(OfOne):
            calls(some, following, cells, 0, [], origin)

    return go


def form(handle: Callable[..., Any], mode: str = "record", *, is_async: bool = False, **more: Any) -> Calls:
    """How a worker calls it."""
    return calls_of(Handler("bench", handle, is_async=is_async), mode, **more)


class Sent:
    """A handler whose outputs go into an outbox, and from there to a client that has no broker."""

    def __init__(self) -> None:
        self.outbox = Outbox(_EVERYTHING)
        outputs = Outputs(self.outbox, "out", "at_least_once")
        self._grant = Grant(1, TopicPartition("t", 0), 0, 0)
        order = HandlerConfig("bench", "record", {}, 1, 1, 0, 0)
        self.calls = outputs.calls(Handler("bench", copy, is_async=False), order)
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
        go = called(self.calls, some, self._grant)

        def handle() -> None:
            go()
            self._taken()

        return handle

    def delivered(self, some: Sequence[Message]) -> Callable[[], None]:
        """The sender's part: the client's own is most of it."""
        called(self.calls, some, self._grant)()
        entries = self._taken()
        return lambda: put(self._producer, outputs_in(entries), lambda output, error: None)

    def _taken(self) -> list[Entry]:
        self.outbox.hurry()
        batch = self.outbox.take()
        assert batch is not None
        entries = batch.entries
        self.outbox.done(batch)
        return entries


def by_key(some: Sequence[Message]) -> None:
    """Everything through the lanes of a worker with several records in hand."""
    scheduler, slots = Scheduler(), Slots("key", 16)
    tracker = OffsetTracker(TopicPartition("t", 0), 1, slots, 0)
    for offset, message in enumerate(some):
        scheduler.arrive(tracker, offset, 0, b"%d" % (offset % KEYS), message, 100)
    while (flight := scheduler.start(slots, 0)) is not None:
        scheduler.finish(flight)


def delayed(some: Sequence[Message], topic: str) -> Callable[[], None]:
    """Cutting where that retry topic is consumed, too, and nothing waits."""
    table: Any = SimpleNamespace(settings=TableSettings(0, {topic: 5000}))
    delays = Delays(table)

    def go() -> None:
        for run in runs(some, several_topics=True):
            delays.split(run.tp, run.messages)

    return go


def features(some: Sequence[Message], of_two_topics: Sequence[Message]) -> dict[str, Callable[[], Any]]:
    """What is measured, by name."""
    sent = Sent()
    long_ago = [Message(topic="t", partition=0, offset=at, value=b"v", timestamp=(1, 1)) for at in range(RECORDS)]
    return {
        "nothing": called(form(plain), some),
        "`async def`": called(form(plain_async, is_async=True), some),
        '`value = "json"`': called(form(plain, decoding=Decoding(value="json")), some),
        "`[tracing]`, with nobody who collects": called(form(plain, tracing=Tracing("g")), some),
        '`mode = "batch"`': called(form(batch, "batch"), some),
        "the same, every batch raising `BatchError`": called(form(half, "batch"), some),
        "cutting what was fetched: one topic": lambda: list(runs(some, several_topics=False)),
        "cutting what was fetched: `[[handlers]]`, two topics": lambda: list(runs(of_two_topics, several_topics=True)),
        "the same with `retry_topic_delays_ms`, while nothing fails": delayed(of_two_topics, "r"),
        "the same, records of a retry topic whose time has come": delayed(long_ago, "t"),
        "`[producing]`: handler and outbox, one output each": sent.handled(some),
        "`[producing]`: the sender, client included": sent.delivered(some),
        '`ordering = "key"`: its lanes': lambda: by_key(some),
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
        lines = (f"| {name} | {took:.0f} |" for name, took in best.items())
        write_section("What features cost", _HEAD + "\n".join(lines))


if __name__ == "__main__":
    main()
