"""Ours beside confluent-kafka's members through the same faults, for docs/conformance.md. `make bench-differential`

    python -m bench.differential [--runs 3] [--only WORD] [--write | --append]

One broker, and groups of two members each, every group behind a link of its own. Each fault hits all groups at the same
moment; afterwards they are left alone for a while. `--write` keeps the figures in place of those kept before of the
same faults, `--append` beside them; `python -m tests.contract.conformance` makes the table of their medians. It exits
with 1 where ours did worse than theirs with the same protocol. A run takes eight minutes; one fault that a busy machine
disturbed is done again by `--only`.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
from bisect import bisect
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.contestants import CONTESTANTS, PARTITIONS, Contestant, Entry
from bench.faults import HURTS, Hurt, Links, Protocol, pause
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from tests.chaos.calls import Call, longest_waits, repeats
from tests.contract.conformance.side_by_side import MEASURED, Row, medians, merged, read, worse, write
from tests.kafka import KafkaCluster, ProxiedCluster
from tests.waiting import wait_until

RATE = 40
_SETTLED_WITHIN = 120.0
_JUST_NOW = 3
"""Seconds; a record comes every third of one to each partition. What was appended before is handled by then."""
_EVERY_SECOND: dict[str, Any] = {"commit_interval_ms": 1000}
"""As the reference client with the consumer protocol commits: what is repeated is then the same for both."""


class Chosen(NamedTuple):
    """One group."""

    title: str
    protocol: Protocol
    settings: dict[str, Any]

    @property
    def contestant(self) -> Contestant:
        """With these settings beside its own."""
        (found,) = (each for each in CONTESTANTS if each.title == self.title)
        return replace(found, settings={**found.settings, **self.settings})


CHOSEN = (
    Chosen("kunicorn, cooperative-sticky", "classic", {}),
    Chosen("confluent-kafka, cooperative-sticky, its defaults", "classic", {}),
    Chosen("kunicorn, consumer protocol", "consumer", _EVERY_SECOND),
    Chosen("confluent-kafka, consumer protocol", "consumer", {}),
)
_BROKER = {"group.initial.rebalance.delay.ms": 3000}
"""Kafka's default, where tests do not wait: without it chance says whether two members that come back to an empty group
meet in its first generation."""
_REBALANCE: dict[Protocol, str] = {
    # GroupMetadataManager's own words (Kafka 4).
    "classic": r"Stabilized group {group} generation \d+",
    "consumer": r"\[GroupId {group}\] Bumped group epoch to \d+",
}


class Behind:
    """The cluster as it is reached over one link."""

    def __init__(self, kafka: ProxiedCluster, link: str) -> None:
        self.bootstrap = ",".join(kafka.bootstrap_over(link))
        self.create_topic = kafka.create_topic


class Group:
    """One contestant's group behind its link."""

    def __init__(self, kafka: ProxiedCluster, chosen: Chosen, number: int, directory: Path) -> None:
        self.link, self.chosen = _link(number), chosen
        behind = cast("KafkaCluster", Behind(kafka, self.link))
        self.entry = Entry(chosen.contestant, behind, f"faults-{number}", directory / str(number), RATE)
        # What is produced must not suffer from the fault.
        self.entry.load = type(self.entry.load)(kafka.bootstrap, self.entry.topic, RATE)
        self._kafka = kafka

    def start(self) -> None:
        """Two members, and records for them."""
        for _ in range(2):
            self.entry.start()
        self.entry.load.start()

    @property
    def settled(self) -> bool:
        """Every partition was handled just now, by two members between them, and nothing older is left to handle."""
        just_now, calls = now_ns() - _JUST_NOW * NANOSECONDS, self.entry.calls()
        latest = [each[-1] for each in calls.values()]
        two = len({call.member for call in latest}) == 2
        at_work = two and len(latest) == PARTITIONS and all(call.begin > just_now for call in latest)
        return at_work and all(
            max(call.offset for call in each) + 1 >= bisect(self.entry.load.appended[number], just_now)
            for number, each in calls.items()
        )

    def wait_settled(self) -> None:
        """Until it is, or not any more: what comes then is told as what it is, a pause that does not end."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: self.settled, f"{self.chosen.title}: two members at work", _SETTLED_WITHIN, 0.5)

    def rebalances(self) -> int:
        """How many generations (epochs) of this group the broker has told of."""
        pattern = _REBALANCE[self.chosen.protocol].format(group=self.entry.topic)
        return len(re.findall(pattern, self._kafka.broker(1).log.read_text(errors="replace")))

    def row(self, window: Window) -> Row:
        """What the fault did to it."""
        calls = self.entry.calls()
        served = window.healed if window.hurt.down else window.start
        waits = longest_waits(calls, self.entry.load.appended, window.start, window.end, served)
        began, ended = window.rebalances[self.link]
        row = Row(
            client=self.chosen.title,
            protocol=self.chosen.protocol,
            fault=window.hurt.name,
            pause=round(max(waits, default=0) / NANOSECONDS, 1),
            rebalances=ended - began,
            moved=sum(_moves(each, window.start, window.end) for each in calls.values()),
            repeated=len([each for each in repeats(calls) if window.start <= each.again.begin < window.end]),
            ends=window.hurt.fatal,
        )
        print(row, flush=True)
        return row


class Window(NamedTuple):
    """One fault and the time after it; nanoseconds of the audit's clock."""

    hurt: Hurt
    start: int
    healed: int
    end: int
    rebalances: dict[str, tuple[int, int]]
    """By link, as counted at the beginning and at the end."""


