"""What joins, leaves and dead brokers cost under steady load, beside reference clients. `make bench-handover`

    python -m bench.handover [--rounds N] [--only WORD] [--no-brokers] [--write]

Three brokers with default settings. First, groups of all clients run side by side, and each broker is killed once.
Then, in turns, a second member joins each client's group and leaves it in order. A pause of a partition: its next
record lies in the log, and nobody has any record of the partition in hand. `--write` puts the tables into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import aiokafka
import confluent_kafka

import kunicorn
from bench import brokers
from bench.contestants import CONTESTANTS, HANDLER_MS, PARTITIONS, RATE, WORKERS, Contestant, Entry, Member
from bench.pages import paragraph, write_section
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from tests.chaos.calls import Call, longest_waits, repeats
from tests.kafka import KafkaCluster
from tests.kafka.cluster import VERSION
from tests.waiting import wait_until

BROKER_SETTINGS = {"min.insync.replicas": 2, "group.initial.rebalance.delay.ms": 3000}
"""The delay is Kafka's default, which the tests' clusters do without."""
TITLES = ("Hand-over under load", "A killed broker under load")
SETTLE_SECONDS = 4.0
"""So long the owners stay who they are before a change counts as over."""
WITHIN = 90.0
STAY_GOAL, JOIN_GOAL, JOIN_GOAL_P99, LEAVE_GOAL = 1.0, 1.0, 1.5, 1.5
"""Seconds on top of the drain, which is one call of the handler; a leave: heartbeat_interval_ms (1000) and 0.5 s."""


class Change(NamedTuple):
    """One join or leave. Nanoseconds of the audit's clock."""

    kind: str
    start: int
    end: int
    rebalances: int


@dataclass
class Cost:
    """What the changes cost one contestant: the pauses in seconds, one for each partition and change."""

    who: Contestant
    staying: list[float] = field(default_factory=list)
    joined: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    rebalances: list[int] = field(default_factory=list)
    repeated: int = 0

    @property
    def good(self) -> bool:
        """Whether ours reached the goals; theirs have none."""
        drain = HANDLER_MS / 1000
        return self.who.client != "kunicorn" or (
            max(self.staying, default=0.0) <= STAY_GOAL
            and median(self.joined) <= drain + JOIN_GOAL
            and quantile(self.joined) <= drain + JOIN_GOAL_P99
            and max(self.left) <= drain + LEAVE_GOAL
            and not self.repeated
        )


COLUMNS: tuple[tuple[str, Callable[[Cost], str]], ...] = (
    ("client", lambda c: c.who.title),
    ("partitions that stay: longest pause s", lambda c: f"{max(c.staying):.2f}" if c.staying else "all move"),
    ("join: median s", lambda c: f"{median(c.joined):.2f}"),
    ("p99", lambda c: f"{quantile(c.joined):.2f}"),
    ("leave: median s", lambda c: f"{median(c.left):.2f}"),
    ("p99", lambda c: f"{quantile(c.left):.2f}"),
    ("repeated", lambda c: str(c.repeated)),
    ("rebalances each", lambda c: f"{mean(c.rebalances):.1f}"),
)


def quantile(values: Sequence[float]) -> float:
    """The 99th of a hundred; the longest where there are fewer."""
    return sorted(values)[ceil(0.99 * len(values)) - 1]


def main() -> int:
    """Measure, print, and exit 1 if ours misses a goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.handover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="joins and leaves of each client, 0 for none")
    parser.add_argument("--only", default="", help="clients whose title has this in it")
    parser.add_argument("--no-brokers", action="store_true", help="joins and leaves only")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    chosen = [who for who in CONTESTANTS if options.only in who.title]
    directory = Path(tempfile.mkdtemp(prefix="kunicorn-handover-"))
    print(f"logs and audits: {directory}", flush=True)
    # Members are not our session's: an end by SIGTERM has to run the `finally` blocks that kill them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    killed: list[brokers.BrokerCost] = []
    with KafkaCluster(3, overrides=BROKER_SETTINGS) as kafka:
        if not options.no_brokers:
            killed = brokers.kill_each_broker(kafka, chosen, directory)
            if options.write:
                write_section(TITLES[1], broker_page(killed))
        costs = hand_overs(kafka, chosen, directory, options.rounds) if options.rounds else []
    if options.write and options.rounds:
        write_section(TITLES[0], hand_over_page(costs, options.rounds))
    return 0 if all([*(cost.good for cost in costs), *(cost.good for cost in killed)]) else 1


# -- joins and leaves ------------------------------------------------------------------------------------------------


def hand_overs(kafka: KafkaCluster, chosen: Sequence[Contestant], directory: Path, rounds: int) -> list[Cost]:
    """Each contestant alone on the machine, in turns: so a noisy neighbour disturbs all of them alike."""
    costs = [Cost(who) for who in chosen]
    for number in range(rounds):
        for cost in costs:
            topic = f"handover-{CONTESTANTS.index(cost.who)}-{number}"
            hand_over(Entry(cost.who, kafka, topic, directory / topic), cost)
            print(f"round {number + 1}: {' · '.join(f'{name} {show(cost)}' for name, show in COLUMNS)}", flush=True)
    return costs


def hand_over(entry: Entry, cost: Cost) -> None:
    """A second member comes and goes, under load; what that costs is added."""
    try:
        first = entry.start()
        entry.load.start()
        wait_shared(entry, [first])
        before, start = rebalances(entry), now_ns()
        second = entry.start()
        wait_shared(entry, [first, second])
        join = Change("join", start, now_ns(), rebalances(entry) - before)
        before, start = rebalances(entry), now_ns()
        second.stop()
        wait_shared(entry, [first])
        leave = Change("leave", start, now_ns(), rebalances(entry) - before)
        entry.load.stop()
        add(entry, [join, leave], cost)
    finally:
        entry.close()


def wait_shared(entry: Entry, members: Sequence[Member]) -> None:
    """Until these members handle equal shares of the partitions, and have done so for a while."""
    share = PARTITIONS // len(members)
    wanted = {member.name: share for member in members}
    since = now_ns()

    def settled() -> bool:
        nonlocal since
        latest = {number: calls[-1] for number, calls in entry.calls().items()}
        if Counter(call.member for call in latest.values()) != wanted or not fresh(latest.values()):
            since = now_ns()
        return now_ns() - since > SETTLE_SECONDS * NANOSECONDS

    wait_until(settled, f"{entry.who.title}: {wanted}", WITHIN, 0.3)


def fresh(latest: Iterable[Call]) -> bool:
    """Whether every partition's newest call began just now."""
    return all(now_ns() - call.begin < 2 * NANOSECONDS for call in latest)


