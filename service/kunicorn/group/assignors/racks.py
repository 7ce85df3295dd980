"""Racks: partitions go to members near one of their replicas, as far as balance and stickiness allow (KIP-881).

A member without a rack is near everything; a partition without known racks is near nobody that names one.

Handing out a pool where racks matter: what is near stays or comes first, then the rest (KIP-881).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kunicorn.group.assignors.eligible import Ownership, Pool
from kunicorn.group.protocol import Member
from kunicorn.positions import TopicPartition

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


def hand_out_near(
    pool: Pool, quota: dict[int, int], ownership: Ownership, racks: Racks
) -> list[tuple[TopicPartition, int]]:
    """As `hand_out`, but a partition far from its owner goes to a member near it that has room.

    As in `AbstractStickyAssignor`, nearness goes before stickiness and balance before nearness. Done again after
    nothing has changed, it changes nothing: nobody near had room for what is far, and whoever holds it has room for it.
    """
    table = _Table(quota)
    by_number = sorted(pool.partitions, key=lambda partition: (partition.partition, partition.topic))
    for partition in by_number:
        table.give_if(partition, ownership.owner.get(partition), racks)
    for partition in pool.partitions:
        table.give_if(partition, ownership.former.get(partition), racks)
    table.deal_near(pool.partitions, racks)
    for partition in by_number:
        table.give_if(partition, ownership.owner.get(partition))
    for partition in pool.partitions:
        table.give_if(partition, ownership.former.get(partition))
    table.deal(pool.partitions)
    return list(table.given.items())


class _Table:
    """Who has got what, and who has room for how many more."""

    def __init__(self, quota: dict[int, int]) -> None:
        self.given: dict[TopicPartition, int] = {}
        self._room = dict(quota)

    def give_if(self, partition: TopicPartition, rank: int | None, racks: Racks | None = None) -> None:
        """To this member, if it has room and (with `racks`) is near."""
        if rank is None or partition in self.given or not self._room.get(rank, 0):
            return
        if racks is None or racks.near(partition, rank):
            self._give(partition, rank)

    def deal_near(self, partitions: Iterable[TopicPartition], racks: Racks) -> None:
        """In turns to members that name a rack near the partition; those with the fewest such members first."""
        turns: dict[str, deque[int]] = defaultdict(deque)
        places: dict[str, int] = defaultdict(int)
        for rank, room in self._room.items():
            if room and (rack := racks.of_member[rank]) is not None:
                turns[rack].append(rank)
                places[rack] += room
        choices = {
            partition: [rack for rack in sorted(racks.of_partition.get(partition, NOWHERE)) if rack in turns]
            for partition in partitions
            if partition not in self.given
        }
        for partition in sorted(choices, key=lambda partition: sum(len(turns[rack]) for rack in choices[partition])):
            # Where most is free: a partition with a choice leaves the crowded rack to those without one.
            rack = max(choices[partition], key=places.__getitem__, default=None)
            if rack is not None and places[rack]:
                places[rack] -= 1
                self._next(partition, turns[rack])

    def deal(self, partitions: Iterable[TopicPartition]) -> None:
        """The rest in turns, wherever they are."""
        turns = deque(rank for rank, room in self._room.items() if room)
        for partition in partitions:
            if partition not in self.given:
                self._next(partition, turns)

    def _next(self, partition: TopicPartition, turns: deque[int]) -> None:
        rank = turns.popleft()
        self._give(partition, rank)
        if self._room[rank]:
            turns.append(rank)

    def _give(self, partition: TopicPartition, rank: int) -> None:
        self.given[partition] = rank
        self._room[rank] -= 1
