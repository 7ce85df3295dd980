"""The round-robin assignor: all partitions of all topics dealt out in one round."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kunicorn.group.assignors.racks import PartitionRacks
from kunicorn.group.assignors.roster import Roster
from kunicorn.group.protocol import Member, Plan
from kunicorn.topics import TopicPartition


class RoundRobinAssignor:
    """As Kafka's RoundRobinAssignor: balanced within one if all subscribe to the same topics.

    With unequal subscriptions members that are passed over do not catch up, and the loads can differ widely.
    """

    name = "roundrobin"
    cooperative = False

    def plan(
        self, members: Sequence[Member], partitions: Mapping[str, int], racks: PartitionRacks | None = None
    ) -> Plan:
        """See `Assignor.plan`; racks play no part, as in Kafka's."""
        roster = Roster.of(members, partitions)
        hands: list[list[TopicPartition]] = [[] for _ in roster.members]
        turn = 0
        for topic, ranks in roster.subscribers.items():
            subscribed = frozenset(ranks)
            for number in range(partitions[topic]):
                while turn not in subscribed:
                    turn = (turn + 1) % len(hands)
                hands[turn].append(TopicPartition(topic, number))
                turn = (turn + 1) % len(hands)
        return {member.member_id: hand for member, hand in zip(roster.members, hands, strict=True)}

    def user_data(self, generation: int, previous: Collection[TopicPartition] = ()) -> bytes | None:
        """None: the round depends on nothing but the members and the topics."""
        return None
