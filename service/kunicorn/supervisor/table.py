"""The partitions that are ours, or still being let go of, and what may be committed of them. Nothing blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from kunicorn.group.partitions import PartitionState
from kunicorn.supervisor.partition import Partition
from kunicorn.topics import Position, TopicPartition


class PartitionTable(dict[TopicPartition, Partition]):
    """By topic and number. A partition stays until its offsets are committed, or are not ours to commit."""

    def __init__(self) -> None:
        super().__init__()
        self.workers_commit = False
        """Consumed offsets are committed by the workers, in transactions, before their ledgers tell of them."""
        self.topic_id: Callable[[str], UUID | None] = lambda _: None
        """Set by the service: the id of the topic that has this name now, as far as is known."""
        self.kept_elsewhere: Callable[[str], bool] = lambda _: False
        """Set by the service: whether a topic's handler keeps the offsets itself, beside its effects."""

    def enter(self, tp: TopicPartition) -> Partition:
        """It is ours from now on, as a partition of the topic that has this name now."""
        partition = self[tp] = Partition(tp)
        partition.topic_id = self.topic_id(tp.topic)
        return partition

    def enter_again(self, released: Partition, *, ours_throughout: bool) -> Partition:
        """It came back while it was let go of. One of another topic of the same name starts at its beginning, unless
        another member may have begun with that: then where it is committed by now. So does one that had not begun here:
        it may have come to us when others knew the new topic already."""
        again = self.enter(released.tp)
        begun = released.fresh or released.position is not None
        again.fresh = ours_throughout and begun and _other(released.topic_id, again.topic_id)
        return again

    def held(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Which of these a worker of ours may still handle."""
        return frozenset(tp for tp in partitions if (p := self.get(tp)) and p.state is not PartitionState.RELEASED)

    # -- topics that are gone ------------------------------------------------------------------------------------

    def of_gone_topics(self) -> list[TopicPartition]:
        """Those that belong to a topic that was deleted, and created anew under the same name."""
        return [
            tp
            for tp, partition in self.items()
            if not partition.lost and _other(partition.topic_id, self.topic_id(tp.topic))
        ]

    def disown(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit nothing of these any more; an offset of the old topic would count for the new one."""
        for tp in partitions:
            self[tp].lost = True

    # -- for the committer ---------------------------------------------------------------------------------------

    def anything_to_settle(self) -> bool:
        """Whether a worker has a record in hand, or something that was handled waits for its commit."""
        return any(partition.busy for partition in self.values()) or bool(self.consumed())

    def consumed(self) -> dict[TopicPartition, Position]:
        """What may be committed now and is not yet: of owned partitions only, never past an unfinished record.

        Nothing of handlers that keep their offsets: a second truth would be believed where theirs is gone.
        """
        ready: dict[TopicPartition, Position] = {}
        for tp, partition in self.items():
            partition.look()
            if self.workers_commit:
                partition.committed = (
                    partition.position.offset if partition.position is not None else partition.committed
                )
                continue
            position = partition.reached() if not partition.lost else None
            if position is None or self.kept_elsewhere(tp.topic):
                continue
            if (position.offset, position.done) != (partition.committed, partition.committed_done):
                ready[tp] = position
        return ready

    def not_committed_here(self, topic: str) -> str | None:
        """Why offsets of that topic are not the supervisor's to set, and what to do instead; None: they are."""
        if self.workers_commit:
            return "workers commit its offsets, in transactions (producing.delivery): stop and `kunicorn offsets reset`"
        if self.kept_elsewhere(topic):
            return "its handler keeps the offsets itself (load_offsets): stop and change what it has stored"
        return None

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
        """Of those topics among them whose id is known: the one that these partitions were consumed of."""
        known = ((tp.topic, self[tp].topic_id) for tp in partitions if tp in self)
        return {topic: topic_id for topic, topic_id in known if topic_id is not None}

    def committed(self, tp: TopicPartition, position: Position) -> None:
        """The broker has it."""
        if (partition := self.get(tp)) is not None:
            partition.committed, partition.committed_done = position.offset, position.done


def _other(before: UUID | None, now: UUID | None) -> bool:
    return before is not None and now is not None and before != now
