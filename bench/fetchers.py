"""A worker over librdkafka, and over our own fetcher, beside a bare confluent-kafka loop. `make bench-fetchers`

    python -m bench.fetchers [--records N] [--rounds N] [--codecs none,lz4,zstd] [--write]

Two tables. The first needs no broker: where the time of a record goes between an answer of a broker and its handler, as
CPU time of this thread. The second is the whole worker (template, fork, pipe, ledger; only the supervisor is played) on
a broker of its own, and beside it a bare loop with the same properties. All forms are measured in turns, so that
neighbours disturb them alike; a ratio is the median of the rounds' ratios, and CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from statistics import median
from typing import Any, NamedTuple

import kunicorn_columns
from confluent_kafka import Message, Producer
from rich.console import Console
from rich.table import Table

from bench.columns import IN_A_BATCH, ORDER_BYTES, RECORDS, TOPIC, VERSION, order, response
from bench.pages import write_section
from bench.quick import PARTITIONS, Rate, bare_rate, create, worker_rate
from bench.quick_handlers import count, count_batch
from kunicorn.columns.decoding import Rows
from kunicorn.handler.call import Calls, calls_of
from kunicorn.handler.load import Handler
from kunicorn.handler.messages import Run
from kunicorn.handler.rows import following_offsets
from kunicorn.ipc.messages import Configure
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import configuration

PARTS_TITLE = "From an answer to the handler"
RATES_TITLE = "The two fetchers"
BARE = "bare loop"
_RUN = 500
_IN_FLIGHT = 200_000
"""Records that wait to be taken by the broker, however many are to be written."""
_PARTS_HEAD = f"""\
`make bench-fetchers`: nanoseconds of CPU a record between a broker's answer and a handler that touches the value, in
memory, in one thread; JSON orders of {ORDER_BYTES} bytes, nothing compressed, runs of {_RUN} records. librdkafka's own
threads, which fetch and make its messages, are not in it: the rows of messages begin where its consumer has given them
out. The best of some rounds.
"""


class Form(NamedTuple):
    """One way to have records handled."""

    name: str
    fetcher: str
    entrypoint: str
    settings: dict[str, Any]
    goal: str = ""


FORMS = (
    Form("records, librdkafka", "librdkafka", "count", {}),
    Form("records, own fetcher", "own", "count", {}, "≥ 1.5"),
    Form("batches, librdkafka", "librdkafka", "count_batch", {"mode": "batch", "batch_max_records": 500}),
    Form("batches, own fetcher", "own", "count_batch", {"mode": "batch", "batch_max_records": 500}, "≥ 1.5"),
    Form("arrow, own fetcher", "own", "count_columns", {"mode": "arrow", "batch_max_records": 10_000}, "≥ 2"),
)


# -- parts, in memory --------------------------------------------------------------------------------------------------


def nanoseconds(call: Callable[[], object], rounds: int) -> float:
    """CPU time a record, of the best round."""
    call()
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(4):
            call()
        best = min(best, (time.thread_time_ns() - began) / 4 / RECORDS)
    return best


def decoded(body: bytes) -> Rows:
    """The rows of the answer."""
    decoder = kunicorn_columns.Decoder(read_committed=True, max_unpacked=64 << 20)
    decoder.place(TOPIC, 0, "orders", 0)
    found: Any = decoder.decode(body, VERSION).rows
    rows: Rows = found.cut(0, RECORDS, 0)
    return rows


def messages(rows: Any) -> list[Message]:
    """As confluent-kafka gives them out."""
    return [
        Message(
            topic=each.topic(),
            partition=0,
            offset=each.offset(),
            key=each.key(),
            value=each.value(),
            timestamp=each.timestamp(),
            leader_epoch=0,
        )
        for each in rows
    ]


def called(calls: Calls, run: Run) -> Callable[[], object]:
    """A call of the handler with all of the run, some at a time, as an executor does it."""
    cells = memoryview(array("q", [0]))

    def call() -> None:
        for first in range(0, len(run), _RUN):
            some = run[first : first + _RUN]
            calls(some, following_offsets(some), cells, 0, [])

    return call


def parts(rounds: int) -> Iterator[tuple[str, float]]:
    """Each part, and what it costs."""
    body = response("none")
    rows: Any = decoded(body)
    records = calls_of(Handler("count", count, False), "record")
    batches = calls_of(Handler("count_batch", count_batch, False), "batch")
    yield "decoding, checksum included", nanoseconds(lambda: decoded(body), rounds)
    yield "rows: all values as bytes", nanoseconds(rows.values, rounds)
    yield "rows: an object for each", nanoseconds(rows.messages, rounds)
    yield "rows: the record handler's calls, all of that in it", nanoseconds(called(records, rows), rounds)
    yield "rows: the batch handler's calls, with all values", nanoseconds(called(batches, rows), rounds)
    listed = messages(rows)
    yield "librdkafka's messages: the record handler's calls", nanoseconds(called(records, listed), rounds)
    yield "librdkafka's messages: the batch handler's calls", nanoseconds(called(batches, listed), rounds)


# -- rates, on a broker ------------------------------------------------------------------------------------------------


def fill(bootstrap: str, topic: str, records: int, codec: str) -> None:
    """Write JSON orders, spread evenly, in batches of about 16 kB."""
    create(bootstrap, topic)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 100,
            "batch.num.messages": IN_A_BATCH,
            "compression.type": codec,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT,
        }
    )
    rng = Random(1)
    values = [order(number, rng) for number in range(1000)]
    for number in range(records):
        while len(producer) >= _IN_FLIGHT:
            producer.poll(0.05)
        producer.produce(topic, values[number % 1000], b"%07d" % number, partition=number % PARTITIONS)
    if producer.flush(300):
        raise SystemExit(f"{bootstrap} did not take the records for {topic} within five minutes")


def configured(bootstrap: str, topic: str, form: Form) -> Configure:
    """The worker's."""
    handler = f"bench.quick_handlers:{form.entrypoint}"
    return configuration(bootstrap, handler, [topic], log_level="error", fetcher=form.fetcher, **form.settings)


