"""Planning times by assignor and size of the group, and the times to share partitions over workers.

    python bench/assignors.py

"fresh" starts a group, "grown" adds a tenth more members to a running one, "racks" does so where racks matter.
"narrow" and "wide" are subscriptions that differ from member to member: to a few topics each, or to half of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.assignors.racks import PartitionRacks
from kunicorn.group.protocol import Member, Plan, Subscription
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.partitions.balance import share

SIZES = ((10, 1_000), (50, 5_000), (200, 20_000))
RACKS = ("a", "b", "c")
TOPIC_COUNTS = (1, 100, 20_000)
"""Topics of a group; never more than it has partitions."""

Group = tuple[list[Member], dict[str, int]]


def _group(members: int, partitions: int, topics: int, spread: str, seed: int = 1) -> Group:
    """A group that starts; `spread` says how the members' subscriptions differ."""
    rng = random.Random(seed)
    names = [f"topic-{number:05}" for number in range(topics)]
    choice = {"equal": topics, "narrow": max(1, min(topics, 20)), "wide": max(1, topics // 2)}[spread]
    everyone = [
        Member(f"member-{rank:03}", Subscription(tuple(sorted(rng.sample(names, choice))))) for rank in range(members)
    ]
    return everyone, dict.fromkeys(names, partitions // topics)


def _next_generation(members: Sequence[Member], plan: Plan, name: str) -> list[Member]:
    """The members as they rejoin after `plan`."""
    return [
        Member(
            member.member_id,
            Subscription(
                member.subscription.topics,
                tuple(plan.get(member.member_id, ())),
                1,
                None,
                ASSIGNORS[name].user_data(1, plan.get(member.member_id, ())),
            ),
        )
        for member in members
    ]


def _in_racks(members: Sequence[Member], partitions: Mapping[str, int]) -> tuple[list[Member], PartitionRacks]:
    """Members and two replicas of each partition spread over three racks."""
    pairs = [frozenset(RACKS) - {rack} for rack in RACKS]
    racks = {TopicPartition(topic, n): pairs[n % 3] for topic, count in partitions.items() for n in range(count)}
    return [
        replace(member, subscription=replace(member.subscription, rack=RACKS[rank % 3]))
        for rank, member in enumerate(members)
    ], racks


def _seconds(
    name: str, members: Sequence[Member], partitions: Mapping[str, int], racks: PartitionRacks | None = None
) -> tuple[float, Plan]:
    began = time.process_time()
    plan = ASSIGNORS[name].plan(members, partitions, racks)
    return time.process_time() - began, plan


def _print_plans() -> None:
    print(
        f"{'assignor':20}{'members':>8}{'partitions':>11}{'topics':>7}  "
        f"{'spread':8}{'fresh':>8}{'grown':>8}{'racks':>8}"
    )
    for members, count in SIZES:
        for topics in dict.fromkeys(min(number, count) for number in TOPIC_COUNTS):
            for spread in ("equal", "narrow", "wide") if topics > 1 else ("equal",):
                for name in ASSIGNORS:
                    everyone, partitions = _group(members, count, topics, spread)
                    fresh, plan = _seconds(name, everyone[: -members // 10], partitions)
                    again = _next_generation(everyone, plan, name)
                    grown, _ = _seconds(name, again, partitions)
                    racked_members, racks = _in_racks(again, partitions)
                    racked, _ = _seconds(name, racked_members, partitions, racks)
                    print(f"{name:20}{members:8}{count:11}{topics:7}  {spread:8}{fresh:8.3f}{grown:8.3f}{racked:8.3f}")


def _print_shares() -> None:
    print(f"\n{'workers':>8}{'partitions':>11}{'topics':>7}{'fresh':>8}{'one more':>9}{'one dead':>9}")
    for workers, count, topics in (
        (4, 100, 1),
        (16, 1_000, 10),
        (64, 10_000, 1),
        (64, 10_000, 100),
        (64, 10_000, 10_000),
    ):
        partitions = [TopicPartition(f"topic-{n % topics:05}", n // topics) for n in range(count)]
        times = []
        current: dict[TopicPartition, int] = {}
        for pool in (range(workers - 1), range(workers), range(1, workers)):
            began = time.process_time()
            current = share(partitions, pool, current)
            times.append(time.process_time() - began)
        print(f"{workers:8}{count:11}{topics:7}{times[0]:8.3f}{times[1]:9.3f}{times[2]:9.3f}")


if __name__ == "__main__":
    _print_plans()
    _print_shares()
