"""The client's assignment: which partitions the Kafka client fetches, and from where.

Every method is called by the loop's thread, between turns, but for `leave`, which only notes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import NO_EPOCH, Position, TopicPartition
from kunicorn.worker.client import Client
from kunicorn.worker.progress import Grant, GrantState

_LEARN_SECONDS = 0.5
"""How long the loop may wait for a new topic's metadata, once for each topic."""


class ClientAssignment:
    """What the Kafka client is assigned, beside the table of grants, whose lock every caller holds."""

    def __init__(self, client: Client) -> None:
        self.paused: set[TopicPartition] = set()
        """Assigned, and the client gives out nothing of them."""
        self.leaving: set[TopicPartition] = set()
        """Assigned, but for a grant that is not fetching any more."""
        self.came_at = -NANOSECONDS * 60
        """When a partition was assigned last that was not there before, or had waited for its time."""
        self._consumer, self._topics = client.consumer, client.topics

    def learn(self, topics: Iterable[str]) -> None:
        """Have the client know these topics, or an assignment would stall. Blocks for a moment. Not locked."""
        self._topics.learn(topics, _LEARN_SECONDS)

    def leave(self, grant: Grant) -> None:
        """Note that the partition is fetched no more; the client follows with the next turn. Caller: any thread."""
        if grant.assigned:
            grant.assigned = False
            self.leaving.add(grant.tp)

    def unassign(self) -> None:
        """Follow what has left."""
        if self.leaving:
            # Held back when it left, it would be so when it is assigned again.
            self._resume(self.paused & self.leaving)
            self._consumer.incremental_unassign([ClientPartition(*tp) for tp in self.leaving])
            self.leaving.clear()

    def assign(self, grants: Sequence[Grant], now: int) -> tuple[Collection[Grant], KafkaException | None]:
        """Have these fetched; those that have to wait for the next turn, and why it takes none of the rest."""
        if not grants:
            return (), None
        known = {grant for grant, _ in self.positions(grants)}
        if not (taken := [grant for grant in grants if grant not in known]):
            return known, None
        try:
            self._consumer.incremental_assign([from_where(grant) for grant in taken])
        except KafkaException as error:
            return known, error
        if any(not grant.was_assigned or grant.waits_for == "delay" for grant in taken):
            self.came_at = now
        for grant in taken:
            grant.assigned = grant.was_assigned = True
            grant.state, grant.resume_at = GrantState.FETCHING, None
        return known, None

    def positions(self, grants: Sequence[Grant]) -> Iterator[tuple[Grant, Position]]:
        """Up to where the client has given out what there is, of those of which it knows that."""
        if not grants:
            return
        told = self._consumer.position([ClientPartition(*grant.tp) for grant in grants])
        for grant, now in zip(grants, told, strict=True):
            if now.offset >= 0:
                yield grant, Position(now.offset, NO_EPOCH if now.leader_epoch is None else now.leader_epoch)

    def pause(self, partitions: set[TopicPartition]) -> None:
        """Have the client give out nothing more of these until `resume`, and throw away what it has fetched of them
        (librdkafka's `rd_kafka_toppar_pause_resume`): whatever else it has comes next. Not locked."""
        if more := partitions - self.paused:
            self._consumer.pause([ClientPartition(*tp) for tp in more])
            self.paused |= more

    def resume(self) -> None:
        """Fetch the paused partitions again, from the client's position in them. Not locked."""
        self._resume(set(self.paused))

    def _resume(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            self._consumer.resume([ClientPartition(*tp) for tp in partitions])
            self.paused -= partitions


def from_where(grant: Grant) -> ClientPartition:
    """The partition as the client takes it, from behind what has arrived on: what is handled and not delivered yet,
    fetched again, would be sent twice.
    """
    position = grant.resume_at
    if position is None:
        tracker = grant.tracker
        position = Position(tracker.consumed, tracker.epoch)
        if tracker.following > tracker.consumed:
            position = Position(tracker.following, tracker.following_epoch)
    if position.leader_epoch == NO_EPOCH:
        return ClientPartition(*grant.tp, position.offset)
    return ClientPartition(*grant.tp, position.offset, leader_epoch=position.leader_epoch)
