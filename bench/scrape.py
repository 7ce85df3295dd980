"""What a scrape of /metrics costs by the number of partitions, and how late it makes the supervisor's event loop.

    python -m bench.scrape [--partitions 64 1000 2000] [--write]

The real server with its real pages; the scraper is another process. "latest turn" is how late a timer of 5 ms fired at
worst while pages were rendered: heartbeats leave from the same loop. `--write` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import uvloop
from rich.console import Console

from bench.pages import write_section
from kunicorn.observe.http import Server
from kunicorn.observe.metrics import Metrics
from kunicorn.settings import HttpSettings
from tests.unit.observe.snapshots import partition, status

GOAL = 0.1
"""Seconds for 1,000 partitions."""
_SCRAPES = 20
_BEAT = 0.005
_FORMATS = {"text": "", "OpenMetrics": "application/openmetrics-text"}
_SCRAPER = """
import sys, time, urllib.request
url, accept, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(count):
    began = time.perf_counter()
    size = len(urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=30).read())
    print(time.perf_counter() - began, size)
"""


class Measured(NamedTuple):
    """One size in one format. Seconds; bytes."""

    partitions: int
    form: str
    size: int
    median: float
    longest: float
    late: float


async def measure(partitions: int) -> list[Measured]:
    """Both formats."""
    snapshot = status(partitions=tuple(partition(number) for number in range(partitions)))
    settings = HttpSettings(host="127.0.0.1", port=0, partition_metrics_max=1_000_000)
    server = Server(settings, lambda: snapshot, Metrics())
    await server.start()
    try:
        return [await _scraped(server.port, partitions, form) for form in _FORMATS]
    finally:
        await server.stop()


async def _scraped(port: int, partitions: int, form: str) -> Measured:
    late = [0.0]
    ticking = asyncio.create_task(_tick(late))
    scraper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _SCRAPER, f"http://127.0.0.1:{port}/metrics", _FORMATS[form], str(_SCRAPES)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await scraper.communicate()
    ticking.cancel()
    rows = [line.split() for line in output.decode().splitlines()]
    seconds = [float(row[0]) for row in rows]
    return Measured(partitions, form, int(rows[0][1]), statistics.median(seconds), max(seconds), max(late))


async def _tick(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(_BEAT)
        late[0] = max(late[0], time.perf_counter() - began - _BEAT)


def table(rows: Sequence[Measured]) -> str:
    """Markdown."""
    head = "| partitions | format | page kB | median ms | longest ms | latest turn ms |"
    body = [
        f"| {r.partitions:,} | {r.form} | {r.size / 1000:.0f} | {r.median * 1000:.0f} | {r.longest * 1000:.0f} "
        f"| {r.late * 1000:.0f} |"
        for r in rows
    ]
    return "\n".join([head, "| --: | --- | --: | --: | --: | --: |", *body])


def main() -> int:
    """0 if 1,000 partitions are within the goal."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--partitions", type=int, nargs="+", default=[64, 1000, 2000])
    arguments.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    asked = arguments.parse_args()
    rows: list[Measured] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for partitions in asked.partitions:
            rows += runner.run(measure(partitions))
    Console(width=100).print(table(rows), markup=False)
    if asked.write:
        where = f"Python {sys.version.split()[0]}, {os.cpu_count()} cores"
        intro = (
            f'`python -m bench.scrape --write`: {_SCRAPES} scrapes by another process, {where}. "latest turn" is '
            f"how late a timer of the supervisor's event loop fired meanwhile, at worst."
        )
        write_section("What a scrape costs", f"{intro}\n\n{table(rows)}")
    return int(any(row.median > GOAL for row in rows if row.partitions == 1000))


if __name__ == "__main__":
    sys.exit(main())
