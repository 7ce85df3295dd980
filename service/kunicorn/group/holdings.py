"""What a member with the consumer protocol owns against what the coordinator wants it to own (KIP-848). Pure.

Partitions are known by topic id: a topic that was deleted and created anew is another topic of the same name, and its
partitions are let go of before those of the new one are taken up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from uuid import UUID

from kunicorn.group.protocol import TopicPartitions
from kunicorn.topics import TopicPartition


class Holdings:
    """Our partitions by topic id, the newest assignment, and the names of topics as far as they are known."""

    def __init__(self) -> None:
        self.target: TopicPartitions = ()
        """The newest assignment: all that we may own."""
        self._topic_ids: dict[TopicPartition, UUID] = {}
        """What we own, and under which topic id it was given to us."""
        self._names: dict[UUID, str] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What a worker of ours may handle."""
        return frozenset(self._topic_ids)

    @property
    def unnamed(self) -> frozenset[UUID]:
        """Assigned topics whose names nobody has told us yet: their partitions wait."""
        return frozenset(topic_id for topic_id, _ in self.target if topic_id not in self._names)

    def name(self, names: Mapping[UUID, str]) -> None:
        """The cluster calls these topics so."""
        self._names.update(names)

    def surplus(self) -> tuple[TopicPartition, ...]:
        """What we own and should not."""
        wanted = {(topic_id, number) for topic_id, numbers in self.target for number in numbers}
        return tuple(sorted(tp for tp, topic_id in self._topic_ids.items() if (topic_id, tp.partition) not in wanted))

    def take_up(self) -> tuple[TopicPartition, ...]:
        """Own what the assignment gives us and has a name; returns what is new."""
        added = {
            tp: topic_id
            for topic_id, numbers in self.target
            if topic_id in self._names
            for number in numbers
            if number >= 0 and (tp := TopicPartition(self._names[topic_id], number)) not in self._topic_ids
        }
        self._topic_ids |= added
        return tuple(sorted(added))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """These are ours no more."""
        for tp in partitions:
            self._topic_ids.pop(tp, None)

    def drop(self) -> tuple[TopicPartition, ...]:
        """Own nothing and expect nothing; returns what we owned. Names stay: ids are never reused."""
        lost = tuple(sorted(self._topic_ids))
        self._topic_ids, self.target = {}, ()
        return lost

    def report(self) -> TopicPartitions:
        """What we own, as a heartbeat says it."""
        owned = sorted((topic_id, tp.partition) for tp, topic_id in self._topic_ids.items())
        return tuple((topic_id, tuple(n for _, n in group)) for topic_id, group in groupby(owned, lambda each: each[0]))