def rebalances(entry: Entry) -> int:
    """So many of the group have begun, as the coordinators tell (GroupMetadataManager's log)."""
    text = "".join(broker.log.read_text(errors="replace") for broker in entry.kafka.brokers)
    name = re.escape(entry.topic)
    return len(re.findall(rf"Preparing to rebalance group {name} in state|\[GroupId {name}\] Bumped group epoch", text))


def add(entry: Entry, made: Sequence[Change], cost: Cost) -> None:
    """Sort the pauses by what became of their partitions."""
    calls = entry.calls()
    moved = {"join": cost.joined, "leave": cost.left}
    for change in made:
        waits = longest_waits(calls, entry.load.appended, change.start, change.end)
        before, after = owners(calls, change.start), owners(calls, change.end)
        for number, wait in zip(sorted(calls), waits, strict=True):
            place = cost.staying if before[number] == after[number] else moved[change.kind]
            place.append(wait / NANOSECONDS)
        cost.rebalances.append(change.rebalances)
    cost.repeated += sum(each.again.begin >= made[0].start for each in repeats(calls))


def owners(calls: Mapping[int, Sequence[Call]], at: int) -> dict[int, str]:
    """Who had each partition then."""
    return {number: [call.member for call in every if call.begin < at][-1] for number, every in calls.items()}


# -- pages -----------------------------------------------------------------------------------------------------------


def hand_over_page(costs: Sequence[Cost], rounds: int) -> str:
    """The section of docs/benchmarks.md."""
    rows = [[name for name, _ in COLUMNS], ["---", *["--:"] * (len(COLUMNS) - 1)]]
    rows += [[show(cost) for _, show in COLUMNS] for cost in costs]
    paragraphs = (
        f"`make bench-handover`, {conditions()} One member has all {PARTITIONS} partitions of a topic with {RATE} "
        f"records a second; a second one joins and leaves; {rounds} of each for each client, in turns. Handlers of "
        f"0–{HANDLER_MS} ms; ours with {WORKERS} workers each and default settings.",
        "A pause: the partition's next record lies in the log, and nobody has a record of the partition in hand. "
        "Tuned: heartbeats every half second, offsets committed every second and, synchronously, in the revoke "
        "callback. Repeated: records handled again. Rebalances: as the coordinator counts them for a join or leave. "
        "A client has half of its partitions moved at a time: p99 is the longest of so few.",
        f"Our goals, on top of the drain: partitions that stay {STAY_GOAL:g} s; on a join {JOIN_GOAL:g} s (median) "
        f"and {JOIN_GOAL_P99:g} s (p99); on a leave the heartbeat interval and half a second, {LEAVE_GOAL:g} s.",
    )
    return laid_out(paragraphs, rows)


def broker_page(killed: Sequence[brokers.BrokerCost]) -> str:
    """The section of docs/benchmarks.md."""
    rows = [[name for name, _ in brokers.COLUMNS], ["---", *["--:"] * (len(brokers.COLUMNS) - 1)]]
    rows += [[show(cost) for _, show in brokers.COLUMNS] for cost in killed]
    paragraphs = (
        f"`make bench-handover`, {conditions()} Groups of two members each, side by side; every broker is killed once "
        "and comes back before the next; one of the three is the group's coordinator.",
        "A partition whose leader was killed pauses until it has another one, and cannot be produced to meanwhile; it "
        "counts from when a record is in the log. Goal of ours: no pause above 1 s where the leader lives.",
    )
    return laid_out(paragraphs, rows)


def conditions() -> str:
    """What it was measured with."""
    return (
        f"{datetime.now():%Y-%m-%d}: kunicorn {kunicorn.__version__}, confluent-kafka {confluent_kafka.__version__}, "
        f"aiokafka {aiokafka.__version__}, Python {platform.python_version()}; three brokers of Apache Kafka {VERSION} "
        f"with default settings but min.insync.replicas 2, on the same {os.cpu_count()} cores."
    )


def laid_out(paragraphs: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A paragraph, the table, the other paragraphs."""
    head, *notes = map(paragraph, paragraphs)
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n\n".join((head, table, *notes))


if __name__ == "__main__":
    sys.exit(main())
