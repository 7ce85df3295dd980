"""How our cost grows: with partitions, workers, the size of records, the handler's time. `make bench-growth`

    python -m bench.peers.growth [--scale X] [--write]

One thing grows, the rest stays: two workers, a batch handler with nothing to do, 8 partitions, records of 200 bytes.
Every run is audited like those of `make bench`; a size that fails is told with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from bench.pages import paragraph, write_section
from bench.peers import broker, run
from bench.peers.contenders import BATCH_2, Contender, Setting, kunicorns
from bench.peers.environments import Unavailable
from bench.peers.loads import Load, fill
from bench.peers.page import PICTURES, conditions, rows_of
from bench.peers.plan import loops_of_work
from bench.peers.plot import Point, curve
from tests.kafka import KafkaCluster

TITLE = "How cost grows"
ROUNDS, SECONDS = 3, 8.0
MB = 1_000_000


class Step(NamedTuple):
    """One point of a curve."""

    curve: str
    at: float
    load: Load
    who: Contender
    work_us: float


CURVES = {
    "partitions": "partitions",
    "workers": "workers",
    "size": "bytes of a record",
    "work": "µs of the handler's work on a record",
}


def steps(scale: float) -> Iterator[Step]:
    """All points; loads that several of them share are equal, and filled once."""
    many = int(2 * MB * scale)
    small = Load(8, 200, "none", many)
    for partitions in (8, 64, 500, 2000, 4000):
        yield Step("partitions", partitions, Load(partitions, 200, "none", many), BATCH_2, 0.0)
    for workers in (1, 2, 4, 8, 16):
        yield Step("workers", workers, Load(16, 200, "none", many), kunicorns("batch", workers), 0.0)
    for size in (50, 200, 1_000, 10_000, 100_000, 900_000):
        yield Step(
            "size", size, Load(8, size, "none", min(many, max(400, int(800 * MB * scale) // size))), BATCH_2, 0.0
        )
    for work_us in (0.0, 5.0, 20.0, 100.0, 1000.0):
        yield Step("work", work_us, small, BATCH_2, work_us)


REASONS = {
    "partitions": "Up to some hundreds cost a tenth. Beyond, librdkafka's thread looks at each of its partitions, two "
    "locks and a clock each, whenever its socket has something for it: by `perf` sixty times for a response of 15 MB "
    "and nearly half of that thread's time at 2,000, for a bare client as for ours. The broker goes through them once "
    "a fetch, and the client asks for one at a time. A larger `fetch.max.bytes` helps (workers.memory_per_worker_mb).",
    "workers": "A worker has two busy threads, the client's and the handler's: one worker and the broker fill two "
    "cores. From then on each worker adds a client with threads of its own, smaller fetches, and one more turn on the "
    "same cores. Where there are more cores the bend comes later. Memory grows with the clients, each of which fetches "
    "ahead for its worker.",
    "size": "Up to a few hundred bytes a record costs what its handling costs, whatever its size. Beyond a thousand it "
    "is the bytes: one to two gigabytes a second go through the loopback and are copied into Python's memory, by two "
    "workers and the broker on two cores.",
    "work": "Work here is decoding JSON, which takes some microseconds by itself, and a loop for the time said: from "
    "the first microseconds on it is all that counts.",
}
"""Why each curve bends where it does."""


class Found(NamedTuple):
    """What a step came to: medians; `said` is what the audit found, or why there are no figures."""

    step: Step
    rate: float
    cpu_us: float
    memory_mb: float
    said: str


def measure(kafka: KafkaCluster, step: Step, loops: float, number: int) -> Found:
    """All rounds of one step. Blocks."""
    kind, turns = ("work", max(1, round(loops * step.work_us))) if step.work_us else ("nothing", 0)
    figures: list[run.Figures] = []
    said = ""
    for turn in range(ROUNDS):
        with run.scratch() as directory:
            group = f"growth-{number}-{turn}"
            load = step.load
            setting = Setting(kafka.bootstrap, load.topic, group, load.partitions, load.records, kind, turns, directory)
            try:
                figures.append(run.measure(step.who, setting, SECONDS, load.produced))
                said = said or figures[-1].finding
            except (run.Failed, Unavailable) as error:
                said = str(error)
    if not figures:
        return Found(step, 0.0, 0.0, 0.0, said)
    rate, cpu_us = median(each.rate for each in figures), median(each.cpu_us for each in figures)
    memory_mb = median(each.memory_mb for each in figures)
    return Found(step, rate, cpu_us, memory_mb, said)


def main() -> int:
    """Measure, print; exit 1 where a run failed or an audit found something."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.growth", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times as many records (default: 1)")
    parser.add_argument("--write", action="store_true", help="put tables and pictures into docs/")
    options = parser.parse_args()
    found: list[Found] = []
    loops = loops_of_work() / 20
    with broker.KINDS[broker.SHIPPED].cluster() as kafka:
        filled: set[Load] = set()
        try:
            for number, step in enumerate(steps(options.scale)):
                if step.load not in filled:
                    fill(kafka, step.load)
                    filled.add(step.load)
                found.append(measure(kafka, step, loops, number))
                print(told(found[-1]), flush=True)
        except KeyboardInterrupt:
            print("interrupted: what there is so far follows", flush=True)
    if options.write:
        draw(found)
        write_section(TITLE, page(found))
    return 1 if any(each.said for each in found) else 0


def told(found: Found) -> str:
    """A line of progress."""
    figures = f"{found.rate:,.0f}/s, {found.cpu_us:.2f} µs CPU, {found.memory_mb:.0f} MB"
    return f"{found.step.at:g} {CURVES[found.step.curve]}: {figures} {found.said}"


def draw(found: list[Found]) -> None:
    """A picture for each curve."""
    for name, axis in CURVES.items():
        points = [
            Point(each.step.at, each.rate, each.cpu_us) for each in found if each.step.curve == name and each.rate
        ]
        (PICTURES / f"growth-{name}.svg").write_text(curve(f"Records per second and CPU by {axis}", axis, points))


def page(found: list[Found]) -> str:
    """The section of docs/benchmarks.md."""
    told = "One thing grows, the rest stays: two workers, a batch handler with nothing to do, 8 partitions (16 for "
    told += "workers), 200 bytes. Medians of three rounds; rates, CPU, memory and audit as above."
    parts = [conditions("make bench-growth", [BATCH_2]), paragraph(told)]
    for name, axis in CURVES.items():
        parts += [f"### By {axis}", f"![{axis}](pictures/growth-{name}.svg)", paragraph(REASONS[name])]
        head = [[axis, "records/s", "CPU µs a record", "MB", "audit"], [*["--:"] * 4, "---"]]
        parts.append(rows_of([*head, *(_row(each) for each in found if each.step.curve == name)]))
    return "\n\n".join(parts)


def _row(found: Found) -> list[str]:
    figures = [f"{found.rate:,.0f}", f"{found.cpu_us:.2f}", f"{found.memory_mb:.0f}"] if found.rate else [""] * 3
    return [f"{found.step.at:g}", *figures, found.said or "once each"]


if __name__ == "__main__":
    sys.exit(main())
