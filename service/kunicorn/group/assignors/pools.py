"""Pools: partitions that the same members may have, and which member gets which of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kunicorn.group.assignors.claims import Ownership
from kunicorn.group.assignors.roster import Roster
from kunicorn.topics import TopicPartition


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
