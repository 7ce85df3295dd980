"""What transactions cost: a worker that copies records, in transactions against at least once, in one run.
`make bench-producing`

    python -m bench.producing [--bootstrap HOST:PORT] [--records N] [--rounds N] [--write]

The worker is the real one; only the supervisor is played. At 1,000 records a transaction, and at the default of 10,000;
with handlers that compute for 100 µs, for 20 µs, and not at all. The forms are measured in turns: read the ratios, not
the rates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.pages import write_section
from bench.processors import cpu_ns_of_family
from bench.quick import PARTITIONS, cpu_ns, create, fill, handled, start_worker
from kunicorn.handler.config import ProducingTarget
from kunicorn.ipc.messages import CommitAs, CommitOver, CommitWanted, Configure
from kunicorn.librdkafka.properties import producer_properties
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import WorkerProcess, configuration

GOAL = 0.8
BUFFER_BYTES = 33_554_432
FORMS: Mapping[str, int | None] = {"at least once": None, "transactions of 1,000": 1000, "of 10,000": 10_000}


class Work(NamedTuple):
    """A handler that is measured."""

    title: str
    share: float
    """Of the records: slow ones get fewer."""
    judged: frozenset[str]
    """The forms that the goal is for: what only copies leaves a broker on the same cores no time for small ones."""


HANDLERS: Mapping[str, Work] = {
    "copy_with_work": Work("computes 100 µs", 0.02, frozenset(FORMS)),
    "copy_with_little_work": Work("computes 20 µs", 0.06, frozenset(FORMS)),
    "copy": Work("only copies", 1.0, frozenset({"at least once", "of 10,000"})),
}
_HEAD = """\
`make bench-producing`: one worker that sends one output for each record of 200 bytes, {records:,} records on
{partitions} partitions (fewer for handlers that compute), one broker on the same two cores; medians of {rounds} rounds,
in turns. CPU: the worker's, with its client's threads, and the broker's.

A handler that only copies has a thousand records done before their transaction is: the client sends a request for each
partition that is written to, the broker asks the transaction's coordinator about each, and it serves the requests of a
connection one after the other. librdkafka's protocol log shows half a millisecond for each of eight. Where there are
more brokers they do so side by side; transactions of 10,000, the default, have the same requests for ten times the
records.

| the handler | delivery | records/s | CPU µs a record | the broker's | of at least once | goal |
|---|---|--:|--:|--:|--:|--:|
"""


class Rate(NamedTuple):
    """One drain: records per second, and CPU nanoseconds a record."""

    records: float
    worker_ns: float
    broker_ns: float
    """0 where the broker is not ours."""


def configured(bootstrap: str, topic: str, handler: str, most: int | None) -> Configure:
    """A worker that sends; `most` records in a transaction, None: at least once."""
    properties = producer_properties(
        bootstrap_servers=[bootstrap],
        client_id="bench",
        security={},
        consumers_extra={},
        extra={},
        transactional_id=None if most is None else "bench-producing",
        transaction_timeout_ms=10_000,
        delivery_timeout_ms=30_000,
        linger_ms=5,
        compression_type="none",
        acks="all",
        buffer_memory=BUFFER_BYTES,
    )
    delivery, records, wait_ms = ("at_least_once", 100_000, 5) if most is None else ("transactions", most, 100)
    target = ProducingTarget(delivery, f"{topic}-out", "rig", properties, records, BUFFER_BYTES, wait_ms)
    entrypoint = f"bench.quick_handlers:{handler}"
    return configuration(bootstrap, entrypoint, [topic], log_level="error", producing=target)


def rate(configure: Configure, topic: str, records: int, broker: int | None) -> Rate:
    """From the first record that is consumed to the last. `broker`: its process."""
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
        worker.start(topic, dict.fromkeys(range(PARTITIONS), 0))
        while not (already := handled(worker)):
            serve(worker)
        began, used = time.perf_counter(), processor_times(worker.pid, broker)
        while (done := handled(worker)) < records:
            serve(worker)
        count, took = done - already, time.perf_counter() - began
        ours, theirs = (now - then for now, then in zip(processor_times(worker.pid, broker), used, strict=True))
        return Rate(count / took, ours / count, theirs / count)


def processor_times(worker: int, broker: int | None) -> tuple[int, int]:
    """CPU nanoseconds of both."""
    return cpu_ns(worker), 0 if broker is None else cpu_ns_of_family(broker)


def serve(worker: WorkerProcess) -> None:
    """Answer as whom to commit: as nobody, which a group without members permits."""
    worker.listen(0.002)
    for message in worker.heard:
        if isinstance(message, CommitWanted):
            worker.tell(CommitAs(message.number, -1, "", None))
        else:
            assert isinstance(message, CommitOver), message
    worker.heard.clear()


def main() -> int:
    """Measure, print, and exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.producing", description=__doc__)
    parser.add_argument("--bootstrap", help="a running broker (default: one of its own)")
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    with ExitStack() as stack:
        cluster = None if options.bootstrap else stack.enter_context(KafkaCluster())
        bootstrap, broker = (cluster.bootstrap, cluster.broker(1).pid) if cluster else (options.bootstrap, None)
        topic = f"bench-{time.time_ns()}"
        fill(bootstrap, topic, options.records)
        create(bootstrap, f"{topic}-out")
        results = measure(bootstrap, broker, topic, options.records, options.rounds)
    show(results)
    if options.write:
        head = _HEAD.format(records=options.records, partitions=PARTITIONS, rounds=options.rounds)
        lines = ("| " + " | ".join(result.cells()) + " |" for result in results)
        write_section("What transactions cost", head + "\n".join(lines))
    return 0 if all(result.good for result in results) else 1


class Result(NamedTuple):
    """One handler in one form; `ratio` is the median of the rounds' ratios to at least once."""

    work: Work
    form: str
    rate: Rate
    ratio: float

    @property
    def judged(self) -> bool:
        """Whether there is a goal for it."""
        return FORMS[self.form] is not None and self.form in self.work.judged

    @property
    def good(self) -> bool:
        """Whether that is met."""
        return not self.judged or self.ratio >= GOAL

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        records, *cpu = f"{self.rate.records:,.0f}", *(f"{each / 1000:.1f}" for each in self.rate[1:])
        return self.work.title, self.form, records, *cpu, f"{self.ratio:.2f}", f"≥ {GOAL}" if self.judged else ""


def measure(bootstrap: str, broker: int | None, topic: str, records: int, rounds: int) -> list[Result]:
    """All rounds of all forms."""
    results = []
    for handler, work in HANDLERS.items():
        rates: dict[str, list[Rate]] = {form: [] for form in FORMS}
        for _ in range(rounds):
            for form, most in FORMS.items():
                configure = configured(bootstrap, topic, handler, most)
                rates[form].append(rate(configure, topic, int(records * work.share), broker))
        for form, found in rates.items():
            pairs = zip(found, rates["at least once"], strict=True)
            ratio = median(ours.records / plain.records for ours, plain in pairs)
            usual = Rate(*map(median, zip(*found, strict=True)))
            results.append(Result(work, form, usual, ratio))
    return results


def show(results: list[Result]) -> None:
    """Print them."""
    table = Table("handler", "delivery", "records/s", "CPU µs a record", "the broker's", "ratio", "goal")
    for result in results:
        table.add_row(*result.cells())
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
