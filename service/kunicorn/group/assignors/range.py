"""The range assignor: topic by topic, a contiguous range of partitions for each subscriber."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kunicorn.group.assignors.roster import Roster
from kunicorn.group.protocol import Member, Plan
from kunicorn.topics import TopicPartition


class RangeAssignor:
    """As Kafka's RangeAssignor: the first `count % subscribers` members get one partition more.

    Topics with the same subscribers and the same number of partitions are co-partitioned: partition i of each goes to
    the same member. The price is balance: with many small topics the first members carry most of the load.
    """

    name = "range"
    cooperative = False

    def plan(self, members: Sequence[Member], partitions: Mapping[str, int]) -> Plan:
        """See `Assignor.plan`."""
        roster = Roster.of(members, partitions)
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in roster.members}
        for topic, ranks in roster.subscribers.items():
            share, extra = divmod(partitions[topic], len(ranks))
            start = 0
            for place, rank in enumerate(ranks[: partitions[topic]]):
                end = start + share + (place < extra)
                plan[roster.members[rank].member_id] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return plan

    def user_data(self, generation: int, previous: Collection[TopicPartition] = ()) -> bytes | None:
        """None: a range depends on nothing but the members and the topics."""
        return None
