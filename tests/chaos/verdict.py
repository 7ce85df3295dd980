"""Judges each fault by what was handled while it and its aftermath lasted. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.worker.fetching.fetched import MAX_CHUNK
from tests.chaos.calls import Overlap, Partitions, Repeat, longest_waits, overlaps, repeats
from tests.chaos.faults import FAULTS, Fault, Hurt, Repeats
from tests.chaos.group import COMMIT_INTERVAL, DEATHS, WORKERS
from tests.chaos.stream import KEPT, Found

LATE = 1.0
"""Seconds by which a commit may be later than its interval: it takes its time, and a busy machine's timer is late."""


@dataclass(frozen=True)
class Bounds:
    """What a fault's repetitions are held against."""

    in_hand: int | None = 1
    """Most records that a worker has in hand; None: it is asked only when a killed worker had handled them."""
    commit_interval: float = COMMIT_INTERVAL
    """Seconds."""

    @property
    def at_once(self) -> int | None:
        """Most records that a worker begins between two looks at the lease: of a handler that is called in the loop's
        thread with one record after the other, as many as it handles within about a millisecond."""
        return MAX_CHUNK if self.in_hand == 1 else self.in_hand


@dataclass(frozen=True)
class Step:
    """One fault that was inflicted; `settled` is when the group was whole again, nanoseconds."""

    fault: str
    hurt: Hurt
    settled: int
    rebalances: int


@dataclass(frozen=True)
class Outcome:
    """What one fault cost. Seconds."""

    fault: str
    repeated: int
    """Records begun again, whatever the cause."""
    overlaps: int
    """Calls of one process inside which another one began on the same partition."""
    pauses: tuple[float, ...]
    """The longest of each partition."""
    rebalances: int
    broken: tuple[str, ...]
    """The promises that did not hold."""


def judge(
    steps: Sequence[Step], calls: Partitions, appended: Mapping[int, Sequence[int]], bounds: Bounds = Bounds()
) -> list[Outcome]:
    """One outcome a step. What happens until the next step begins is the step's."""
    again, beside = repeats(calls), overlaps(calls)
    outcomes = []
    for number, step in enumerate(steps):
        until = steps[number + 1].hurt.at if number + 1 < len(steps) else 2**63
        mine = [each for each in again if step.hurt.at <= each.again.begin < until]
        together = [each for each in beside if step.hurt.at <= each.begun.begin < until]
        waits = longest_waits(calls, appended, step.hurt.at, step.settled)
        found = Found(mine, len(mine), together, waits=dict(enumerate(waits)))
        outcomes.append(judged(step, FAULTS[step.fault], found, bounds))
    return outcomes


def judged(step: Step, fault: Fault, found: Found, bounds: Bounds) -> Outcome:
    """The outcome of one step with that fault, during which that happened."""
    return Outcome(
        fault=step.fault,
        repeated=found.repeated,
        overlaps=len({each.inside for each in found.overlaps}),
        pauses=tuple(wait / NANOSECONDS for _, wait in sorted(found.waits.items())),
        rebalances=step.rebalances,
        broken=(
            *_repeats_broken(step, fault, found, bounds),
            *_overlaps_broken(step, fault, found.overlaps, bounds),
            *_rebalances_broken(step, fault),
        ),
    )


def _repeats_broken(step: Step, fault: Fault, found: Found, bounds: Bounds) -> Iterator[str]:
    if found.repeated > KEPT:
        yield f"{step.fault}: {found.repeated} records were handled again, more than are looked at"
    complaints = _COMPLAINTS[fault.repeats](step.hurt, found.repeats, bounds)
    yield from (f"{step.fault}: {complaint}" for complaint in complaints)


def _beyond_nothing(hurt: Hurt, mine: Sequence[Repeat], bounds: Bounds) -> Iterator[str]:
    if mine:
        yield f"{len(mine)} records were handled again, first {mine[0]}"


