"""What members say they owned before, and whom to believe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kunicorn.group.assignors.roster import Roster
from kunicorn.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions one member owned, and the generation in which it got them; −1 is older than any."""

    partitions: Collection[TopicPartition]
    generation: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """The claims, settled. Members are ranks of the roster."""

    owner: dict[TopicPartition, int] = field(default_factory=dict)
    """The one believed claimant of a partition that it may keep."""
    former: dict[TopicPartition, int] = field(default_factory=dict)
    """Who had the partition before `owner`, by an older generation; it may still hold state for it."""

    @classmethod
    def settle(cls, claims: Sequence[Claim], roster: Roster) -> Ownership:
        """The newest generation is believed; claimed twice in the same generation, a partition is nobody's
        (AbstractStickyAssignor, KAFKA-12984). One claim for each rank. Partitions that do not exist, or whose topic
        the member has left, are not claimed.
        """
        settled = cls()
        for partition, ranks in _claimants(claims, roster).items():
            ranks.sort(key=lambda rank: -claims[rank].generation)
            newest, *older = ranks
            if older and claims[older[0]].generation == claims[newest].generation:
                continue
            settled.owner[partition] = newest
            if older:
                settled.former[partition] = older[0]
        return settled


def _claimants(claims: Iterable[Claim], roster: Roster) -> dict[TopicPartition, list[int]]:
    """The ranks that claim each partition and could keep it, ascending."""
    claimants: dict[TopicPartition, list[int]] = {}
    for rank, (member, claim) in enumerate(zip(roster.members, claims, strict=True)):
        topics = frozenset(member.subscription.topics)
        for partition in dict.fromkeys(claim.partitions):
            if partition.topic in topics and 0 <= partition.partition < roster.partitions.get(partition.topic, 0):
                claimants.setdefault(partition, []).append(rank)
    return claimants
