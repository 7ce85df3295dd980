"""Several records in hand: how near a worker comes to what handlers that wait allow. `make bench-concurrency`

    python -m bench.concurrency [--rounds N] [--write]

One worker, one partition, ordering by key, handlers that wait 5 ms: with n records in hand no more than n / 5 ms can be
handled. The goal is nine tenths of that, for threads and for asyncio tasks. They wait in two ways: they sleep, or ask a
server that answers after 5 ms (`bench.answering`). Beside each stands what Python alone comes to in the same minute: as
many threads, or tasks, that only wait. Where that misses the goal, so does any worker.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench.answering import Ask, AskAsync, answering
from bench.pages import write_section
from bench.quick import cpu_ns, start_worker
from bench.quick_handlers import WAIT_SECONDS
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import configuration

KEYS = 5000
SECONDS = 3.0
GOAL = 0.9


class Form(NamedTuple):
    """How the handler waits."""

    crew: str
    waits: str
    entrypoint: str


FORMS = (
    Form("threads", "sleeps", "bench.quick_handlers:wait"),
    Form("threads", "asks", "bench.answering:ask"),
    Form("tasks", "sleeps", "bench.quick_handlers:wait_async"),
    Form("tasks", "asks", "bench.answering:ask_async"),
)


class Measured(NamedTuple):
    """One run of a worker."""

    records: float
    """A second."""
    cpu_us: float
    """CPU time a record, of all the worker's threads."""


def fill(bootstrap: str, topic: str, records: int) -> None:
    """One partition, and so many keys that they never hold each other up for long."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # Named: as a temporary it would be gone before the answer.
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(records):
        producer.produce(topic, b"v" * 200, b"%d" % (number % KEYS))
    if producer.flush(60):
        raise SystemExit(f"{bootstrap} did not take the records for {topic} within a minute")


def worker_rate(bootstrap: str, topic: str, form: Form, in_hand: int, records: int, path: str) -> Measured:
    """From the first record handled on."""
    configure = configuration(
        bootstrap, form.entrypoint, [topic], ordering="key", concurrency=in_hand, log_level="error"
    )
    if form.waits == "asks":
        configure.handlers[0].options["path"] = path
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
        worker.start(topic, {0: 0})
        while not (already := worker.slot(1).handled):
            time.sleep(0.001)
        began, used = time.perf_counter(), cpu_ns(worker.pid)
        while (handled := worker.slot(1).handled) < records:
            time.sleep(0.005)
        left = handled - already
        return Measured(left / (time.perf_counter() - began), (cpu_ns(worker.pid) - used) / left / 1000)


def threads_alone(in_hand: int, wait: Callable[[], None]) -> float:
    """Waits a second of so many threads."""
    counts = [0] * in_hand
    until = time.perf_counter() + 1.0

    def go_on(index: int) -> None:
        while time.perf_counter() < until:
            wait()
            counts[index] += 1

    threads = [threading.Thread(target=go_on, args=(index,)) for index in range(in_hand)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(sum(counts))


def tasks_alone(in_hand: int, wait: Callable[[], Awaitable[None]]) -> float:
    """Waits a second of so many tasks."""
    count = 0

    async def go_on(until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await wait()
            count += 1

    async def every() -> None:
        until = time.perf_counter() + 1.0
        await asyncio.gather(*(go_on(until) for _ in range(in_hand)))

    uvloop.run(every())
    return float(count)


def alone(form: Form, in_hand: int, path: str) -> float:
    """What Python alone comes to with as many that only wait."""
    if form.crew == "threads":
        ask = Ask()
        ask.setup({"path": path})
        return threads_alone(in_hand, ask if form.waits == "asks" else lambda: time.sleep(WAIT_SECONDS))
    ask_async = AskAsync()
    ask_async.setup({"path": path})
    return tasks_alone(in_hand, ask_async if form.waits == "asks" else lambda: asyncio.sleep(WAIT_SECONDS))


class Result(NamedTuple):
    """A row of the table: medians of the rounds."""

    in_hand: int
    form: Form
    worker: Measured
    waiting: float
    """What Python alone comes to, records a second."""

    @property
    def good(self) -> bool:
        """Whether the goal is reached."""
        return self.worker.records >= GOAL * self.in_hand / WAIT_SECONDS

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of `_COLUMNS`."""
        rate, cpu_us = self.worker
        limit = self.in_hand / WAIT_SECONDS
        form = f"{self.form.crew}, {self.form.waits}"
        shares = f"{rate / limit:.2f}", f"{self.waiting / limit:.2f}"
        return str(self.in_hand), form, f"{rate:,.0f}", f"{cpu_us:.0f}", *shares, f"≥ {GOAL}"


_COLUMNS = "in hand", "form", "records/s", "CPU µs a record", "of n / 5 ms", "Python alone", "goal"
_HEAD = """\
`make bench-concurrency`: one worker, one partition, `ordering = "key"`, handlers that wait 5 ms, so that with n records
in hand no more than n / 5 ms can be handled in a second. They sleep, or ask a server on the same two cores that answers
after 5 ms. Beside each, in the same minute, as many threads or tasks that only wait: "Python alone". Medians of
{rounds} rounds.

"""


def measure(bootstrap: str, path: str, rounds: int) -> list[Result]:
    """All forms. `path`: where the server listens. Blocks."""
    results = []
    for in_hand in (10, 100):
        records, topic = round(in_hand / WAIT_SECONDS * SECONDS), f"bench-{in_hand}"
        fill(bootstrap, topic, records)
        for form in FORMS:
            waited, found = [], []
            for _ in range(rounds):
                waited.append(alone(form, in_hand, path))
                found.append(worker_rate(bootstrap, topic, form, in_hand, records, path))
            worker = Measured(*map(median, zip(*found, strict=True)))
            results.append(Result(in_hand, form, worker, median(waited)))
    return results


def main() -> int:
    """Measure, print, and exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.concurrency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    with KafkaCluster() as kafka, tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "answers")
        with answering(path):
            results = measure(kafka.bootstrap, path, options.rounds)
    table = Table(*_COLUMNS)
    for result in results:
        table.add_row(*result.cells())
    Console(width=120).print(table)
    if options.write:
        rows = (_COLUMNS, ("--:",) * len(_COLUMNS), *(result.cells() for result in results))
        lines = (f"| {' | '.join(row)} |" for row in rows)
        write_section("Several records in hand", _HEAD.format(rounds=options.rounds) + "\n".join(lines))
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
