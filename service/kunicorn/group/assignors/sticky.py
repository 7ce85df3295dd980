"""The sticky assignors: as even as possible, and as little moved as that allows (KIP-54, KIP-429).

How many partitions of each pool every member gets, decided on counts alone.

A *pool* is all partitions of the topics that have the same subscribers: whoever may have one of them may have any, so
the balance depends on counts only, and which partitions stay where they are can be chosen afterwards.

The loads come out as even as any assignment can make them, not only as even as moving one partition at a time can
(KIP-54 asks for the latter). A cooperative plan needs that: once its revoked partitions are free, the next round places
them as evenly as the first round wanted, finds nothing left to improve, and revokes nothing again.

The bytes that sticky members add to their Subscription, as the Java client lays them out: no version in front.

Reading never raises: whatever a stranger's client put there, the group must still get a plan.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain

from kunicorn.group.assignors.eligible import Claim, Ownership, Roster, hand_out, pools_of
from kunicorn.group.assignors.racks import PartitionRacks, Racks, hand_out_near
from kunicorn.group.protocol import NO_GENERATION, Member, Plan
from kunicorn.positions import TopicPartition

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


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def pack_generation(generation: int) -> bytes:
    """CooperativeStickyAssignor's user data: the generation alone, for peers whose Subscription (before version 2,
    KIP-792) has no field for it."""
    return _INT32.pack(generation)


def unpack_generation(data: bytes | None) -> int | None:
    """The generation in CooperativeStickyAssignor's user data; None where there is none."""
    return _INT32.unpack_from(data)[0] if data is not None and len(data) >= _INT32.size else None


def pack_assignment(partitions: Collection[TopicPartition], generation: int) -> bytes:
    """StickyAssignorUserData version 1: the previous assignment by topic, and the generation it is of (KIP-341)."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    parts = [_INT32.pack(len(numbers))]
    for topic, of_topic in numbers.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(of_topic)}i", len(of_topic), *of_topic)]
    return b"".join([*parts, _INT32.pack(generation)])


def unpack_assignment(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int | None]:
    """The previous assignment in StickyAssignor's user data and its generation, None in version 0.

    Nothing is claimed by data that cannot be read.
    """
    try:
        return _read_assignment(memoryview(data or b""))
    except (struct.error, UnicodeDecodeError):
        return (), None


def _read_assignment(data: memoryview) -> tuple[tuple[TopicPartition, ...], int | None]:
    partitions: list[TopicPartition] = []
    (topics,), at = _INT32.unpack_from(data), _INT32.size
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, at)
        if length < 0:
            # Reading would go backwards, over the same bytes again and again.
            raise struct.error("a topic's name has a negative length")
        at += _INT16.size
        topic = str(data[at : at + length], "utf-8")
        at += length
        (count,) = _INT32.unpack_from(data, at)
        at += _INT32.size
        partitions += [TopicPartition(topic, number) for number in struct.unpack_from(f">{count}i", data, at)]
        at += count * _INT32.size
    generation = _INT32.unpack_from(data, at)[0] if len(data) - at >= _INT32.size else None
    return tuple(partitions), generation


class StickyAssignor:
    """As Kafka's StickyAssignor. Its members revoke everything before they join, so they tell what they had in the
    user data."""

    name = "sticky"
    cooperative = False

    def plan(
        self, members: Sequence[Member], partitions: Mapping[str, int], racks: PartitionRacks | None = None
    ) -> Plan:
        """See `Assignor.plan`."""
        return _sorted_plan(*_assign(members, partitions, racks or {}, _claim_in_user_data)[:2])

    def user_data(self, generation: int, previous: Collection[TopicPartition] = ()) -> bytes | None:
        """StickyAssignorUserData; None for a member that comes without a past."""
        return None if generation == NO_GENERATION else pack_assignment(previous, generation)


class CooperativeStickyAssignor:
    """As Kafka's CooperativeStickyAssignor: the sticky plan, less what its new owner cannot have yet.

    No partition is added to a member while another member claims it, however old that claim is and whether or not the
    claimant may keep it: it may be handling the partition until it learns better from this very plan. It revokes and
    rejoins, and the next plan gives the partition away.
    """

    name = "cooperative-sticky"
    cooperative = True

    def plan(
        self, members: Sequence[Member], partitions: Mapping[str, int], racks: PartitionRacks | None = None
    ) -> Plan:
        """See `Assignor.plan`. Partitions that are still to be revoked are in nobody's entry."""
        roster, assigned, ownership = _assign(members, partitions, racks or {}, _claim_in_fields)
        claimants = Counter(partition for member in roster.members for partition in set(member.subscription.owned))
        granted: list[list[TopicPartition]] = []
        for rank, member in enumerate(roster.members):
            own = frozenset(member.subscription.owned)
            granted.append(
                [
                    partition
                    for partition in assigned[rank]
                    if ownership.owner.get(partition) == rank or claimants[partition] == (partition in own)
                ]
            )
        return _sorted_plan(roster, granted)

    def user_data(self, generation: int, previous: Collection[TopicPartition] = ()) -> bytes | None:
        """The generation, for leaders that do not know the Subscription's own field."""
        return pack_generation(generation)


def _claim_in_user_data(member: Member) -> Claim:
    partitions, generation = unpack_assignment(member.subscription.user_data)
    return Claim(partitions, NO_GENERATION if generation is None else generation)


def _claim_in_fields(member: Member) -> Claim:
    """The Subscription's own fields; the generation from user data where an old client left the field out."""
    subscription = member.subscription
    if subscription.generation != NO_GENERATION:
        return Claim(subscription.owned, subscription.generation)
    generation = unpack_generation(subscription.user_data)
    return Claim(subscription.owned, NO_GENERATION if generation is None else generation)


def _assign(
    members: Sequence[Member], partitions: Mapping[str, int], known: PartitionRacks, claim: Callable[[Member], Claim]
) -> tuple[Roster, list[list[TopicPartition]], Ownership]:
    """The sticky assignment by rank: first how many of each pool, then which."""
    roster = Roster.of(members, partitions)
    ownership = Ownership.settle([claim(member) for member in roster.members], roster)
    pools = pools_of(roster)
    pool_of = {topic: number for number, pool in enumerate(pools) for topic in pool.topics}
    owned: list[Counter[int]] = [Counter() for _ in roster.members]
    for partition, rank in ownership.owner.items():
        owned[rank][pool_of[partition.topic]] += 1
    sizes = [len(pool.partitions) for pool in pools]
    quota: list[dict[int, int]] = [{} for _ in pools]
    for rank, counts in enumerate(quotas(sizes, [pool.subscribers for pool in pools], owned)):
        for number, count in counts.items():
            quota[number][rank] = count
    everything = chain.from_iterable(pool.partitions for pool in pools)
    racks = Racks.that_matter(roster.members, range(len(roster.members)), everything, known)
    assigned: list[list[TopicPartition]] = [[] for _ in roster.members]
    for pool, of_pool in zip(pools, quota, strict=True):
        given = hand_out_near(pool, of_pool, ownership, racks) if racks else hand_out(pool, of_pool, ownership)
        for partition, rank in given:
            assigned[rank].append(partition)
    return roster, assigned, ownership


def _sorted_plan(roster: Roster, assigned: Sequence[Sequence[TopicPartition]]) -> Plan:
    return {member.member_id: sorted(mine) for member, mine in zip(roster.members, assigned, strict=True)}