def _beyond_in_hand(hurt: Hurt, mine: Sequence[Repeat], bounds: Bounds) -> Iterator[str]:
    if bounds.in_hand is None:
        yield from _long_committed(hurt, mine, bounds)
    elif len(mine) > len(hurt.killed) * bounds.in_hand:
        yield f"{len(mine)} records were handled again for {len(hurt.killed)} killed workers: {mine[:5]}"
    if others := [each for each in mine if each.before.pid not in hurt.killed]:
        yield f"handled again, but not in hand of the killed: {others[0]}"


def _beyond_the_commit(hurt: Hurt, mine: Sequence[Repeat], bounds: Bounds) -> Iterator[str]:
    others = [each for each in mine if each.before.member != hurt.victim]
    if strangers := [each for each in others if each.again.member != hurt.victim]:
        yield f"handled again, but not after {hurt.victim}: {strangers[0]}"
    # A worker that was frozen finishes what it had in hand, beside whoever has handled that since.
    finished: defaultdict[int, list[Repeat]] = defaultdict(list)
    for each in others:
        if each.again.member == hurt.victim:
            finished[each.again.pid].append(each)
    for pid, its in finished.items():
        if bounds.at_once is not None and len(its) > bounds.at_once:
            yield f"worker {pid} of {hurt.victim} went on with {len(its)} records of others, first {its[0]}"
    yield from _long_committed(hurt, mine, bounds)


def _long_committed(hurt: Hurt, mine: Sequence[Repeat], bounds: Bounds) -> Iterator[str]:
    committed = hurt.at - int((bounds.commit_interval + LATE) * NANOSECONDS)
    if old := [each for each in mine if each.before.end is not None and each.before.end < committed]:
        yield f"handled again although handled long before the last commit: {old[0]}"


def _beyond_the_poison(hurt: Hurt, mine: Sequence[Repeat], bounds: Bounds) -> Iterator[str]:
    times = Counter((each.again.partition, each.again.offset) for each in mine)
    if others := sorted(times.keys() - hurt.poison):
        yield f"handled again, but no poison (partition, offset): {others[:5]}"
    if worse := sorted(at for at in times.keys() & hurt.poison if times[at] >= DEATHS):
        yield f"poison was handled more than {DEATHS} times (partition, offset): {worse}"


def _told_by_outputs(hurt: Hurt, mine: Sequence[Repeat], bounds: Bounds) -> Iterator[str]:
    """What a transaction had committed has its output: whoever reads them all sees (`tests.soak.outputs`)."""
    return iter(())


_COMPLAINTS: Mapping[Repeats, Callable[[Hurt, Sequence[Repeat], Bounds], Iterator[str]]] = {
    Repeats.NOTHING: _beyond_nothing,
    Repeats.IN_HAND: _beyond_in_hand,
    Repeats.SINCE_COMMIT: _beyond_the_commit,
    Repeats.POISON: _beyond_the_poison,
    Repeats.UNCOMMITTED: _told_by_outputs,
}


def _rebalances_broken(step: Step, fault: Fault) -> Iterator[str]:
    if step.rebalances and not fault.rebalances:
        yield f"{step.fault}: {step.rebalances} rebalances, and nobody had come or gone"


def _overlaps_broken(step: Step, fault: Fault, together: Sequence[Overlap], bounds: Bounds) -> Iterator[str]:
    inside = {each.inside for each in together}
    if not fault.overlaps:
        if inside:
            yield f"{step.fault}: two workers in one partition: {together[0]}"
        return
    if bounds.in_hand is not None and len(inside) > WORKERS * bounds.in_hand:
        yield f"{step.fault}: {len(inside)} calls beside another worker's, more than {WORKERS} workers had in hand"
    if others := [each for each in together if each.inside.member != step.hurt.victim]:
        yield f"{step.fault}: two workers in one partition, and neither is the victim's: {others[0]}"
