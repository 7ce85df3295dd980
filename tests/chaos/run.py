"""One schedule from its first member to its verdict."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kunicorn.commands.demo.judge import Audit, Report
from tests.chaos.calls import read_calls
from tests.chaos.crowds import CROWDS, disorder
from tests.chaos.faults import FAULTS, Hurt
from tests.chaos.group import MEMBERS, PARTITIONS, Group, now, terms
from tests.chaos.schedule import Schedule
from tests.chaos.verdict import Bounds, Outcome, Step, judge
from tests.kafka import ProxiedCluster
from tests.system.producing import end_offsets, held

MUST_NOT = ("lost", "unexpected")
"""The audit's faults that nothing excuses; repetitions and overlaps are judged by fault, order by what is asked for."""


@dataclass(frozen=True)
class Result:
    """What a schedule came to."""

    schedule: Schedule
    report: Report
    outcomes: tuple[Outcome, ...]
    disordered: Sequence[str] = ()
    """What was not in the order that was asked for."""
    misdirected: Collection[tuple[int, int]] = ()
    """Partition and offset of poison that is not in the dead-letter topic, and of what is there and was none."""

    def __str__(self) -> str:
        """What was out of order is counted among what was to be in order: a partition's records, a key's, or none."""
        ordering = CROWDS[self.schedule.crowd].ordering
        counts = str(replace(self.report, out_of_order=()))
        return counts if ordering == "none" else f"{counts}; {len(self.disordered)} out of order by {ordering}"

    @property
    def broken(self) -> list[str]:
        """The promises that did not hold; none if all is well."""
        faults = self.report.faults()
        found = [f"{name}: {', '.join(map(str, faults[name][:5]))}" for name in MUST_NOT if name in faults]
        found += [f"out of order: {'; '.join(self.disordered[:5])}"] if self.disordered else []
        if self.misdirected:
            found.append(f"poison and dead letters differ in (partition, offset): {sorted(self.misdirected)[:5]}")
        return found + [broken for outcome in self.outcomes for broken in outcome.broken]


def run(kafka: ProxiedCluster, what: Schedule, directory: Path, tell: Callable[[str], None]) -> Result:
    """Blocks for minutes. Raises `AssertionError` where the group does not become whole again, `RuntimeError` where
    the brokers do not take what is produced.

    Logs, settings and audit stay in `directory`.
    """
    tell(str(what))
    _revive(kafka)
    topic = f"chaos-{what.seed}-{now()}"
    dice, crowd = random.Random(what.seed), CROWDS[what.crowd]
    set_to = terms(what.protocol, crowd, what.fetcher)
    group = Group(kafka, topic, what.static, dice, directory / topic, set_to)
    try:
        steps = _live_through(group, what, tell)
        group.load.stop()
        group.wait_whole()
        for member in list(group.alive):
            group.stop(member)
        group.wait_all_committed()
        disordered = disorder(group.members.audit, group.crowd.ordering)
        outcomes = tuple(_judged(group, steps))
        result = Result(what, _report(group, steps), outcomes, disordered, group.load.poison ^ group.letters())
    finally:
        group.close()
    tell(f"  {result}")
    return result


def _revive(kafka: ProxiedCluster) -> None:
    """A schedule that failed in the middle may have left a broker frozen or dead."""
    for broker in kafka.brokers:
        if broker.alive:
            broker.thaw()
        else:
            broker.start()
    kafka.wait_until_whole()


def _live_through(group: Group, what: Schedule, tell: Callable[[str], None]) -> list[Step]:
    for _ in range(MEMBERS):
        group.start()
    group.load.start()
    group.wait_whole()
    steps = []
    for name in what.faults:
        before = group.generation()
        began = now()
        hurt: Hurt = FAULTS[name].inflict(group)
        group.wait_whole()
        steps.append(Step(name, hurt, now(), group.generation() - before))
        tell(f"  {name}: whole again after {(steps[-1].settled - began) / 1e9:.1f} s")
    return steps


def _report(group: Group, steps: list[Step]) -> Report:
    """The audit's on everything but poison, which nobody handles to its end."""
    offsets = held(end_offsets(group.kafka.bootstrap, group.topic, PARTITIONS))
    poison = {(group.topic, *at) for at in group.load.poison}
    expected = {tp: {offset for offset in all_of if (*tp, offset) not in poison} for tp, all_of in offsets.items()}
    return Audit(group.members.audit).check(expected, _killed(steps))


def _judged(group: Group, steps: list[Step]) -> list[Outcome]:
    return judge(steps, read_calls(group.members.audit), group.load.appended, Bounds(group.crowd.in_hand))


def _killed(steps: list[Step]) -> set[int]:
    return {pid for step in steps for pid in step.hurt.killed}
