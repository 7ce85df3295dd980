"""A job over very many partitions: what its plan, one round of it and its reconciliation cost the driver.

    python -m bench.job_size [--partitions 1000 10000] [--write]

The brokers are one that is played, in a process of its own: it answers Metadata and ListOffsets for as many partitions
as are asked for. Nothing is fetched, and tasks end at once, so that what is left is the job: planning, ranges begun,
Spark's tasks, progress counted and saved. Spark is told that it has `CORES` cores, so that all partitions are underway
in one round, as on a cluster; two cores of this machine run its tasks.

`reconcile` compares a table of outcomes with the topic, also as a Spark job. The table has `ROWS` rows a partition, in
files of a day's jobs, all of whose offsets are there once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.pages import write_section
from kunicorn.kafka.versions import Api
from kunicorn.pipeline.backfill import Request, planned
from kunicorn.pipeline.range_job import RangeJob
from kunicorn.pipeline.reconcile import reconcile
from kunicorn.pipeline.shares import Shares
from kunicorn.pipeline.state import Runs, RunState, Tile, place, write_tiles
from kunicorn.pipeline.storage import Directory
from kunicorn.pipeline.tasks.executor_process import settings_file
from kunicorn.pipeline.tasks.range_outcomes import Summary
from kunicorn.positions import EARLIEST, OffsetRange
from kunicorn.settings import Settings, load
from tests.fakes.broker import Asked, FakeBroker, Reply, by_partition
from tests.system.members import toml

TOPIC = "orders"
RECORDS = 500
"""Offsets of each partition: one range."""
CORES = 400
ROWS = 100
"""Of each partition in the table that is reconciled."""
FILES = 100
"""Of that table."""
AT_ONCE = 32
"""Ranges of a task at most, as a handler with several records in hand has them."""
_HANDLER = "tests.system.pipeline.handlers:nothing"


class Reconciled(NamedTuple):
    """One size of `reconcile`. Seconds, and mebibytes at most."""

    partitions: int
    rows: int
    seconds: float
    driver: float
    jvm: float


class Measured(NamedTuple):
    """One size. Seconds, and mebibytes at most."""

    partitions: int
    plan: float
    round: float
    tasks: int
    manifest: float
    driver: float
    jvm: float


def serve(partitions: int) -> None:
    """Body of the broker's process: tells its port, and answers until it is killed."""

    async def served() -> None:
        async with FakeBroker() as broker:
            broker.lead([broker], {TOPIC: dict.fromkeys(range(partitions), (1, 0))})
            broker.script[Api.LIST_OFFSETS] = _offsets
            print(broker.port, flush=True)
            while True:
                await asyncio.sleep(1)
                broker.asked.clear()

    asyncio.run(served())


def _offsets(asked: Asked) -> Reply:
    return by_partition(asked, lambda each: {"offset": 0 if each.timestamp == EARLIEST else RECORDS})


