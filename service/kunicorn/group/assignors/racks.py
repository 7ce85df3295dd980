"""Racks: partitions go to members near one of their replicas, as far as balance and stickiness allow (KIP-881).

A member without a rack is near everything; a partition without known racks is near nobody that names one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kunicorn.group.protocol import Member
from kunicorn.topics import TopicPartition

PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of each partition's replicas; what is missing is not known."""

NOWHERE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Racks:
    """Who is near what, where that makes a difference."""

    of_member: tuple[str | None, ...]
    """By rank."""
    of_partition: PartitionRacks

    @classmethod
    def that_matter(
        cls,
        members: Sequence[Member],
        ranks: Iterable[int],
        partitions: Iterable[TopicPartition],
        known: PartitionRacks,
    ) -> Racks | None:
        """The racks of these, or None where they decide nothing: if no rack of a member holds a replica, or if every
        partition is in all racks that there are (`AbstractPartitionAssignor.useRackAwareAssignment`)."""
        if not known:
            return None
        racks = tuple(member.subscription.rack or None for member in members)
        of_members = {racks[rank] for rank in ranks} - {None}
        if not of_members:
            return None
        different = {known.get(partition, NOWHERE) for partition in partitions}
        if len(different) < 2 or of_members.isdisjoint(frozenset().union(*different)):
            return None
        return cls(racks, known)

    def near(self, partition: TopicPartition, rank: int) -> bool:
        """Whether the member has a replica at hand, or does not care."""
        rack = self.of_member[rank]
        return rack is None or rack in self.of_partition.get(partition, NOWHERE)
