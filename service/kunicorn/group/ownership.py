"""What a classic member owns, over the two joins of a cooperative rebalance (KIP-429). Pure."""

from __future__ import annotations

from collections.abc import Collection

from kunicorn.topics import TopicPartition

Partitions = frozenset[TopicPartition]


class Ownership:
    """Our partitions: what JoinGroup names as owned is all that a worker of ours may still handle."""

    def __init__(self) -> None:
        self.owned: Partitions = frozenset()
        self.assigned: Partitions = frozenset()
        """What the last plan gave us, for assignors that keep partitions where they were (KIP-54)."""
        self._held: Partitions = frozenset()
        """Owned ones that a plan took away and that still drain: a later plan may give them back meanwhile."""

    def adopt(self, assigned: Partitions) -> tuple[Partitions, Partitions]:
        """A plan gave us these; returns what is new, and what it takes away.

        What still drains is as good as new to those who fetch: they have to be told to take it up again.
        """
        self.assigned = assigned
        revoked, added = self.owned - assigned, assigned - (self.owned - self._held)
        self.owned |= added
        self._held -= added
        return added, revoked

    def release(self, partitions: Collection[TopicPartition], held: Partitions) -> None:
        """These are ours no more, but for those `held` by a handler."""
        self._held = held
        self.owned -= frozenset(partitions) - held

    def drop(self) -> tuple[TopicPartition, ...]:
        """Everything is lost; returns what it was, sorted."""
        lost = tuple(sorted(self.owned))
        self.owned = self.assigned = self._held = frozenset()
        return lost
