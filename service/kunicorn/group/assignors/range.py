"""The range and round-robin assignors: partitions by topic, or dealt out in one round.

The range assignor: topic by topic, a contiguous range of partitions for each subscriber.

The round-robin assignor: all partitions of all topics dealt out in one round.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from kunicorn.group.assignors.eligible import Roster
from kunicorn.group.assignors.racks import NOWHERE, PartitionRacks, Racks
from kunicorn.group.protocol import Member, Plan
from kunicorn.positions import TopicPartition


class RangeAssignor:
    """As Kafka's RangeAssignor: the first `count % subscribers` members get one partition more.

    Topics with the same subscribers and the same number of partitions are co-partitioned: partition i of each goes to
    the same member. The price is balance: with many small topics the first members carry most of the load.

    Where racks matter, members take what is near first, co-partitioned topics together, and ranges fill up the rest
    (KIP-881).
    """

    name = "range"
    cooperative = False

    def plan(
        self, members: Sequence[Member], partitions: Mapping[str, int], racks: PartitionRacks | None = None
    ) -> Plan:
        """See `Assignor.plan`."""
        roster = Roster.of(members, partitions)
        topics = [_Topic(topic, ranks, partitions[topic]) for topic, ranks in roster.subscribers.items()]
        if racks:
            _deal_near(topics, roster, racks)
        plan: dict[str, list[TopicPartition]] = {member.member_id: [] for member in roster.members}
        for topic in topics:
            topic.deal_ranges()
            for number, rank in enumerate(topic.owners):
                plan[roster.members[rank].member_id].append(TopicPartition(topic.name, number))
        return plan

    def user_data(self, generation: int, previous: Collection[TopicPartition] = ()) -> bytes | None:
        """None: a range depends on nothing but the members and the topics."""
        return None


_NOBODY = -1


class _Topic:
    """One topic's partitions while they are dealt out (`RangeAssignor.TopicAssignmentState`)."""

    def __init__(self, name: str, ranks: tuple[int, ...], count: int) -> None:
        self.name = name
        self.ranks = ranks
        self.owners = [_NOBODY] * count
        self._share, self._extras = divmod(count, len(ranks))
        self._given: dict[int, int] = defaultdict(int)
        self._free_count = count

    @property
    def partitions(self) -> Iterator[TopicPartition]:
        """All of them, ascending."""
        return (TopicPartition(self.name, number) for number in range(len(self.owners)))

    def room(self, rank: int) -> int:
        """How many more the member may get now; never grows."""
        return max(0, self._share + (self._extras > 0) - self._given[rank])

    def give(self, rank: int, number: int) -> None:
        """To a member that has room."""
        self.owners[number] = rank
        self._given[rank] += 1
        self._extras -= self._given[rank] > self._share
        self._free_count -= 1

    def deal_ranges(self) -> None:
        """What is left, from the lowest number on, to the members in order."""
        free = self._free(range(len(self.owners)))
        for rank in self.ranks:
            if not self._free_count:
                return
            self._take(rank, free)

    def deal_near(self, racks: Racks) -> None:
        """To each member in order what is near and still free, from the lowest number on."""
        # One queue a rack: a member after another takes from its front, so no partition is looked at twice.
        in_rack: dict[str | None, list[int]] = defaultdict(list, {None: list(range(len(self.owners)))})
        for partition in self.partitions:
            for rack in racks.of_partition.get(partition, NOWHERE):
                in_rack[rack].append(partition.partition)
        queues = {rack: self._free(numbers) for rack, numbers in in_rack.items()}
        for rank in self.ranks:
            if not self._free_count:
                return
            self._take(rank, queues.get(racks.of_member[rank], iter(())))

    def _take(self, rank: int, free: Iterator[int]) -> None:
        for _ in range(self.room(rank)):
            number = next(free, None)
            if number is None:
                return
            self.give(rank, number)

    def _free(self, numbers: Collection[int]) -> Iterator[int]:
        """Those that nobody has when their turn comes."""
        return (number for number in numbers if self.owners[number] == _NOBODY)


def _deal_near(topics: Sequence[_Topic], roster: Roster, known: PartitionRacks) -> None:
    """Near partitions first, if racks matter in any topic; co-partitioned topics together."""
    racks = [Racks.that_matter(roster.members, topic.ranks, topic.partitions, known) for topic in topics]
    if not any(racks):
        return
    everywhere = Racks(tuple(member.subscription.rack or None for member in roster.members), known)
    alike: dict[tuple[tuple[int, ...], int], list[tuple[_Topic, Racks | None]]] = defaultdict(list)
    for topic, of_topic in zip(topics, racks, strict=True):
        alike[topic.ranks, len(topic.owners)].append((topic, of_topic))
    for (ranks, count), group in alike.items():
        if len(group) > 1:
            _deal_together([topic for topic, _ in group], ranks, count, everywhere)
        elif (of_topic := group[0][1]) is not None:
            group[0][0].deal_near(of_topic)


def _deal_together(topics: Sequence[_Topic], ranks: Sequence[int], count: int, racks: Racks) -> None:
    """Partition i of all these topics to the first member that is near all of them and has room."""
    waiting: dict[str | None, deque[int]] = defaultdict(deque)
    for rank in ranks:
        waiting[racks.of_member[rank]].append(rank)
    leading = topics[0]  # They fill up alike: one tells the room in all of them.
    for number in range(count):
        common = frozenset.intersection(
            *(racks.of_partition.get(TopicPartition(topic.name, number), NOWHERE) for topic in topics)
        )
        first = [queue[0] for rack in (None, *common) if (queue := _with_room(waiting.get(rack), leading))]
        if first:
            for topic in topics:
                topic.give(min(first), number)


def _with_room(queue: deque[int] | None, topic: _Topic) -> deque[int] | None:
    """The queue without the members in front that are full: they stay so."""
    while queue and not topic.room(queue[0]):
        queue.popleft()
    return queue


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
