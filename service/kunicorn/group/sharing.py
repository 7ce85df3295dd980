"""How a member's partitions are shared out over its own workers. Pure; no other member is concerned."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from kunicorn.topics import TopicPartition


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
