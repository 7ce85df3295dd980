"""How much memory a worker takes whose handler cannot keep up, against `memory_per_worker_mb`.

    python -m bench.memory [--bootstrap HOST:PORT] [--write]

The worker is the real one; only the supervisor is played. Its handler never returns from the first record, so that
everything the client prefetches stays: the worst there is. What counts is the peak of the resident memory (`VmHWM`),
pages shared with the template included.
"""

from __future__ import annotations

import argparse
import re
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.pages import write_section
from kunicorn.pipes.client import client_properties
from kunicorn.pipes.messages import Configure
from tests.kafka import KafkaCluster
from tests.system.worker.rig import TemplateProcess, WorkerProcess, configuration

ROOT = Path(__file__).parents[1]
TITLE = "Memory of a worker whose handler cannot keep up"
BUDGETS_MB = (64, 128, 256)
MB = 1024 * 1024
STEADY_SECONDS, LONGEST_SECONDS = 2.0, 15.0


class Load(NamedTuple):
    """A topic's content."""

    value_bytes: int
    partitions: int
    records: int

    def __str__(self) -> str:
        size = f"{self.value_bytes // MB} MB" if self.value_bytes >= MB else f"{self.value_bytes} B"
        return f"{size} × {self.partitions:,} partitions"


LOADS = tuple(
    Load(size, partitions, records)
    for size, records in ((20, 2_000_000), (200, 600_000), (MB, 240))
    for partitions in (8, 2000)
)


def fill(bootstrap: str, topic: str, load: Load) -> None:
    """Write the records, spread evenly."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"max.message.bytes": str(2 * MB)}
    admin.create_topics([NewTopic(topic, load.partitions, 1, config=settings)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "message.max.bytes": 2 * MB})
    value = b"x" * load.value_bytes
    for number in range(load.records):
        while True:
            try:
                producer.produce(topic, value, partition=number % load.partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit(f"{bootstrap} did not take the records of {topic} within two minutes")


def configured(bootstrap: str, topic: str, megabytes: int) -> Configure:
    """As the supervisor would do it."""
    client = client_properties(
        bootstrap_servers=[bootstrap], client_id="bench", group_id="bench", isolation_level="read_uncommitted",
        client_rack=None, security={}, extra={}, memory_per_worker_mb=megabytes,
    )  # fmt: skip
    return configuration(bootstrap, "bench.quick_handlers:never_return", [topic], client=client)


def peak_mb(configure: Configure, topic: str, partitions: int) -> int:
    """The worker's peak, as soon as it has stopped growing."""
    with ExitStack() as stack:
        template = TemplateProcess(configure.entrypoint, ROOT)
        stack.callback(template.close)
        template.ready()
        worker = template.fork()
        stack.callback(worker.close)
        worker.configure(configure)
        worker.start(topic, dict.fromkeys(range(partitions), 0))
        return _steady_peak(worker) // MB


def _steady_peak(worker: WorkerProcess) -> int:
    began = grown = time.monotonic()
    peak = 0
    while (now := time.monotonic()) - grown < STEADY_SECONDS and now - began < LONGEST_SECONDS:
        time.sleep(0.1)
        if (found := high_water(worker.pid)) > peak * 1.01:
            peak, grown = found, now
    return high_water(worker.pid)


def high_water(pid: int) -> int:
    """Peak of the resident memory, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


def measure(bootstrap: str) -> list[str]:
    """The table's lines."""
    lines = [f"| records | {' | '.join(f'{budget} MB' for budget in BUDGETS_MB)} |", "| --- |" + " --: |" * 3]
    for number, load in enumerate(LOADS):
        topic = f"bench-memory-{number}"
        fill(bootstrap, topic, load)
        peaks = [peak_mb(configured(bootstrap, topic, budget), topic, load.partitions) for budget in BUDGETS_MB]
        lines.append(f"| {load} | {' | '.join(map(str, peaks))} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="a broker of yours; without it one is started")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = arguments.bootstrap or stack.enter_context(KafkaCluster()).bootstrap
        table = "\n".join(measure(bootstrap))
    if arguments.write:
        head = f"`python -m bench.memory --write`, {datetime.now():%Y-%m-%d}: peak MB by `memory_per_worker_mb`."
        write_section(TITLE, f"{head}\n\n{table}")


if __name__ == "__main__":
    main()
