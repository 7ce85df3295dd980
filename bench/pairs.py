"""Two commits in turns: what has a change cost? `make bench-pairs OLD=commit`

    python -m bench.pairs --old COMMIT [--pairs N] [--only features | quick | export [--write]]

`features`: CPU time a record of each feature around a handler that does nothing, in one thread, no broker. `quick`:
CPU time a record of a worker that drains a topic, all its threads counted. `export`, which is not part of the whole:
time a record of `kunicorn pipeline export` of JSON orders on two cores, start-up apart.

A pair measures one after the other, either first by turns; neighbours disturb both alike. The ratio is the median of
the pairs' ratios, with an interval that has the true one in it in 95 of 100 series (of resampled pairs). Exit status 1
where some ratio is above 1.02 for certain.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.fetchers import fill as fill_with_orders
from bench.pages import paragraph, write_section
from bench.quick import fill
from tests.kafka import KafkaCluster
from tests.system.members import group_settings, toml

TITLE = "An export beside the one before columns"
ROOT = Path(__file__).parents[1]
_TOPIC = "pairs"
_RECORDS = 1_000_000
_LIMIT = 1.02
_SAMPLES = 2_000

_FEATURES = """
import json
from confluent_kafka import Message
from bench import features as f
some = f.messages()
two = [Message(topic="tu"[at > f.RECORDS // 2], partition=0, offset=at, value=b"v") for at in range(f.RECORDS)]
every = f.features(some, two)
best = dict.fromkeys(every, float("inf"))
for _ in range(20):
    for name, call in every.items():
        best[name] = min(best[name], f.nanoseconds(call))
print(json.dumps(best))
"""
_QUICK = f"""
import json, sys
from bench import quick
own = dict(log_level="error")
batch = dict(mode="batch", batch_max_records=500)
forms = {{"record": ("count", own), "batch": ("count_batch", own | batch)}}
taken = {{}}
for name, (handler, more) in forms.items():
    configure = quick.configuration(sys.argv[1], "bench.quick_handlers:" + handler, ["{_TOPIC}"], **more)
    taken[name + " handler, a worker and its client"] = quick.worker_rate(configure, "{_TOPIC}", {_RECORDS}).cpu_ns
print(json.dumps(taken))
"""
_EXPORT = """
import json, subprocess, sys, time
from kunicorn.commands.cli import main

def seconds(directory, topic):
    began = time.monotonic()
    sys.argv = ["kunicorn", "pipeline", "export", f"{directory}/lake-{topic}-{time.time_ns()}"]
    sys.argv += ["--config", f"{directory}/{topic}.toml", "--master", "local[2]"]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    return time.monotonic() - began

directory, few, many = sys.argv[1:]
seconds(directory, few)
taken = seconds(directory, many) - seconds(directory, few)
print(json.dumps({"an export to Parquet": taken / (int(many) - int(few)) * 1e9}))
"""
"""Programs for either commit: what they use of `bench`, and of the commands, has been there since the first of them."""
_FEW, _MANY = 200_000, 4_000_000
"""Records of the topics that are exported: by the difference the start of Spark does not count."""

Pair = tuple[Mapping[str, float], Mapping[str, float]]
"""Nanoseconds a record by name: the old commit's, and the new one's."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """That commit's files, in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="kunicorn-pairs-") as path:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", path], input=archive.stdout, check=True)
        yield Path(path)


def measured(where: Path, program: str, *arguments: str) -> Mapping[str, float]:
    """What the program prints, with the code of that folder. Raises `CalledProcessError`."""
    env = {**os.environ, "PYTHONPATH": f"{where / 'service'}:{where}"}
    output = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=where, env=env, stdout=subprocess.PIPE, check=True
    ).stdout
    found: Mapping[str, float] = json.loads(output.splitlines()[-1])
    return found


def in_turns(measure: Callable[[Path], Mapping[str, float]], old: Path, pairs: int) -> list[Pair]:
    """So many pairs, after one that warms up and does not count."""
    found: list[Pair] = []
    for number in range(-1, pairs):
        if number % 2:
            new = measure(ROOT)
            pair = measure(old), new
        else:
            pair = measure(old), measure(ROOT)
        if number >= 0:
            found.append(pair)
    return found


def exported(directory: Path, bootstrap: str) -> Sequence[str]:
    """Topics to be exported, filled, and settings for each; the arguments of `_EXPORT`."""
    for records in (_FEW, _MANY):
        fill_with_orders(bootstrap, str(records), records, "none")
        settings = group_settings(bootstrap, [str(records)], "export", "bench.quick_handlers:count")
        settings["pipeline"] = {"directory": str(directory / "runs")}
        (directory / f"{records}.toml").write_text(toml(settings))
    return [str(directory), str(_FEW), str(_MANY)]


def interval(ratios: Sequence[float], chance: random.Random) -> tuple[float, float]:
    """Of the median: the middle 95 of 100 medians of resampled ratios."""
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(_SAMPLES))
    return medians[_SAMPLES // 40], medians[-_SAMPLES // 40]


class Compared(NamedTuple):
    """What two commits came to by one name."""

    old: float
    new: float
    """Nanoseconds a record, medians."""
    ratio: float
    """The median of the pairs' ratios."""
    low: float
    high: float
    """Its interval."""


def compared(name: str, pairs: Sequence[Pair], chance: random.Random) -> Compared:
    """Of all pairs, by that name."""
    ratios = [new[name] / old[name] for old, new in pairs]
    old, new = (median(pair[at][name] for pair in pairs) for at in (0, 1))
    return Compared(old, new, median(ratios), *interval(ratios, chance))


def show(console: Console, pairs: Sequence[Pair]) -> bool:
    """The table; whether nothing is slower for certain by more than two in a hundred."""
    table = Table("what", "old, ns", "new, ns", "new / old", "95 of 100")
    chance, good = random.Random(1), True
    for name in [each for each in pairs[0][1] if each in pairs[0][0]]:
        found = compared(name, pairs, chance)
        good &= found.low <= _LIMIT
        times = f"{found.old:.0f}", f"{found.new:.0f}", f"{found.ratio:.3f}"
        table.add_row(name.replace("[", r"\["), *times, f"{found.low:.3f} to {found.high:.3f}")
    console.print(table)
    return good


def page(old: str, pairs: Sequence[Pair]) -> str:
    """The section of docs/benchmarks.md on exports."""
    (name,) = pairs[0][0]
    found = compared(name, pairs, random.Random(1))
    text = (
        f"`make bench-pairs OLD={old} ONLY=export`, {date.today()}: `kunicorn pipeline export` of {_MANY:,} JSON "
        f"orders of 200 bytes on two cores, at the last commit that exported by messages and at this one, in turns, "
        f"{len(pairs)} pairs. The start of Spark does not count. It took {found.old:.0f} ns a record, and takes "
        f"{found.new:.0f}. The ratio is {found.ratio:.3f}, and in 95 of 100 such series between {found.low:.3f} and "
        f"{found.high:.3f}. The goal is a third."
    )
    return paragraph(text)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description=__doc__)
    parser.add_argument("--old", required=True, help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", choices=["features", "quick", "export"])
    parser.add_argument("--write", action="store_true", help=f"of exports, into docs/benchmarks.md, section {TITLE}")
    options = parser.parse_args()
    if options.write and options.only != "export":
        parser.error("--write is for exports: add --only export")
    console, good = Console(width=130), True
    with checked_out(options.old) as old:
        if options.only == "export":
            with KafkaCluster() as kafka, tempfile.TemporaryDirectory(prefix="kunicorn-lakes-") as directory:
                arguments = exported(Path(directory), kafka.bootstrap)
                found = in_turns(lambda where: measured(where, _EXPORT, *arguments), old, options.pairs)
            if options.write:
                write_section(TITLE, page(options.old, found))
            return 0 if show(console, found) else 1
        if options.only != "quick":
            good &= show(console, in_turns(lambda where: measured(where, _FEATURES), old, options.pairs))
        if options.only != "features":
            with KafkaCluster() as kafka:
                fill(kafka.bootstrap, _TOPIC, _RECORDS)
                found = in_turns(lambda where: measured(where, _QUICK, kafka.bootstrap), old, options.pairs)
            good &= show(console, found)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
