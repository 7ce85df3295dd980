"""Groups as hypothesis draws them: sound ones, and ones whose members claim nonsense."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st

from kunicorn.group.assignors.racks import PartitionRacks
from kunicorn.group.assignors.sticky import pack_assignment
from kunicorn.group.protocol import NO_GENERATION, Member, Plan, Subscription
from kunicorn.positions import TopicPartition

steady = settings(deadline=None, max_examples=40)
"""How long one example takes is no part of a promise: a shared machine stalls now and then."""

TOPICS = ("orders", "payments", "refunds", "stock", "visits")


@dataclass(frozen=True)
class Group:
    """What a leader plans from."""

    members: tuple[Member, ...]
    partitions: dict[str, int]
    racks: PartitionRacks = field(default_factory=dict)

    @property
    def wanted(self) -> frozenset[TopicPartition]:
        """Every partition that somebody subscribes to."""
        topics = {topic for member in self.members for topic in member.subscription.topics}
        return frozenset(TopicPartition(t, n) for t in topics for n in range(self.partitions.get(t, 0)))

    def member(self, member_id: str) -> Member:
        """The member of that id."""
        return next(member for member in self.members if member.member_id == member_id)


def member(
    member_id: str,
    topics: Iterable[str] = ("orders",),
    owned: Iterable[TopicPartition] = (),
    generation: int = NO_GENERATION,
    instance_id: str | None = None,
    rack: str | None = None,
) -> Member:
    """A member that tells what it owned in both places, so that every assignor finds it where it looks."""
    claim = tuple(owned)
    user_data = pack_assignment(claim, generation) if claim else None
    return Member(member_id, Subscription(tuple(topics), claim, generation, rack, user_data), instance_id)


def of(topic: str, *numbers: int) -> list[TopicPartition]:
    """Partitions of one topic."""
    return [TopicPartition(topic, number) for number in numbers]


def after(group: Group, plan: Plan, generation: int) -> Group:
    """The same group when it rejoins, every member owning what `plan` gave it in `generation`."""
    members = [
        member(
            m.member_id,
            m.subscription.topics,
            plan.get(m.member_id, ()),
            generation,
            m.instance_id,
            m.subscription.rack,
        )
        for m in group.members
    ]
    return replace(group, members=tuple(members))


def near(group: Group, plan: Plan) -> int:
    """How many partitions `plan` gives to a member that names a rack with a replica in it."""
    return sum(
        group.member(member_id).subscription.rack in group.racks.get(partition, ())
        for member_id, partitions in plan.items()
        for partition in partitions
    )


def moved(group: Group, plan: Plan) -> int:
    """How many partitions that somebody owned are taken from their owner by `plan`."""
    return sum(len(set(member.subscription.owned) - set(plan[member.member_id])) for member in group.members)


subscriptions = st.lists(st.sampled_from(TOPICS), max_size=6).map(tuple)
"""Topics may be missing, unknown to the cluster, or named twice."""

partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))

claims = st.lists(st.builds(TopicPartition, st.sampled_from((*TOPICS, "gone")), st.integers(-1, 12)), max_size=12)
"""Partitions that may not exist, may be claimed by several members, and more than once by the same one."""


RACKS = ("a", "b", "c")
replica_racks = st.frozensets(st.sampled_from(RACKS), max_size=2)


@st.composite
def groups(
    draw: st.DrawFn, *, alike: bool = False, claiming: bool = True, min_members: int = 0, racked: bool = False
) -> Group:
    """Any group. `alike`: all members subscribe to the same topics. `claiming`: they bring a past, true or not.
    `racked`: members and replicas are in racks, some in none."""
    shared = draw(subscriptions) if alike else None
    members = []
    for number in range(draw(st.integers(min_members, 6))):
        instance = draw(st.sampled_from((None, None, f"pod-{9 - number}")))
        drawn = member(
            f"m{number}",
            draw(subscriptions) if shared is None else shared,
            draw(claims) if claiming else (),
            draw(st.integers(-1, 3)) if claiming else NO_GENERATION,
            instance,
            draw(st.sampled_from((*RACKS, None, ""))) if racked else None,
        )
        members.append(drawn)
    counts = draw(partition_counts)
    everything = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    racks = {partition: draw(replica_racks) for partition in everything} if racked else {}
    return Group(tuple(members), counts, racks)


def loads(plan: Plan) -> Sequence[int]:
    """Partitions by member, most first."""
    return sorted(map(len, plan.values()), reverse=True)
