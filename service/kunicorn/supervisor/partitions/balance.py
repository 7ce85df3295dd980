"""The balance of partitions over this member's own workers. Pure.

`share` deals partitions out over the member's own workers. `next_move` says which partition should go to another
worker, judged by what each one takes of its worker's time.

A worker's capacity is 1: one second of handling in a second. A partition's demand is the part of it that the partition
took lately or, where that is more, what it takes to catch up with its lag within `HORIZON` seconds. So where everything
keeps up the handling itself counts; but partitions of a worker that falls behind only show how it divides its time, and
there their backlogs count.

Nothing oscillates:
1. A move takes at most what leaves the receiver clearly (`_LEAST_LEFT`) below what the giver had. Under constant loads
   the squares of the workers' demands therefore add up to less after every move, by a share that has a lower bound.
2. The whole member makes one move an interval. A partition that was moved stays for `REST` intervals, and after every
   further move for twice as long: of loads that flip to and fro, less and less is followed.
3. Below a gap between the busiest and the idlest worker, and below a demand that one worker has no trouble with,
   nothing moves at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kunicorn.positions import TopicPartition

HORIZON = 10.0
"""Seconds in which a lag is to be caught up with: one of ten seconds of work counts as much as a busy worker."""
REST = 6
"""Intervals for which a partition stays where it was moved to."""
_LONGEST_REST = 2**7 * REST
FORGOTTEN = 4
"""So many times its rest without another move, and the partition's moves are forgotten."""
_LEAST_DEMAND = 0.5
"""A worker that is half idle catches up by itself."""
_LEAST_LEFT = 0.1
"""The receiver stays below the giver by at least so much of what the giver had."""
_COST = 0.02
"""Seconds of work that a move costs: two messages, an assignment, and what was fetched ahead is fetched again."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one partition, measured over the last interval."""

    tp: TopicPartition
    worker: int
    busy: float
    """Seconds of its worker's capacity that its records took in each second."""
    lag: int | None
    """Records; None while it is unknown."""
    cost: float
    """Seconds of capacity that one record takes."""
    movable: bool = True
    """False while it is halted, paused, parked, suspected: it counts where it is, and stays."""

    @property
    def demand(self) -> float:
        """The share of a worker's capacity that it demands."""
        return max(self.busy, (self.lag or 0) * self.cost / HORIZON)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a move may be made."""

    interval: float
    """Seconds between two moves at least."""
    gap: float
    """By which share of its demand the busiest worker must be ahead of the idlest."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The time for which a partition that was moved stays where it is."""

    since: float
    intervals: int = REST

    def over(self, now: float, limits: Limits, times: int = 1) -> bool:
        """Whether the rest has passed, so many times."""
        return now - self.since >= times * self.intervals * limits.interval


@dataclass(frozen=True, slots=True)
class Past:
    """The moves made so far, as far as they matter."""

    moved_at: float = float("-inf")
    rests: Mapping[TopicPartition, Rest] = field(default_factory=dict)

    def with_move(self, tp: TopicPartition, now: float, limits: Limits) -> Past:
        """The past after one more move."""
        known = {other: rest for other, rest in self.rests.items() if not rest.over(now, limits, FORGOTTEN)}
        before = known.get(tp)
        rest = Rest(now) if before is None else Rest(now, min(2 * before.intervals, _LONGEST_REST))
        return Past(now, {**known, tp: rest})

    def rested(self, tp: TopicPartition, now: float, limits: Limits) -> bool:
        """Whether it may move again."""
        rest = self.rests.get(tp)
        return rest is None or rest.over(now, limits)


class Reason(StrEnum):
    """Why a partition moves: the metric's label."""

    #: It shares its worker with one that takes all of it.
    CROWDED = "crowded"
    #: Its worker has more to do than another one.
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Move:
    """One partition to another worker. Demands are those of the workers before the move."""

    tp: TopicPartition
    giver: int
    receiver: int
    reason: Reason
    demand: float
    """The partition's."""
    of_giver: float
    of_receiver: float

    def __str__(self) -> str:
        moves = f"{self.tp} moves from worker {self.giver} to worker {self.receiver}"
        if self.reason is Reason.CROWDED:
            return f"{moves}: another partition takes all that worker {self.giver} can do"
        return f"{moves}, which has less to do"


