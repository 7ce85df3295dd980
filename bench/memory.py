"""How much memory a worker takes whose handler cannot keep up, against `memory_per_worker_mb`.

    python -m bench.memory [--brokers N] [--write]

The worker is the real one; only the supervisor is played. Its handler never returns from the first record, so that
everything the client prefetches stays: the worst there is. What counts is the peak of the resident memory (`VmHWM`),
pages shared with the template included.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench.pages import paragraph, write_section
from bench.quick import start_worker
from bench.topics import create
from kunicorn.ipc.messages import Configure
from kunicorn.librdkafka.properties import client_properties
from tests.kafka import KafkaCluster
from tests.kafka.cluster import VERSION
from tests.system.bare_worker.rig import WorkerProcess, configuration

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


FORMS: dict[str, dict[str, str]] = {
    "librdkafka, records": {"fetcher": "librdkafka"},
    "own fetcher, columns": {"fetcher": "own", "mode": "arrow"},
}
"""Who fetches, and what the handler gets."""

LOADS = tuple(
    Load(size, partitions, records)
    for size, records in ((20, 2_000_000), (200, 600_000), (MB, 240))
    for partitions in (8, 2000)
)


def fill(bootstrap: str, topic: str, load: Load) -> None:
    """Write the records, one partition after the other: in turns there would be a batch for each few of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, topic, load.partitions, {"max.message.bytes": str(2 * MB)})
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "message.max.bytes": 2 * MB})
    value = b"x" * load.value_bytes
    for number in range(load.records):
        while True:
            try:
                producer.produce(topic, value, partition=number * load.partitions // load.records)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise SystemExit(f"{bootstrap} did not take the records of {topic} within two minutes")


def configured(bootstrap: str, topic: str, megabytes: int, form: str) -> Configure:
    """As the supervisor would do it."""
    client = client_properties(
        bootstrap_servers=bootstrap.split(","), client_id="bench", group_id="bench", isolation_level="read_uncommitted",
        client_rack=None, security={}, extra={}, memory_per_worker_mb=megabytes,
        brokers=bootstrap.count(",") + 1,
    )  # fmt: skip
    return configuration(bootstrap, "bench.quick_handlers:never_return", [topic], client=client, **FORMS[form])


def peak_mb(configure: Configure, topic: str, partitions: int) -> int:
    """The worker's peak, as soon as it has stopped growing."""
    with ExitStack() as stack:
        worker = start_worker(stack, configure)
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


class Row(NamedTuple):
    """Peaks by budget."""

    load: Load
    form: str
    peaks: list[int]

    def __str__(self) -> str:
        return f"| {self.load} | {self.form} | {' | '.join(map(str, self.peaks))} |"

    @property
    def good(self) -> bool:
        """Whether every budget was kept."""
        return all(peak <= budget for peak, budget in zip(self.peaks, BUDGETS_MB, strict=True))


def measure(bootstrap: str) -> list[Row]:
    """Every load under every budget."""
    rows = []
    for number, load in enumerate(LOADS):
        topic = f"bench-memory-{number}"
        fill(bootstrap, topic, load)
        for form in FORMS:
            configures = [configured(bootstrap, topic, budget, form) for budget in BUDGETS_MB]
            rows.append(Row(load, form, [peak_mb(configure, topic, load.partitions) for configure in configures]))
            print(rows[-1], flush=True)
    return rows


def baselines(bootstrap: str) -> list[int]:
    """Peaks of workers that have nothing to fetch, by form."""
    topic = "bench-memory-empty"
    create(AdminClient({"bootstrap.servers": bootstrap}), topic, 1)
    return [peak_mb(configured(bootstrap, topic, BUDGETS_MB[0], form), topic, 1) for form in FORMS]


def page(rows: list[Row], empty: list[int], brokers: int) -> str:
    """The section of docs/benchmarks.md."""
    head = paragraph(
        f"`make bench-memory`, {datetime.now():%Y-%m-%d}: peak resident memory in MB by `memory_per_worker_mb`. "
        f"{brokers} brokers, each with its share of the partitions; Kafka {VERSION}, confluent-kafka "
        f"{confluent_kafka.__version__}. The handler never returns from its first record, so the client fetches all "
        f"that it may hold. A worker with nothing to fetch takes {' and '.join(map(str, empty))} MB (librdkafka; own "
        "fetcher, with pyarrow), those pages included that it shares with its template; what a handler's own objects "
        "take comes on top."
    )
    table = [
        f"| records | form | {' | '.join(f'{budget} MB' for budget in BUDGETS_MB)} |",
        "| --- | --- |" + " --: |" * 3,
    ]
    return "\n\n".join((head, "\n".join([*table, *map(str, rows)])))


def main() -> int:
    """Measure, print, and exit 1 if a budget was not kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    with KafkaCluster(options.brokers) as kafka:
        empty = baselines(kafka.bootstrap)
        rows = measure(kafka.bootstrap)
    if options.write:
        write_section(TITLE, page(rows, empty, options.brokers))
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
