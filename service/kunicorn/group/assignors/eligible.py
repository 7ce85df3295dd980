"""Who may have which partitions, and whose claims to them count.

Pools: partitions that the same members may have, and which member gets which of them.

Who may get what: members in Kafka's order and the subscribers of each topic.

What members say they owned before, and whom to believe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from kunicorn.group.protocol import Member
from kunicorn.positions import TopicPartition


@dataclass(frozen=True, slots=True)
class Roster:
    """Members are spoken of by *rank*, their place in `members`."""

    members: tuple[Member, ...]
    subscribers: Mapping[str, tuple[int, ...]]
    """Ranks by topic, both ascending; only topics that have partitions and at least one subscriber."""
    partitions: Mapping[str, int]

    @classmethod
    def of(cls, members: Sequence[Member], partitions: Mapping[str, int]) -> Roster:
        """The roster of a group; `partitions` is the number of partitions by topic."""
        ordered = tuple(sorted(members, key=_place))
        return cls(ordered, _subscribers(ordered, partitions), partitions)


def _place(member: Member) -> tuple[bool, str, str]:
    """Static members first, by instance id; then the others by member id (AbstractPartitionAssignor.MemberInfo).

    A static member comes back from a restart under a new member id, and must get the same partitions.
    """
    return member.instance_id is None, member.instance_id or "", member.member_id


def _subscribers(members: Sequence[Member], partitions: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """See `Roster.subscribers`. Most groups have but one subscription, or a few: members are taken together by it."""
    # As sets: a topic named twice would get the member two shares in a range and two turns in a round.
    alike: dict[frozenset[str], list[int]] = {}
    for rank, member in enumerate(members):
        alike.setdefault(frozenset(member.subscription.topics), []).append(rank)
    groups = list(alike.values())
    groups_of: dict[str, list[int]] = {topic: [] for topic, count in sorted(partitions.items()) if count > 0}
    known = frozenset(groups_of)
    for number, topics in enumerate(alike):
        for topic in topics & known:
            groups_of[topic].append(number)
    ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
    subscribers: dict[str, tuple[int, ...]] = {}
    for topic, numbers in groups_of.items():
        if numbers:
            key = tuple(numbers)
            subscribers[topic] = ranks.get(key) or ranks.setdefault(key, _merged(map(groups.__getitem__, numbers)))
    return subscribers


def _merged(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted(chain.from_iterable(groups)))


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


@dataclass(frozen=True, slots=True)
class Pool:
    """All partitions of the topics that have exactly these subscribers."""

    subscribers: tuple[int, ...]
    """Ranks, ascending."""
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    """Sorted."""


def pools_of(roster: Roster) -> list[Pool]:
    """The pools in the order of their first topics; a single one if all members subscribe to the same topics."""
    topics: dict[tuple[int, ...], list[str]] = {}
    for topic, ranks in roster.subscribers.items():
        topics.setdefault(ranks, []).append(topic)
    return [
        Pool(
            ranks,
            tuple(names),
            tuple(TopicPartition(topic, number) for topic in names for number in range(roster.partitions[topic])),
        )
        for ranks, names in topics.items()
    ]


def hand_out(pool: Pool, quota: dict[int, int], ownership: Ownership) -> list[tuple[TopicPartition, int]]:
    """Who gets which: first what each owned, then what it had before that, then the rest in turns.

    `quota` is the count by rank, none of them zero, ranks ascending; together exactly the pool's size.
    """
    room = dict(quota)
    given: dict[TopicPartition, int] = {}

    def give(partition: TopicPartition, rank: int | None) -> None:
        if rank is not None and room.get(rank, 0) and partition not in given:
            given[partition] = rank
            room[rank] -= 1

    # By number first: a member that must give some up gives up the highest numbers of all its topics, not one topic.
    for partition in sorted(pool.partitions, key=lambda partition: (partition.partition, partition.topic)):
        give(partition, ownership.owner.get(partition))
    for partition in pool.partitions:
        give(partition, ownership.former.get(partition))
    turns = deque(rank for rank in room if room[rank])
    for partition in pool.partitions:
        if partition in given:
            continue
        give(partition, rank := turns.popleft())
        if room[rank]:
            turns.append(rank)
    return list(given.items())
