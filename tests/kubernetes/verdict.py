"""Judges a scenario by the audit of handler calls against what was produced; and its figures, as they are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from kunicorn.commands.demo.judge import Audit, Report
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from tests.chaos.calls import Repeat, longest_waits, read_calls, repeats
from tests.chaos.faults import Repeats
from tests.chaos.verdict import LATE
from tests.kubernetes.scene import COMMIT_INTERVAL, PARTITIONS, Scene
from tests.system.producing import end_offsets, held


@dataclass(frozen=True)
class Figures:
    """What one scenario has come to. `not_run` says why it was not, and then the rest is empty."""

    scenario: str
    not_run: str = ""
    broken: Sequence[str] = ()
    """The promises that did not hold."""
    records: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    overlaps: int = 0
    pause_median: float = 0.0
    pause_longest: float = 0.0
    """Seconds for which a partition's next record lay there and nobody had one of that partition in hand."""
    seconds: float = 0.0
    """All of it, with the install."""
    notes: Sequence[str] = field(default=())

    def __str__(self) -> str:
        if self.not_run:
            return f"not run: needs {self.not_run}"
        counts = (
            f"{self.records} records, {self.lost} lost, {self.repeated} repeated, {self.out_of_order} out of order, "
            f"{self.overlaps} overlaps, longest pause {self.pause_longest:.2f} s"
        )
        return "; ".join((counts, *self.notes, *(f"BROKEN {each}" for each in self.broken)))

    def json(self) -> Mapping[str, Any]:
        """For the file of figures."""
        return asdict(self)


def judge(scene: Scene, scenario: str, allowed: Repeats, seconds: float) -> Figures:
    """After the last pod has left: every record of the topic, beside every call."""
    calls = read_calls(scene.audit)
    offsets = held(end_offsets(scene.given.brokers.bootstrap, scene.topic, PARTITIONS))
    report = Audit(scene.audit).check(offsets, scene.killed)
    again = repeats(calls)
    waits = longest_waits(calls, scene.load.appended, scene.began or 0, scene.ended or now_ns(), served=scene.began)
    pauses = [wait / NANOSECONDS for wait in waits]
    return Figures(
        scenario,
        broken=tuple(_broken(scene, report, again, allowed)),
        records=report.produced,
        lost=len(report.lost),
        repeated=len(again),
        out_of_order=len(report.out_of_order),
        overlaps=len(report.overlaps),
        pause_median=round(median(pauses), 2) if pauses else 0.0,
        pause_longest=round(max(pauses, default=0.0), 2),
        seconds=round(seconds, 1),
        notes=tuple(scene.notes),
    )


def _broken(scene: Scene, report: Report, again: Sequence[Repeat], allowed: Repeats) -> Iterator[str]:
    if scene.collector.failure:
        yield scene.collector.failure
    for name in ("lost", "unexpected", "out of order", "overlaps"):
        if found := report.faults().get(name):
            yield f"{len(found)} {name}: {', '.join(map(str, found[:5]))}"
    if not report.produced:
        yield "nothing was produced"
    yield from _beyond(scene, again, allowed)


def _beyond(scene: Scene, again: Sequence[Repeat], allowed: Repeats) -> Iterator[str]:
    """Records that were handled again and should not have been."""
    if allowed is Repeats.NOTHING and again:
        yield f"{len(again)} records were handled again, first {again[0]}"
    if allowed is Repeats.IN_HAND:
        if finished := [each for each in again if each.before.end is not None]:
            yield f"{len(finished)} records were handled again though they were done, first {finished[0]}"
        if len(again) > scene.in_hand:
            yield f"{len(again)} records were handled again, and {scene.in_hand} were in hand"
    if allowed is Repeats.ROUND and len(again) > scene.round:
        yield f"{len(again)} records were handled again, and a round has {scene.round}"
    if allowed is Repeats.SINCE_COMMIT:
        if others := [each for each in again if each.before.member not in scene.victims]:
            yield f"{len(others)} records were handled again that no victim had, first {others[0]}"
        committed = scene.hurt_at - int((COMMIT_INTERVAL + LATE) * NANOSECONDS)
        if old := [each for each in again if each.before.end is not None and each.before.end < committed]:
            yield f"{len(old)} records were handled again that were done long before the last commit, first {old[0]}"
