"""The sticky assignors: as even as possible, and as little moved as that allows (KIP-54, KIP-429)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

from kunicorn.group.assignors.claims import Claim, Ownership
from kunicorn.group.assignors.nearby import hand_out_near
from kunicorn.group.assignors.pools import hand_out, pools_of
from kunicorn.group.assignors.quotas import quotas
from kunicorn.group.assignors.racks import PartitionRacks, Racks
from kunicorn.group.assignors.roster import Roster
from kunicorn.group.assignors.userdata import pack_assignment, pack_generation, unpack_assignment, unpack_generation
from kunicorn.group.protocol import NO_GENERATION, Member, Plan
from kunicorn.topics import TopicPartition


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
