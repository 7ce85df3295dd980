"""The plan of Kafka's CooperativeStickyAssignor for members that subscribe to the same topics and name no racks.

A translation of `AbstractStickyAssignor.java` (allSubscriptionsEqual, ConstrainedAssignmentBuilder) and
`CooperativeStickyAssignor.java` (adjustAssignment) of Kafka 4.0, commit 1eb7644349c. Where Java goes through a HashMap,
this goes through the members in the order given. `tests/contract/assignors/test_against_kafka.py` holds it against
plans that Kafka's own made. RangeAssignor needs none: ours plans exactly what Kafka's plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from kunicorn.group.assignors.sticky import unpack_generation
from kunicorn.group.protocol import NO_GENERATION, Member, Plan
from kunicorn.positions import TopicPartition

Held = dict[str, dict[TopicPartition, None]]


def cooperative_sticky_plan(members: Sequence[Member], counts: Mapping[str, int]) -> Plan:
    """Partitions by member id, less those that their owner has to let go of first."""
    held, contested = _claims(members, counts)
    topics = sorted(topic for topic in counts if topic in members[0].subscription.topics)
    plan, transferring = _Constrained(held, contested).build(
        [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
    )
    return {
        member: sorted(tp for tp in partitions if transferring.get(tp) != member)
        for member, partitions in plan.items()
    }  # fmt: skip


def _generation(member: Member) -> int:
    subscription = member.subscription
    if subscription.generation != NO_GENERATION:
        return subscription.generation
    generation = unpack_generation(subscription.user_data)
    return NO_GENERATION if generation is None else generation


def _claims(members: Sequence[Member], counts: Mapping[str, int]) -> tuple[Held, set[TopicPartition]]:
    """What each member keeps of what it says it owns; and what two of one generation say that they own."""
    held: Held = {}
    contested: set[TopicPartition] = set()
    owner: dict[TopicPartition, Member] = {}
    for member in members:
        mine = held[member.member_id] = {}
        for tp in member.subscription.owned:
            if tp.topic not in counts:
                continue
            other = owner.get(tp)
            if other is not None and _generation(member) < other.subscription.generation:
                continue
            if other is not None:
                held[other.member_id].pop(tp, None)
            owner[tp] = member
            if other is not None and _generation(member) == other.subscription.generation:
                contested.add(tp)
            else:
                mine[tp] = None
    return held, contested


class _Constrained:
    """ConstrainedAssignmentBuilder."""

    def __init__(self, held: Held, contested: set[TopicPartition]) -> None:
        self._held, self._contested = held, contested
        self._revoked: dict[TopicPartition, str] = {}
        self._under: list[str] = []
        """Members with less than the least quota."""
        self._exact: list[str] = []
        """Members with exactly that, which may get one more."""
        self._plan: dict[str, list[TopicPartition]] = {member: [] for member in held}
        self._transferring: dict[TopicPartition, str] = {}

    def build(self, partitions: Sequence[TopicPartition]) -> tuple[Plan, Mapping[TopicPartition, str]]:
        """The plan, and the partitions of it that another member has to let go of first, by who they go to."""
        least, over = divmod(len(partitions), len(self._held))
        self._keep(least, least + (over > 0), over)
        kept = {tp for mine in self._plan.values() for tp in mine}
        self._under.sort()
        self._exact.sort()
        self._deal([tp for tp in partitions if tp not in kept], least)
        return self._plan, self._transferring

    def _keep(self, least: int, most: int, over: int) -> None:
        """assignOwnedPartitions; `over` members may have `most`."""
        at_most = 0
        for member, held in self._held.items():
            mine = sorted((tp for tp in held if tp not in self._contested), key=lambda tp: (tp.partition, tp.topic))
            if len(mine) < least:
                self._under.append(member)
                self._plan[member] += mine
                continue
            quota = least
            if len(mine) >= most and at_most < over:
                quota, at_most = most, at_most + 1
                if at_most == over:
                    self._exact.clear()
            elif at_most < over:
                self._exact.append(member)
            self._plan[member] += mine[:quota]
            self._revoked.update(dict.fromkeys(islice(mine, quota, None), member))

    def _deal(self, partitions: Sequence[TopicPartition], least: int) -> None:
        """assignRoundRobin."""
        at = 0
        for tp in partitions:
            if self._under:
                at = at if at < len(self._under) else 0
                member = self._under[at]
                at += 1
            else:
                member = self._exact.pop(0)
            mine = self._plan[member]
            mine.append(tp)
            if self._revoked.get(tp, member) != member or tp in self._contested:
                self._transferring[tp] = member
            if len(mine) == least:
                at -= 1
                del self._under[at]
                self._exact.append(member)