@contextmanager
def played(partitions: int) -> Iterator[str]:
    """The broker's address."""
    command = [sys.executable, "-m", "bench.job_size", "--broker", str(partitions)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait(10)


@dataclass(frozen=True, slots=True)
class EndAtOnce:
    """Task whose ranges are done without a record being fetched."""

    def __call__(self, ranges: Sequence[OffsetRange]) -> Iterator[Summary]:
        """Called by Spark."""
        for whole in ranges:
            yield Summary(*whole, whole.stop, whole.size, 0, 0, None, "", 0.01)


def settings_at(address: str, directory: Path, spark: Mapping[str, str]) -> tuple[Path, Settings]:
    """Settings of a job, and their file."""
    config = directory / "config.toml"
    own = {"spark.ui.enabled": "false", "spark.driver.memory": "1g", **spark}
    config.write_text(
        toml(
            {
                "kafka": {"bootstrap_servers": [address]},
                "group": {"id": "shop", "topics": [TOPIC]},
                "handler": {"entrypoint": _HANDLER},
                "http": {"enabled": False},
                "pipeline": {"directory": str(directory / "runs"), "spark": own},
            }
        )
    )
    return config, load(config, {})


def reconciled(partitions: int, directory: Path) -> Reconciled:
    """One size of `reconcile`, in a process of its own. Starts Spark."""
    with played(partitions) as address:
        _, settings = settings_at(address, directory, {})
        table = place(str(directory / "table"))
        # What makes the table would be the driver's memory, too.
        subprocess.run([sys.executable, "-m", "bench.job_size", "--table", str(partitions), table.url], check=True)
        began = time.monotonic()
        found = reconcile(settings, table, "local[2]")
        took = time.monotonic() - began
        assert (found.covered, found.code) == (partitions * RECORDS, 0), found
        return Reconciled(partitions, partitions * ROWS, took, _peak("self"), _peak(_jvm()))


def write_table(partitions: int, table: Directory) -> None:
    """A table of outcomes that has every offset once."""
    size = RECORDS // ROWS
    tiles = [
        Tile(TOPIC, number, at * size, (at + 1) * size, size) for at in range(ROWS) for number in range(partitions)
    ]
    some = -(-len(tiles) // FILES)
    for number in range(FILES):
        write_tiles(table, tiles[number * some : (number + 1) * some], number)


def measured(partitions: int, directory: Path) -> Measured:
    """One size, in a process of its own. Starts Spark."""
    with played(partitions) as address:
        config, settings = settings_at(address, directory, {"spark.default.parallelism": str(CORES)})
        began = time.monotonic()
        plan = planned(settings, Request())
        planning = time.monotonic() - began
        runs = Runs(settings.pipeline.directory)
        run = runs.start("backfill", _HANDLER, Request().text, RunState(plan.ranges, topics=plan.topics), "size")
        begun: list[float] = []
        manifests: list[int] = []

        def save(state: RunState) -> None:
            runs.save(replace(run, state=state))
            newest = max((directory / "runs" / "size").glob("manifest-*.json"))
            manifests.append(newest.stat().st_size)

        def begin(state: RunState) -> None:
            begun.append(time.monotonic())
            save(state)

        job = RangeJob(
            name="backfill",
            settings=settings,
            file=settings_file(config, settings),
            directory=runs.outcomes("size"),
            handler=False,
            task=lambda again, limits: EndAtOnce(),
            next=Shares(settings.pipeline),
            at_once=AT_ONCE,
            begun=begin,
            ended=lambda state, summaries: save(state),
        )
        state = job(run.state, "local[2]", "size", lambda line: None)
        took = time.monotonic() - begun[0]
        assert state.finished, state.left[:3]
        assert state.counts.records == partitions * RECORDS
    tasks = min(partitions, max(CORES, -(-partitions // AT_ONCE)))
    return Measured(partitions, planning, took, tasks, max(manifests) / 2**20, _peak("self"), _peak(_jvm()))


def _peak(pid: int | str) -> float:
    """Most memory that the process has had, in mebibytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def _jvm() -> int:
    """The driver's JVM, which outlives a session."""
    from pyspark import SparkContext

    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    return int(process.pid)


def apart(what: str, partitions: int) -> list[Any]:
    """One size, measured by a process of its own: what it takes at most is its own, too."""
    command = [sys.executable, "-m", "bench.job_size", what, str(partitions)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
    found: list[Any] = json.loads(told)
    return found


def page_of_reconcile(found: Sequence[Reconciled]) -> str:
    """The second table of the section."""
    rows = [f"| {m.partitions:,} | {m.rows:,} | {m.seconds:.1f} | {m.driver:.0f} | {m.jvm:.0f} |" for m in found]
    text = (
        f"The driver of `kunicorn pipeline reconcile` over an outcome table of {ROWS} rows a partition in {FILES} "
        f"files, every offset there once. Its JVM runs the tasks, too, on two cores, so that what it has is no "
        f"driver's alone; the Python of the tasks is in processes of their own. Memory counts: seconds are of a "
        f"machine with other work."
    )
    head = "| partitions | rows | seconds | driver's Python MiB | JVM MiB |"
    return "\n".join([text, "", head, "|--:|--:|--:|--:|--:|", *rows])


def page(found: Sequence[Measured]) -> str:
    """The first table of the section."""
    few, many = found[0], found[-1]
    rows = [
        f"| {m.partitions:,} | {m.plan:.2f} | {m.tasks:,} | {m.round:.1f} | {m.manifest:.1f} | {m.driver:.0f} "
        f"| {m.jvm:.0f} |"
        for m in found
    ]
    ratio = f"{many.partitions // few.partitions} times the partitions take {many.round / few.round:.1f} times as long"
    text = (
        "`make bench-job-size`: the driver of a backfill whose partitions are all underway in one round. The brokers "
        "are played: nothing is fetched, and tasks end at once. What is left is the plan, Spark's tasks, and progress "
        f"that is counted and saved. Spark is told of {CORES} cores; two of this machine run its tasks, beside what "
        f"else ran. So times are high, and their ratio counts: {ratio}. Memory is the most that a process had."
    )
    head = "| partitions | plan s | tasks | round s | largest manifest MiB | driver's Python MiB | driver's JVM MiB |"
    return "\n".join([text, "", head, "|--:|--:|--:|--:|--:|--:|--:|", *rows])


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(prog="python -m bench.job_size", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--write", action="store_true", help="write the section in docs/benchmarks.md")
    parser.add_argument("--broker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--only-reconcile", action="store_true", help="leave out the backfill, and print")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--reconcile", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--table", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.broker is not None:
        serve(options.broker)
    elif options.one is not None:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(measured(options.one, Path(directory))))
    elif options.reconcile is not None:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(reconciled(options.reconcile, Path(directory))))
    elif options.table is not None:
        write_table(int(options.table[0]), Directory(options.table[1]))
    else:
        sizes = sorted(options.partitions)
        parts = [page_of_reconcile([Reconciled(*apart("--reconcile", each)) for each in sizes])]
        if not options.only_reconcile:
            parts.insert(0, page([Measured(*apart("--one", each)) for each in sizes]))
        text = "\n\n".join(parts)
        print(text)
        if options.write:
            write_section("A job over very many partitions", text)


if __name__ == "__main__":
    main()
