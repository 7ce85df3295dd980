"""What the service costs: one worker against a bare confluent-kafka loop, in one run. `make bench-quick`

    python -m bench.quick [--bootstrap HOST:PORT] [--records N] [--rounds N]

The worker is the real one: template, fork, pipe, ledger, record objects; only the supervisor is played. Both sides get
the same librdkafka properties. The forms are measured in turns, so that a noisy neighbour disturbs all of them alike;
of each the median counts. Neighbours still move single figures by a third: read the ratios, not the rates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from kunicorn.ipc.messages import Configure, Drain
from tests.deploy.tools import tools
from tests.kafka import KafkaCluster
from tests.system.bare_worker.rig import TemplateProcess, WorkerProcess, configuration

PARTITIONS = 8
VALUE_BYTES = 200
DELAY_RECORDS, DELAY_RATE = 600, 200.0
RECORD_GOAL, BATCH_GOAL, DELAY_GOAL_MS = 0.75, 0.9, 2.0
ROOT = Path(__file__).parents[1]


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Write the records to be drained, spread evenly."""
    create(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    value = bytes(range(VALUE_BYTES))
    for number in range(records):
        producer.produce(topic, value, b"%07d" % number, partition=number % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit(f"{bootstrap} did not take the records for {topic} within two minutes")


def create(bootstrap: str, topic: str) -> None:
    """A topic of our own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # Named: as a temporary it would be gone before the answer.
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def bare(what: str, configure: Configure, topic: str, records: int) -> subprocess.Popen[str]:
    """Start the yardstick in a fresh process."""
    arguments = [what, json.dumps(configure.client), topic, str(PARTITIONS), str(records)]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.bare", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


class Rate(NamedTuple):
    """One drain: records per second, and CPU nanoseconds a record (librdkafka's threads included)."""

    records: float
    cpu_ns: float


def bare_rate(configure: Configure, topic: str, records: int) -> Rate:
    """The bare loop."""
    output, _ = bare("drain", configure, topic, records).communicate()
    return Rate(*map(float, output.split()))


def worker_rate(configure: Configure, topic: str, records: int, partitions: int = PARTITIONS) -> Rate:
    """A worker, seen in its ledger from the first record on."""
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
        worker.start(topic, dict.fromkeys(range(partitions), 0))
        while not (already := handled(worker, partitions)):
            time.sleep(0.001)
        began, used = time.perf_counter(), cpu_ns(worker.pid)
        while handled(worker, partitions) < records:
            time.sleep(0.005)
        left = records - already
        return Rate(left / (time.perf_counter() - began), (cpu_ns(worker.pid) - used) / left)


def cpu_ns(pid: int) -> int:
    """CPU time of all the process's threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def handled(worker: WorkerProcess, partitions: int = PARTITIONS) -> int:
    """Records that the ledger shows as consumed."""
    return sum(max(0, worker.slot(grant).consumed.offset) for grant in range(1, partitions + 1))


def start_worker(stack: ExitStack, configure: Configure) -> WorkerProcess:
    """A worker that is ready for partitions."""
    template = TemplateProcess(configure.handlers[0].entrypoint, ROOT, tools().jemalloc)
    stack.callback(template.close)
    template.ready()
    worker = template.fork()
    stack.callback(worker.close)
    return worker.configure(configure)


def delays_of_bare(configure: Configure, bootstrap: str, topic: str) -> list[float]:
    """Milliseconds from sending to a bare `poll()` loop's hands."""
    create(bootstrap, topic)
    process = bare("delays", configure, topic, DELAY_RECORDS)
    threading.Timer(1.0, send_steadily, (bootstrap, topic)).start()
    output, _ = process.communicate()
    return milliseconds(output)


def delays_of_worker(configure: Configure, bootstrap: str, topic: str, path: Path) -> list[float]:
    """Milliseconds from sending to the handler."""
    create(bootstrap, topic)
    configure.handlers[0].options["path"] = str(path)
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
        worker.start(topic, dict.fromkeys(range(PARTITIONS), 0))
        time.sleep(0.5)
        send_steadily(bootstrap, topic)
        while handled(worker) < DELAY_RECORDS:
            time.sleep(0.05)
        worker.tell(Drain(0.0))
        worker.exit_status()
    return milliseconds(path.read_text())


def send_steadily(bootstrap: str, topic: str) -> None:
    """Send `DELAY_RECORDS` records at `DELAY_RATE` a second, each at once."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    due = time.monotonic()
    for number in range(DELAY_RECORDS):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / DELAY_RATE
        producer.produce(topic, str(time.monotonic_ns()).encode(), partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(10)


def milliseconds(text: str) -> list[float]:
    """The delays, first ones left out: they contain the connection's start."""
    return [int(line) / 1e6 for line in text.split()][50:]


def main() -> int:
    """Measure, print, and exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.quick", description=__doc__)
    parser.add_argument("--bootstrap", help="a running broker (default: one of its own)")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-delays", action="store_true", help="throughput only")
    options = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = options.bootstrap or stack.enter_context(KafkaCluster()).bootstrap
        return measure(bootstrap, options.records, options.rounds, with_delays=not options.no_delays)


def measure(bootstrap: str, records: int, rounds: int, *, with_delays: bool) -> int:
    """All rounds, then the table."""
    console = Console(width=110)
    topic = f"bench-{time.time_ns()}"
    fill(bootstrap, topic, records)
    record = configuration(bootstrap, "bench.quick_handlers:count", [topic], log_level="error")
    batch = configuration(
        bootstrap, "bench.quick_handlers:count_batch", [topic], mode="batch", batch_max_records=500, log_level="error"
    )
    rates: dict[str, list[Rate]] = {"bare loop": [], "record handler": [], "batch handler": []}
    for number in range(rounds):
        rates["bare loop"].append(bare_rate(record, topic, records))
        rates["record handler"].append(worker_rate(record, topic, records))
        rates["batch handler"].append(worker_rate(batch, topic, records))
        latest = ", ".join(f"{form} {found[-1].records / 1e6:.2f}" for form, found in rates.items())
        console.print(f"round {number + 1}, million records a second: {latest}")
    good = show_rates(console, rates)
    if with_delays:
        good &= measure_delays(console, bootstrap, topic)
    return 0 if good else 1


def show_rates(console: Console, rates: dict[str, list[Rate]]) -> bool:
    """The table of rates; whether the goals are met. A ratio is the median of the rounds' ratios."""
    table = Table("form", "M/s", "best", "CPU ns a record", "ratio", "ratio of bests", "goal")
    goals = {"bare loop": None, "record handler": RECORD_GOAL, "batch handler": BATCH_GOAL}
    yardstick = rates["bare loop"]
    good = True
    for form, measured in rates.items():
        ratio = median(ours.records / bare.records for ours, bare in zip(measured, yardstick, strict=True))
        best, goal = max(measured).records, goals[form]
        good &= goal is None or ratio >= goal
        table.add_row(
            form,
            f"{median(rate.records for rate in measured) / 1e6:.2f}",
            f"{best / 1e6:.2f}",
            f"{median(rate.cpu_ns for rate in measured):.0f}",
            f"{ratio:.2f}",
            f"{best / max(yardstick).records:.2f}",
            "" if goal is None else f"≥ {goal}",
        )
    console.print(table)
    return good


def measure_delays(console: Console, bootstrap: str, topic: str) -> bool:
    """Delays at a steady rate; whether the worker's median is near enough to a bare loop's."""
    with tempfile.TemporaryDirectory() as directory:
        entrypoint = "bench.quick_handlers:note_delay"
        configure = configuration(bootstrap, entrypoint, [topic + "-worker"], log_level="error")
        plain = delays_of_bare(configure, bootstrap, topic + "-bare")
        ours = delays_of_worker(configure, bootstrap, topic + "-worker", Path(directory) / "delays")
    table = Table(f"delay at {DELAY_RATE:g} records/s", "p50 ms", "p99 ms", "goal")
    for form, found in (("bare poll()", plain), ("record handler", ours)):
        ranked = sorted(found)
        table.add_row(form, f"{median(ranked):.2f}", f"{ranked[int(len(ranked) * 0.99)]:.2f}", "")
    difference = median(ours) - median(plain)
    table.add_row("difference", f"{difference:+.2f}", "", f"≤ {DELAY_GOAL_MS:g}")
    console.print(table)
    return difference <= DELAY_GOAL_MS


if __name__ == "__main__":
    sys.exit(main())