def _link(number: int) -> str:
    return f"link{number}"


def measured(directory: Path, hurts: Sequence[Hurt]) -> list[Row]:
    """A row for each fault and group: one run."""
    names = [_link(number) for number in range(len(CHOSEN))]
    cluster = ProxiedCluster(names, brokers=1, overrides=_BROKER, workdir=directory / "kafka")
    with cluster as kafka, ExitStack() as stack:
        groups = [Group(kafka, chosen, number, directory) for number, chosen in enumerate(CHOSEN)]
        for group in groups:
            stack.callback(group.entry.close)
            group.start()
        for group in groups:
            group.wait_settled()
        windows = [_hit(kafka, groups, hurt) for hurt in hurts]
        for group in groups:
            group.entry.load.stop()
        pause(1.0)
        return [group.row(window) for window in windows for group in groups if group.link in window.rebalances]


def _hit(kafka: ProxiedCluster, groups: Sequence[Group], hurt: Hurt) -> Window:
    """Until all groups are as they were before: a pause belongs to the fault that it began with, however long it is."""
    concerned = [group for group in groups if hurt.only in (None, group.chosen.protocol)]
    links: Links = {group.link: group.chosen.protocol for group in concerned}
    before = {group.link: group.rebalances() for group in concerned}
    start = now_ns()
    hurt.inflict(kafka, links)
    healed = now_ns()
    pause(hurt.after)
    for link in links:
        kafka.heal(link)
    for group in () if hurt.fatal else concerned:
        group.wait_settled()
    end = now_ns()
    return Window(
        hurt, start, healed, end, {group.link: (before[group.link], group.rebalances()) for group in concerned}
    )


def _moves(calls: Sequence[Call], start: int, end: int) -> int:
    """How often the partition went from one member to the other."""
    return sum(a.member != b.member and start <= b.begin < end for a, b in pairwise(calls))


def main() -> int:
    """Measure, judge, and keep what was measured if that is wished for."""
    parser = argparse.ArgumentParser(description="ours beside confluent-kafka's members through the same faults")
    parser.add_argument("--runs", type=int, default=3, help="of which the medians count (default: %(default)s)")
    parser.add_argument("--only", default="", help="faults with this word in their name")
    keep = parser.add_mutually_exclusive_group()
    keep.add_argument("--write", action="store_true", help=f"keep the figures in {MEASURED.name}, and judge all in it")
    keep.add_argument("--append", action="store_true", help="the same, beside those of earlier runs")
    options = parser.parse_args()
    hurts = [hurt for hurt in HURTS if options.only in hurt.name]
    kept, fresh = read() if options.write or options.append else [], []
    runs: list[list[Row]] = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as directory:
            fresh.append(measured(Path(directory), hurts))
        runs = [*kept, *fresh] if options.append else merged(kept, fresh, [hurt.name for hurt in HURTS])
        if options.write or options.append:
            write(runs)
    complaints = worse(medians(row for run in runs for row in run))
    print("\n".join(complaints) or f"ours is never worse, in the medians of {len(runs)} runs", flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
