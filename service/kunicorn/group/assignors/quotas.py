"""How many partitions of each pool every member gets, decided on counts alone.

A *pool* is all partitions of the topics that have the same subscribers: whoever may have one of them may have any, so
the balance depends on counts only, and which partitions stay where they are can be chosen afterwards.

The loads come out as even as any assignment can make them, not only as even as moving one partition at a time can
(KIP-54 asks for the latter). A cooperative plan needs that: once its revoked partitions are free, the next round places
them as evenly as the first round wanted, finds nothing left to improve, and revokes nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

Counts = list[dict[int, int]]
"""By member's rank: how many partitions of each pool, zero left out."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One partition of `pool` from `giver` to `taker`."""

    giver: int
    pool: int
    taker: int


def quotas(sizes: Sequence[int], subscribers: Sequence[Sequence[int]], owned: Sequence[Mapping[int, int]]) -> Counts:
    """The count of each pool for each member.

    `sizes` and `subscribers` are the number of partitions and the ranks of each pool, `owned` how many of each pool
    every member has already. What nobody owns is placed first, as evenly as possible; only then is taken away from
    members what evenness still demands.
    """
    load = [sum(counts.values()) for counts in owned]
    placed = _place(sizes, subscribers, owned, load)
    _level(load, placed, subscribers)
    for counts, more in zip(placed, owned, strict=True):
        for pool, count in more.items():
            counts[pool] = counts.get(pool, 0) + count
    _level(load, placed, subscribers)
    return placed


def _place(
    sizes: Sequence[int], subscribers: Sequence[Sequence[int]], owned: Sequence[Mapping[int, int]], load: list[int]
) -> Counts:
    """Give what nobody owns to the least loaded subscribers, pools with the fewest subscribers first; `load` grows."""
    free = list(sizes)
    for counts in owned:
        for pool, count in counts.items():
            free[pool] -= count
    placed: Counts = [{} for _ in owned]
    for pool in sorted(range(len(sizes)), key=lambda pool: len(subscribers[pool])):
        if not free[pool]:
            continue
        lightest = [(load[rank], rank) for rank in subscribers[pool]]
        heapify(lightest)
        for _ in range(free[pool]):
            carried, rank = lightest[0]
            heapreplace(lightest, (carried + 1, rank))
            load[rank] = carried + 1
            placed[rank][pool] = placed[rank].get(pool, 0) + 1
    return placed


def _level(load: list[int], held: Counts, subscribers: Sequence[Sequence[int]]) -> None:
    """Transfer out of `held`, one partition at a time, until no chain of transfers makes the loads more even.

    Each chain takes from a member and adds to one with at least two less, so the sum of the squared loads falls and
    this ends. From the heaviest down: if nobody whom the heaviest member can reach is light enough, then nobody whom
    it reaches can give or take any more either, and all of them are settled.
    """
    heaviest = [(-carried, -rank) for rank, carried in enumerate(load)]
    heapify(heaviest)
    settled: set[int] = set()
    while heaviest:
        carried, rank = (-number for number in heappop(heaviest))
        if rank in settled or carried != load[rank]:
            continue
        chain = _chain_down(rank, load, held, subscribers, settled)
        for transfer in chain:
            _apply(transfer, held)
        if chain:
            load[rank] -= 1
            load[chain[-1].taker] += 1
            heappush(heaviest, (-load[rank], -rank))
            heappush(heaviest, (-load[chain[-1].taker], -chain[-1].taker))


def _chain_down(
    heavy: int, load: list[int], held: Counts, subscribers: Sequence[Sequence[int]], settled: set[int]
) -> list[_Transfer]:
    """A shortest chain of transfers from `heavy` to a member with at least two less.

    Without one the list is empty, and `settled` grows by all that `heavy` reaches.
    """
    reached_by: dict[int, _Transfer | None] = {heavy: None}
    seen: set[int] = set()
    queue = [heavy]
    for giver in queue:
        for pool in held[giver]:
            if pool in seen:
                continue
            seen.add(pool)
            lightest = min(subscribers[pool], key=load.__getitem__)
            if load[lightest] + 1 < load[heavy]:
                return _back_from(_Transfer(giver, pool, lightest), reached_by)
            for taker in subscribers[pool]:
                if taker not in reached_by and taker not in settled:
                    reached_by[taker] = _Transfer(giver, pool, taker)
                    queue.append(taker)
    settled.update(reached_by)
    return []


def _back_from(last: _Transfer, reached_by: Mapping[int, _Transfer | None]) -> list[_Transfer]:
    chain = [last]
    while (before := reached_by[chain[-1].giver]) is not None:
        chain.append(before)
    return chain[::-1]


def _apply(transfer: _Transfer, held: Counts) -> None:
    giver, taker = held[transfer.giver], held[transfer.taker]
    giver[transfer.pool] -= 1
    if not giver[transfer.pool]:
        del giver[transfer.pool]
    taker[transfer.pool] = taker.get(transfer.pool, 0) + 1