def demands(loads: Collection[Load], workers: Collection[int]) -> dict[int, float]:
    """The demand on each worker; 1 is all that it can do, above 1 it falls behind or has a backlog."""
    found = dict.fromkeys(sorted(workers), 0.0)
    for load in loads:
        if load.worker in found:
            found[load.worker] += load.demand
    return found


def next_move(loads: Collection[Load], workers: Collection[int], now: float, past: Past, limits: Limits) -> Move | None:
    """The one move that pays most at this time (seconds, monotonic), if any does.

    `workers`: those that take partitions, each able to do as much as another. Caller: the supervisor, while no
    partition of the member is between two workers.
    """
    if now - past.moved_at < limits.interval or len(workers) < 2:
        return None
    busy = demands(loads, workers)
    free = [load for load in loads if load.movable and load.worker in busy and past.rested(load.tp, now, limits)]
    return _from_crowded(loads, free, busy) or _from_busiest(free, busy, limits)


def _from_crowded(loads: Collection[Load], free: Collection[Load], busy: Mapping[int, float]) -> Move | None:
    """A move away from a worker that one of its partitions fills: the others beside that one get no time."""
    filling = {load.worker: load.tp for load in loads if load.demand >= 1.0}
    idlest = min(busy, key=lambda worker: (busy[worker], worker))
    crowded = [
        load
        for load in free
        if filling.get(load.worker, load.tp) != load.tp
        and load.demand * HORIZON >= _COST
        and busy[idlest] + load.demand <= (1.0 - _LEAST_LEFT) * min(1.0, busy[load.worker])
    ]
    if not crowded:
        return None
    load = max(crowded, key=lambda load: (load.demand, load.tp))
    return _move(load, idlest, Reason.CROWDED, busy)


def _from_busiest(free: Collection[Load], busy: Mapping[int, float], limits: Limits) -> Move | None:
    """A move from the busiest worker that can give something that helps, to the idlest one."""
    receiver = min(busy, key=lambda worker: (busy[worker], worker))
    for giver in sorted(busy, key=lambda worker: (-busy[worker], worker)):
        had = busy[giver]
        if had < _LEAST_DEMAND or had - busy[receiver] < limits.gap * had:
            return None
        helpful = [
            load
            for load in free
            if load.worker == giver
            and busy[receiver] + load.demand <= (1.0 - _LEAST_LEFT) * had
            and _gain(load, had, busy[receiver]) * HORIZON >= _COST
        ]
        if helpful:
            best = max(helpful, key=lambda load: (_gain(load, had, busy[receiver]), load.tp))
            return _move(best, receiver, Reason.LOAD, busy)
    return None


def _gain(load: Load, giver: float, receiver: float) -> float:
    """By how much the busier of the two has less to do afterwards."""
    return giver - max(giver - load.demand, receiver + load.demand)


def _move(load: Load, receiver: int, reason: Reason, busy: Mapping[int, float]) -> Move:
    return Move(load.tp, load.worker, receiver, reason, load.demand, busy[load.worker], busy[receiver])


def workers_wanted(partitions: int, count: int) -> int:
    """How many workers to keep running for `partitions` assigned ones: no more than can have something to do, and one
    warm spare, at most `count` and at least one.

    The spare takes over at once where a worker dies, and preloads before a first partition comes.
    """
    if partitions < 0 or count < 1:
        raise ValueError(f"{partitions} partitions over {count} workers: there are at least 0 and 1")
    return min(count, partitions + 1)


