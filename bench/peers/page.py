"""The section of docs/benchmarks.md and its pictures."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from bench.pages import PAGE, paragraph
from bench.peers import broker
from bench.peers import contenders as c
from bench.peers.contenders import CONTENDERS, Contender
from bench.peers.goals import Goal
from bench.peers.plan import HEADLINE, Case, Plan
from bench.peers.plot import Bar, bars
from bench.peers.results import Results
from tests.kafka.cluster import VERSION

PICTURES = PAGE.parent / "pictures"
KINDS = {
    "nothing": "nothing to do",
    "work": "JSON and about 20 µs of CPU",
    "wait": "5 ms of waiting",
    "delay": "1,000 records a second",
}


def page(plan: Plan, results: Results, reached: Sequence[Goal]) -> str:
    """All of it."""
    parts = [
        conditions("make bench", CONTENDERS),
        _goal_table(reached),
        paragraph(_rules()),
        paragraph(_ALLOCATOR),
        paragraph(_LIMITS),
    ]
    for picture, title in (("peers-rate.svg", "Records per second"), ("peers-cpu.svg", "CPU per record")):
        parts.append(f"![{title}](pictures/{picture})")
    return "\n\n".join([*parts, *_tables(plan, results)])


def page_of_small(plan: Plan, results: Results, reached: Sequence[Goal]) -> str:
    """What was measured beside a small broker; most of it is not."""
    command = f"python -m bench.peers --broker {broker.LITTLE} --first 1"
    told = "As above, with a broker that starts quickly, and takes more of the processor from then on."
    measured = [goal for goal in reached if goal.reached is not None]
    return "\n\n".join(
        [conditions(command, HEADLINE, broker.LITTLE), told, _goal_table(measured), *_tables(plan, results)]
    )


def _tables(plan: Plan, results: Results) -> list[str]:
    parts = []
    for case in dict.fromkeys(series.case for series in plan.series):
        taking_part = [who for who in CONTENDERS if results.of(case, who) or results.failure(case, who)]
        if taking_part:
            parts.append(f"### {_heading(case)}")
            parts += [paragraph(f"In part or whole from an earlier run: {each}.") for each in results.otherwise(case)]
            parts.append(_table(case, results, taking_part))
    return parts


def pictures(plan: Plan, results: Results) -> None:
    """Rates and costs where there is nothing to do, best first."""
    nothing = Case(plan.small, "nothing")
    for name, column, title, unit in (
        ("peers-rate.svg", "rate", f"Records per second: {nothing.load}, nothing to do", ""),
        ("peers-cpu.svg", "cpu_us", f"CPU time per record, whole process tree: {nothing.load}", "µs"),
    ):
        found = [
            Bar(who.title, value, who.ours) for who in CONTENDERS if (value := results.median(nothing, who, column))
        ]
        ranked = sorted(found, key=lambda bar: bar.value, reverse=column == "rate")
        (PICTURES / name).write_text(bars(title, unit, ranked))


def conditions(command: str, taking_part: Iterable[Contender], beside: str = broker.SHIPPED) -> str:
    """What it was measured with."""
    versions = dict.fromkeys(f"{who.title.split(',')[0]} {who.version()}" for who in taking_part)
    return paragraph(
        f"`{command}`, {datetime.now():%Y-%m-%d}: one broker of Apache Kafka {VERSION} with "
        f"{broker.KINDS[beside].told} and one contender at a time on the same {os.cpu_count()} cores ({_processor()}), "
        f"Linux {platform.release().split('-')[0]}, {_python()}. {'; '.join(versions)}."
    )


def _rules() -> str:
    return (
        "All are members of a group with heartbeats every second, written and tuned as their documentation has it "
        "(bench/peers/clients), Pyrallel-Consumer on Python 3.12. Rates count from when 5 % of the records (or the "
        "records of two seconds) are handled until the last is, or until time is up; CPU is the whole process tree's "
        "in the same window, the supervisor's part that of the second half, memory its highest PSS, where pages that "
        "processes share count once. Medians, and the range over the rounds; a ratio is the median of the rounds' "
        "ratios. Every run is audited by a count and a sum of offsets for each partition, kept by the handler: each "
        "record exactly once, unless said. "
        "ConsumerPerformance gives its own count. What a second member's joining costs is told above, under Hand-over "
        "under load."
    )


_ALLOCATOR = (
    "Workers have jemalloc, which the image brings (`workers.allocator`). `perf` had shown where a tuned loop's time "
    "goes: a tenth of it waits for the lock of an arena of glibc's, in which librdkafka's thread allocates an object "
    "for each message and the main thread frees it; much of the rest goes into memory that the kernel gives for each "
    "response and takes back. The rows `glibc's malloc` are ours without jemalloc, the rows `jemalloc preloaded` are "
    "the bare loops with it; the goals are about the bare loop as it is installed."
)


def under() -> str:
    """What differs from one run to the next on the same machine."""
    return f"{datetime.now():%Y-%m-%d}, {_python()}, kunicorn with jemalloc"


_LIMITS = (
    "What is in the way of more: two workers and the broker fill the two cores, so that what a record costs decides. "
    "The greater part of it is a Python object for each message (below, Where a record's time goes). Java compiles its "
    "loop while it runs, and gains by longer runs. At 2,000 partitions it is librdkafka's care for each of them "
    "(below, By partitions)."
)


def _python() -> str:
    """This interpreter, and how it was built: what is Python in a loop takes a third longer where that was not
    optimised."""
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    built = "an optimised build" if "--enable-optimizations" in flags else "built without optimisations"
    if sys.base_prefix == "/usr":
        built = "as the distribution builds it"
    return f"Python {platform.python_version()} ({built})"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _goal_table(reached: Iterable[Goal]) -> str:
    rows = [["what", "must reach", "measured", ""], ["---", "--:", "--:", "---"]]
    rows += [[goal.text, goal.wanted, goal.measured, _verdict(goal)] for goal in reached]
    return rows_of(rows)


def _verdict(goal: Goal) -> str:
    return f"**{goal.verdict}**" if goal.reached is False else goal.verdict


def _heading(case: Case) -> str:
    return f"{KINDS[case.kind][0].upper()}{KINDS[case.kind][1:]}: {case.load}, {case.load.records:,} records"


def _table(case: Case, results: Results, taking_part: Iterable[Contender]) -> str:
    if case.kind == "delay":
        poll = [f"poll()'s {name}" for name in ("p50", "p99", "p99.9")]
        head = ["client", "p50 ms", "p99 ms", "p99.9 ms", *poll, "p99 beside poll()", "audit"]
        rows = [head, ["---", *["--:"] * 7, "---"]]
        return rows_of([*rows, *(_delay_row(case, results, who) for who in taking_part)])
    head = ["client", f"beside {c.BATCH_2.title if case.kind == 'nothing' else c.RECORD_2.title}", "records/s", "range"]
    rows = [[*head, "CPU µs a record", "MB", "audit"], ["---", *["--:"] * 5, "---"]]
    return rows_of([*rows, *(_rate_row(case, results, who) for who in taking_part)])


def _rate_row(case: Case, results: Results, who: Contender) -> list[str]:
    if failure := results.failure(case, who):
        return [who.title, "", "", "", "", "", _cell(failure)]
    yardstick = c.BATCH_2 if case.kind == "nothing" else c.RECORD_2
    ratio, rates = results.ratio((case, who), (case, yardstick)), results.column(case, who, "rate")
    rate, cpu, memory = (results.median(case, who, name) for name in ("rate", "cpu_us", "memory_mb"))
    return [
        who.title,
        "" if ratio is None else f"{ratio:.2g}",
        f"{rate:,.0f}",
        f"{rates[0]:,.0f}–{rates[-1]:,.0f}" if len(rates) > 1 else "one run",
        f"{cpu:.2f}",
        f"{memory:.0f}",
        _cell(_audit(case, results, who)),
    ]


def _audit(case: Case, results: Results, who: Contender) -> str:
    if not who.audited:
        return "its own count"
    if finding := results.finding(case, who):
        return finding
    handled = results.column(case, who, "handled")[0]
    return "once each" if handled >= case.load.records else f"once each, of the first {handled:,}"


def _delay_row(case: Case, results: Results, who: Contender) -> list[str]:
    if failure := results.failure(case, who):
        return [who.title, *[""] * 7, _cell(failure)]
    figures = [results.median(case, who, before + name) for before in ("", "poll_") for name in ("p50", "p99", "p999")]
    ratio = results.ratio_within(case, who, "p99", "poll_p99")
    told = [f"{value:.2f}" for value in (*figures, ratio)]
    return [who.title, *told, _cell(results.finding(case, who) or "once each")]


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def rows_of(rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
