"""One member with very many partitions on a real broker: how long it takes to start, and what it costs idle.

    python -m bench.scale [--partitions 1000 3000 10000] [--fetchers librdkafka own] [--workers N]
                          [--write]

"first start": a new group, every start offset is chosen by policy and committed; "next start": every offset is
fetched. Both count from the first JoinGroup until the last partition is running. `--write` puts the table into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from rich.console import Console
from rich.table import Table

import kunicorn
from bench.pages import paragraph, write_section
from bench.topics import create
from tests.kafka import KafkaCluster
from tests.kafka.cluster import VERSION
from tests.system.members import MemberProcess, Members, group_settings

START_GOAL = 10.0
"""Seconds for 10,000 partitions, from the first JoinGroup on."""
IDLE_GOAL = 2.0
"""Per cent of a core for 1,000 partitions, in the supervisor."""
IDLE_WORKER_GOAL = 3.0
"""Per cent of a core for 10,000 partitions, in each worker over our own fetcher."""
FETCHERS = ("librdkafka", "own")
IDLE_SECONDS = 20.0
"""Two rounds of asking for log ends fit in."""


class Measured(NamedTuple):
    """One size. Seconds; per cent of one core; mebibytes."""

    partitions: int
    fetcher: str
    first_start: float
    next_start: float
    idle: float
    idle_worker: float
    """The mean of all of them."""
    stop: float
    memory: float

    @property
    def good(self) -> bool:
        """Whether the goals are met that are set for this size."""
        starts = self.partitions > 10_000 or max(self.first_start, self.next_start) <= START_GOAL
        idles = self.fetcher != "own" or self.partitions > 10_000 or self.idle_worker <= IDLE_WORKER_GOAL
        return starts and idles and (self.partitions > 1_000 or self.idle <= IDLE_GOAL)


COLUMNS: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("partitions", lambda m: f"{m.partitions:,}"),
    ("fetcher", lambda m: m.fetcher),
    ("first start s", lambda m: f"{m.first_start:.2f}"),
    ("next start s", lambda m: f"{m.next_start:.2f}"),
    ("supervisor idle, % of a core", lambda m: f"{m.idle:.2f}"),
    ("a worker idle, % of a core", lambda m: f"{m.idle_worker:.2f}"),
    ("stop s", lambda m: f"{m.stop:.2f}"),
    ("supervisor MiB", lambda m: f"{m.memory:.0f}"),
)


def main() -> int:
    """Measure, print, and exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 3_000, 10_000])
    parser.add_argument("--fetchers", nargs="+", choices=FETCHERS, default=FETCHERS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    console = Console(width=120)
    found = []
    for partitions, fetcher in product(options.partitions, options.fetchers):
        found.append(measure(partitions, fetcher, options.workers))
        console.print(" · ".join(f"{name} {show(found[-1])}" for name, show in COLUMNS))
    table = Table(*(name for name, _ in COLUMNS))
    for row in found:
        table.add_row(*(show(row) for _, show in COLUMNS))
    console.print(table)
    if options.write:
        write_section("Many partitions in one member", page(found, options.workers))
    return 0 if all(row.good for row in found) else 1


def page(found: list[Measured], workers: int) -> str:
    """The section of docs/benchmarks.md."""
    rows = [[name for name, _ in COLUMNS], ["--:"] * len(COLUMNS)]
    rows += [[show(row) for _, show in COLUMNS] for row in found]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    paragraphs = (
        f"`python -m bench.scale --write`, {datetime.now():%Y-%m-%d}: kunicorn {kunicorn.__version__}, Python "
        f"{platform.python_version()}, confluent-kafka {confluent_kafka.__version__}, Apache Kafka {VERSION}, "
        f"{os.cpu_count()} cores shared by broker and member; one member, {workers} workers, one topic; the "
        f"broker's data on {filesystem()}.",
        "A start counts from the first JoinGroup until the last partition is running: in a new group every start "
        "offset is chosen by `auto_offset_reset` and committed, in a known one all are fetched. Idle is the mean of "
        f"{IDLE_SECONDS:.0f} s with heartbeats, evidence from the workers, commits and log ends going on.",
        f"Goals: {START_GOAL:.0f} s to start 10,000 partitions, {IDLE_GOAL:g} % of a core in the supervisor for 1,000 "
        f"idle ones, {IDLE_WORKER_GOAL:g} % in a worker over our own fetcher for 10,000.",
    )
    head, *notes = map(paragraph, paragraphs)
    return "\n\n".join((head, table, *notes))


def filesystem() -> str:
    """Of what kind it is: a broker makes a thousand logs on a RAM disk in the time of a hundred elsewhere."""
    command = ["stat", "--file-system", "--format=%T", tempfile.gettempdir()]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(partitions: int, fetcher: str, workers: int) -> Measured:
    """A broker of its own with one topic of this size; two starts of the same group."""
    with KafkaCluster() as kafka, tempfile.TemporaryDirectory() as directory:
        create(kafka.admin(), "wide", partitions)
        settings = group_settings(kafka.bootstrap, ["wide"], "wide", workers=workers)
        settings["log"] = {"level": "info"}
        settings["kafka"]["fetcher"] = fetcher
        members = Members(Path(directory), settings, {})
        try:
            first = members.start()
            first_start = started(first, partitions)
            first.stop(120)
            second = members.start()
            next_start = started(second, partitions)
            idle, idle_workers = idle_cost(second)
            idle_worker = idle_workers / workers
            memory = resident(second.pid)
            began = time.monotonic()
            if code := second.stop(120):
                raise SystemExit(f"the member exited with {code}:\n{second.output()[-2000:]}")
            stop = time.monotonic() - began
            return Measured(partitions, fetcher, first_start, next_start, idle, idle_worker, stop, memory)
        finally:
            members.close()


def started(member: MemberProcess, partitions: int) -> float:
    """Seconds from the first JoinGroup until all run."""
    member.wait(lambda: "joining: " in member.output(), "a first JoinGroup", 60)
    began = time.monotonic()
    member.wait(lambda: running(member) == partitions, f"{partitions} running partitions", 300)
    return time.monotonic() - began


def running(member: MemberProcess) -> int:
    """From the metrics: `/status` tells of every partition, which takes as long as what is measured."""
    sample = re.search(r'^kunicorn_partitions{.*state="running"} (\S+)', member.get("/metrics")[1], re.MULTILINE)
    return int(float(sample[1])) if sample else 0


def idle_cost(member: MemberProcess) -> tuple[float, float]:
    """Per cent of a core: the supervisor, and all workers together."""
    workers = [worker["pid"] for worker in member.workers()]
    time.sleep(5.0)
    before, began = [cpu_seconds(pid) for pid in (member.pid, *workers)], time.monotonic()
    time.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - began
    used = [(cpu_seconds(pid) - then) / seconds * 100 for pid, then in zip((member.pid, *workers), before, strict=True)]
    return used[0], sum(used[1:])


def cpu_seconds(pid: int) -> float:
    """CPU time of all the process's threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(pid: int) -> float:
    """Resident memory in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