def share(
    partitions: Collection[TopicPartition], workers: Collection[int], current: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The worker of each partition, balanced within one; empty without workers.

    `current` is where partitions are now, of which dead workers and foreign partitions are ignored. As many partitions
    stay where they are as the balance allows, since each move drains one worker and makes another one fetch. What has
    no worker is dealt out so that each topic spreads over the workers: partitions of one topic tend to be busy
    at the same time.
    """
    ring = sorted(set(workers))
    if not ring:
        return {}
    placed = {partition: current[partition] for partition in partitions if partition in current}
    if len(placed) == len(partitions) and _is_even(ring, placed):
        return placed
    held: dict[int, list[TopicPartition]] = {worker: [] for worker in ring}
    free: list[TopicPartition] = []
    for partition in sorted(set(partitions)):
        worker = current.get(partition)
        (free if worker is None else held.get(worker, free)).append(partition)
    room = _quotas(ring, held, len(free))
    shared: dict[TopicPartition, int] = {}
    for worker in ring:
        kept, released = _keep(held[worker], room[worker])
        shared.update(dict.fromkeys(kept, worker))
        room[worker] -= len(kept)
        free += released
    _deal(sorted(free), room, shared)
    return shared


def keep(
    partitions: Collection[TopicPartition],
    workers: Collection[int],
    current: Mapping[TopicPartition, int],
    demands: Mapping[TopicPartition, float],
) -> dict[TopicPartition, int]:
    """The worker of each partition where loads have placed some: whatever has a living worker stays there, however many
    others have, and what has none goes to the one that has least to do, then to the one that has fewest.

    Only a worker that would have nothing at all, beside one that has several, makes it a matter of counts: `share`.
    """
    busy = dict.fromkeys(sorted(set(workers)), 0.0)
    shared = {tp: worker for tp in sorted(set(partitions)) if (worker := current.get(tp)) in busy}
    counts = Counter(shared.values())
    for tp, worker in shared.items():
        busy[worker] += demands.get(tp, 0.0)
    usual = sum(busy.values()) / len(shared) if shared else 0.0
    for tp in sorted(set(partitions) - shared.keys()):
        worker = min(busy, key=lambda worker: (busy[worker], counts[worker], worker))
        shared[tp] = worker
        counts[worker] += 1
        busy[worker] += demands.get(tp, 0.0) or usual
    starving = any(not counts[worker] for worker in busy) and max(counts.values(), default=0) > 1
    return share(partitions, workers, current) if starving else shared


def _is_even(ring: Sequence[int], placed: Mapping[TopicPartition, int]) -> bool:
    """Whether everything is with these workers, in equal numbers within one: most reports find it so, and with ten
    thousand partitions to sort through every one of them would hold up the loop."""
    counts = Counter(placed.values())
    having = [counts[worker] for worker in ring]
    return sum(having) == len(placed) and max(having) - min(having) <= 1


def _quotas(ring: Sequence[int], held: Mapping[int, Sequence[TopicPartition]], free: int) -> dict[int, int]:
    """The count for each worker; the odd ones go to those who hold most, so that they need not let go of them."""
    least, extra = divmod(sum(map(len, held.values())) + free, len(ring))
    fullest = sorted(ring, key=lambda worker: (-len(held[worker]), worker))
    return {worker: least + (place < extra) for place, worker in enumerate(fullest)}


def _keep(held: Sequence[TopicPartition], quota: int) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """What a worker keeps and what it lets go: first of the topics it has most of."""
    if len(held) <= quota:
        return list(held), []
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, TopicPartition]] = []
    for partition in held:
        ranked.append((seen[partition.topic], partition))
        seen[partition.topic] += 1
    ranked.sort()
    kept = [partition for _, partition in ranked]
    return kept[:quota], kept[quota:]


def _deal(free: Iterable[TopicPartition], room: dict[int, int], shared: dict[TopicPartition, int]) -> None:
    """Give every free partition to a worker with room, in turns; whoever has more of its topic than others waits."""
    having: defaultdict[str, dict[int, int]] = defaultdict(lambda: dict.fromkeys(room, 0))
    for partition, worker in shared.items():
        having[partition.topic][worker] += 1
    turns = deque(worker for worker in sorted(room) if room[worker])
    for partition in free:
        if partition.topic in having:
            count = having[partition.topic].__getitem__
            least = min(map(count, turns))
            while count(turns[0]) > least:
                turns.rotate(-1)
        worker = turns.popleft()
        shared[partition] = worker
        having[partition.topic][worker] += 1
        room[worker] -= 1
        if room[worker]:
            turns.append(worker)
