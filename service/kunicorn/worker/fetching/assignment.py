"""The client's assignment: which partitions the Kafka client fetches, and from where.

Every method is called by the loop's thread, between turns, but for `leave`, which only notes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from confluent_kafka import KafkaException

from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.positions import Position, TopicPartition
from kunicorn.worker.fetching.client import Client
from kunicorn.worker.progress import Grant, GrantState, OffsetTracker

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
        self._client = client

    def learn(self, topics: Iterable[str]) -> None:
        """Have the client know these topics, or an assignment would stall. Blocks for a moment. Not locked."""
        self._client.learn(topics, _LEARN_SECONDS)

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
            self._client.unassign(self.leaving)
            self.leaving.clear()

    def assign(self, grants: Sequence[Grant], now: int) -> tuple[Collection[Grant], KafkaException | None]:
        """Have these fetched; those that have to wait for the next turn, and why it takes none of the rest."""
        if not grants:
            return (), None
        known = {grant for grant, _ in self.positions(grants)}
        if not (taken := [grant for grant in grants if grant not in known]):
            return known, None
        try:
            self._client.assign(
                {grant.tp: from_where(grant.tracker) for grant in taken},
                {grant.tp: grant.tracker.topic_id for grant in taken},
            )
        except KafkaException as error:
            return known, error
        if any(not grant.was_assigned or grant.waits_for == "delay" for grant in taken):
            self.came_at = now
        for grant in taken:
            grant.assigned = grant.was_assigned = True
            grant.state = GrantState.FETCHING
        return known, None

    def positions(self, grants: Sequence[Grant]) -> Iterator[tuple[Grant, Position]]:
        """Up to where the client has given out what there is, of those of which it knows that."""
        if not grants:
            return
        told = self._client.positions([grant.tp for grant in grants])
        for grant, position in zip(grants, told, strict=True):
            if position is not None:
                yield grant, position

    def pause(self, partitions: set[TopicPartition]) -> None:
        """Have the client give out nothing more of these until `resume`, and throw away what it has fetched of them:
        whatever else it has comes next. Not locked."""
        if more := partitions - self.paused:
            self._client.pause(more)
            self.paused |= more

    def resume(self) -> None:
        """Fetch the paused partitions again, from the client's position in them. Not locked."""
        self._resume(set(self.paused))

    def _resume(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            self._client.resume(partitions)
            self.paused -= partitions


def from_where(tracker: OffsetTracker) -> Position:
    """Where the partition is to be fetched from: the first record that was dropped to make room, or else behind what
    has arrived. What is handled and not delivered yet would be sent twice if it were fetched again.
    """
    if tracker.dropped:
        # Behind them they would be taken for compacted ones, and passed: also where the partition has left again
        # before they came, to wait for its delay.
        return Position(tracker.dropped[0].offset, tracker.dropped[0].epoch)
    if tracker.following > tracker.consumed:
        return Position(tracker.following, tracker.following_epoch)
    return Position(tracker.consumed, tracker.epoch)