Measured = dict[str, list[Rate]]


def rates(bootstrap: str, records: int, rounds: int, codec: str, tell: Callable[[str], None]) -> Measured:
    """Every form's, in turns."""
    topic = f"bench-{codec}-{time.time_ns()}"
    fill(bootstrap, topic, records, codec)
    measured: Measured = {name: [] for name in (BARE, *(form.name for form in FORMS))}
    plain = configured(bootstrap, topic, FORMS[0])
    for number in range(rounds):
        measured[BARE].append(bare_rate(plain, topic, records))
        for form in FORMS:
            measured[form.name].append(worker_rate(configured(bootstrap, topic, form), topic, records))
        latest = ", ".join(f"{name} {found[-1].records / 1e6:.2f}" for name, found in measured.items())
        tell(f"{codec}, round {number + 1}, million records a second: {latest}")
    return measured


def lines(codec: str, measured: Measured) -> Iterator[Sequence[str]]:
    """The table's."""
    goals = {form.name: form.goal for form in FORMS}
    for name, found in measured.items():
        ratio = median(ours.records / bare.records for ours, bare in zip(found, measured[BARE], strict=True))
        cpu = median(ours.cpu_ns / bare.cpu_ns for ours, bare in zip(found, measured[BARE], strict=True))
        rate, nanos = median(each.records for each in found), median(each.cpu_ns for each in found)
        yield codec, name, f"{rate / 1e6:.2f}", f"{ratio:.2f}", goals.get(name, ""), f"{nanos:.0f}", f"{cpu:.2f}"


def main() -> None:
    """Measure, print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--codecs", default="none,lz4,zstd")
    parser.add_argument("--parts-only", action="store_true", help="no broker")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    given = parser.parse_args()
    console = Console(width=120)
    _told(
        console,
        ["part", "ns of CPU"],
        [(name, f"{cost:.0f}") for name, cost in parts(30)],
        PARTS_TITLE,
        _PARTS_HEAD,
        given.write,
    )
    if given.parts_only:
        return
    head = ["codec", "form", "M/s", "of the bare loop", "goal", "CPU ns a record", "of the bare loop's"]
    found: list[Sequence[str]] = []
    with ExitStack() as stack:
        bootstrap = stack.enter_context(KafkaCluster()).bootstrap
        for codec in given.codecs.split(","):
            found += lines(codec, rates(bootstrap, given.records, given.rounds, codec, console.print))
    _told(console, head, found, RATES_TITLE, _rates_head(given.records, given.rounds), given.write)


def _rates_head(records: int, rounds: int) -> str:
    return f"""\
`make bench-fetchers`: one worker beside a bare confluent-kafka loop, the same broker and properties, {records:,} JSON
orders of {ORDER_BYTES} bytes in batches of {IN_A_BATCH}, {PARTITIONS} partitions, handlers that touch each value,
{rounds} rounds in turns. The broker has the same two cores, and so may others: read the ratios. Rates of a worker that
computes in two threads suffer most where cores are shared; CPU time a record suffers less.
"""


def _told(
    console: Console, head: Sequence[str], rows: Sequence[Sequence[str]], title: str, text: str, write: bool
) -> None:
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if write:
        ruled = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
        write_section(title, "\n".join([text, *ruled]))


if __name__ == "__main__":
    main()
