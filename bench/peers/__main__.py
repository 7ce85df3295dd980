"""Ours beside every peer: throughput, cost, memory and delays, audited, in one run. `make bench`

    python -m bench.peers [--quick] [--only WORD …] [--kinds KIND …] [--first N] [--scale X] [--keep]
                         [--broker shipped|small] [--write] [--page]

Contenders live in environments of their own, made on the first run. One that cannot be had or fails is told in the
tables with the reason. Every run is on disk as soon as it is over, so that Ctrl-C loses the run at hand only; `--page`
writes the section from what is there, and `--keep` keeps of it what is not measured now: cases that something disturbed
are measured anew, all their rounds and contenders. Neighbours on the machine move single figures by a third: read the
ratios.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.pages import write_section
from bench.peers import broker, delays, run
from bench.peers.contenders import Contender, Setting
from bench.peers.environments import Unavailable
from bench.peers.goals import Goal, goals
from bench.peers.loads import fill
from bench.peers.page import KINDS, page, page_of_small, pictures, under
from bench.peers.plan import Plan, Series, full, loops_of_work, quick
from bench.peers.results import Measured, Results
from bench.topics import create
from tests.kafka import KafkaCluster

REPORTS = Path(__file__).parents[2] / "reports"


def main() -> int:
    """Measure, print, and exit 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a dozen minutes: fewer topics, contenders and rounds")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="contenders whose title has one of these")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="of handlers (default: all)")
    parser.add_argument("--first", type=int, metavar="N", help="so many series of the plan; narrow goals come first")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times as many records (default: 1)")
    parser.add_argument("--keep", action="store_true", help="what the last run left of what is not measured now")
    parser.add_argument("--write", action="store_true", help="put tables and pictures into docs/")
    parser.add_argument("--page", action="store_true", help="measure nothing: what the last run left")
    parser.add_argument("--broker", choices=broker.KINDS, default=broker.SHIPPED, help="%(choices)s")
    parser.add_argument("--results", type=Path, help="default: reports/peers-BROKER.json")
    options = parser.parse_args()
    beside = broker.KINDS[options.broker]
    results_at = options.results or REPORTS / f"peers-{options.broker}.json"
    if options.page and not results_at.exists():
        parser.error(f"--page: there is no {results_at}; measure first, without --page")
    plan = (quick if options.quick else full)(options.scale)
    results = Results.read(results_at) if options.page or options.keep else Results(results_at)
    results.under = under()
    if not options.page:
        try:
            wanted = replace(plan, series=plan.series[: options.first])
            measure(wanted, results, options.only, options.kinds, beside)
        except KeyboardInterrupt:
            print("interrupted: what there is so far follows", flush=True)
    reached = goals(plan, results)
    show(reached)
    if options.write and options.broker == broker.LITTLE:
        write_section(beside.title, page_of_small(plan, results, reached))
    elif options.write:
        pictures(plan, results)
        write_section(beside.title, page(plan, results, reached))
    return 1 if any(goal.reached is False for goal in reached) else 0


def measure(plan: Plan, results: Results, only: Iterable[str], kinds: Collection[str], beside: broker.Kind) -> None:
    """All runs of the plan. Blocks."""
    words = [word.lower() for word in only]
    runs = [
        (series, number, who)
        for series, number, who in plan.runs()
        if series.case.kind in kinds and (not words or any(word in who.title.lower() for word in words))
    ]
    results.forget({(series.case, who) for series, _, who in runs})
    loops, unavailable = loops_of_work(), prepared({who for _, _, who in runs})
    with beside.cluster() as kafka:
        for load in dict.fromkeys(series.case.load for series, _, _ in runs if series.case.kind != "delay"):
            print(f"filling {load}: {load.records:,} records", flush=True)
            fill(kafka, load)
        for place, (series, number, who) in enumerate(runs):
            found = unavailable.get(who) or one(kafka, series, who, loops, f"bench-{place}")
            results.add(series.case, who, number, found)
            print(
                f"{place + 1}/{len(runs)} {series.case.kind}, {series.case.load}: {who.title}: {told(found)}",
                flush=True,
            )


def prepared(taking_part: Iterable[Contender]) -> dict[Contender, str]:
    """Make what they need; those that cannot take part, and why."""
    unavailable = {}
    setting = Setting("127.0.0.1:1", "none", "none", 1, 1, "nothing", 0, Path())
    for who in sorted(taking_part, key=lambda each: each.title):
        began = time.monotonic()
        try:
            with run.scratch() as directory:
                who.command(setting._replace(directory=directory))
        except Unavailable as error:
            unavailable[who] = str(error)
            print(f"{who.title} cannot take part: {error}", flush=True)
        else:
            if (seconds := time.monotonic() - began) > 1:
                print(f"{who.title} is ready to start after {seconds:.0f} s", flush=True)
    return unavailable


def one(kafka: KafkaCluster, series: Series, who: Contender, loops: int, name: str) -> Measured | str:
    """One run, or why it came to nothing. Whatever a contender does, the others have their turns."""
    load, kind = series.case
    with run.scratch() as directory:
        setting = Setting(kafka.bootstrap, load.topic, name, load.partitions, load.records, kind, loops, directory)
        try:
            if kind == "delay":
                create(kafka.admin(), name, load.partitions)
                return delays.measure(who, setting._replace(topic=name), load.produced)
            return run.measure(who, setting, series.seconds, load.produced)
        except run.Failed as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def told(found: Measured | str) -> str:
    """A line of progress."""
    match found:
        case str():
            return f"FAILED: {found}"
        case delays.Delays():
            return f"p50 {found.p50:.2f} ms, p99 {found.p99:.2f} ms, p99.9 {found.p999:.2f} ms {found.finding}"
        case _:
            return f"{found.rate:,.0f}/s, {found.cpu_us:.2f} µs CPU, {found.memory_mb:.0f} MB {found.finding}"


def show(reached: Iterable[Goal]) -> None:
    """The goals, on the terminal."""
    table = Table("goal", "must reach", "measured", "")
    for goal in reached:
        table.add_row(goal.text, goal.wanted, goal.measured, goal.verdict)
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
