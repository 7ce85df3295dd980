"""Who runs each partition of a modelled group, and the group's invariants held against each change.

The cost of a check is what has changed, never what there is: a group of a thousand members and a hundred thousand
partitions is held against its invariants at each of millions of events.

- No partition is handled by two members (invariant 4).
- No partition is given away while another member may still handle it: where that happens, two may handle it later.
- In a group that is settled no partition is without an owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from kunicorn.positions import TopicPartition


class Holder(Protocol):
    """A member that runs partitions."""

    @property
    def name(self) -> str:
        """As messages call it."""

    @property
    def identity(self) -> str:
        """The same for a static member and the one that comes back in its place."""

    @property
    def certain(self) -> bool:
        """Whether its workers may handle records now: they pause where its lease ends."""


class Owners:
    """See the module. `now` never goes backwards."""

    def __init__(self, partitions: Iterable[TopicPartition], now: float) -> None:
        self.unowned_seconds = 0.0
        """Seconds that partitions were run by nobody, summed over partitions."""
        self.moved = 0
        """Partitions that were taken up by another member than the one that ran them last."""
        self.changed_at = now
        """When a partition was taken up or let go of last."""
        self._holder: dict[TopicPartition, Holder] = {}
        self._contested: dict[TopicPartition, list[Holder]] = {}
        """Run by more than one member: forbidden, unless all but one are not certain of their membership."""
        self._last: dict[TopicPartition, str] = {}
        self._unowned: set[TopicPartition] = set(partitions)
        self._counted_at = now

    @property
    def unowned(self) -> Collection[TopicPartition]:
        """What nobody runs."""
        return self._unowned

    def add(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """There are new partitions."""
        self.count(now)
        self._unowned.update(partitions)

    def take(self, holder: Holder, partitions: Iterable[TopicPartition], now: float) -> None:
        """This member runs them from now on."""
        self.count(now)
        for tp in partitions:
            other = self._holder.setdefault(tp, holder)
            if other is not holder:
                self._contested.setdefault(tp, [other]).append(holder)
            self._unowned.discard(tp)
            self.moved += self._last.get(tp, holder.identity) != holder.identity
            self._last[tp] = holder.identity
            self.changed_at = now

    def release(self, holder: Holder, partitions: Iterable[TopicPartition], now: float) -> None:
        """It does not run them any more."""
        self.count(now)
        for tp in partitions:
            rest = [each for each in self._contested.pop(tp, [self._holder[tp]]) if each is not holder]
            if rest:
                self._holder[tp] = rest[0]
            else:
                del self._holder[tp]
                self._unowned.add(tp)
            if len(rest) > 1:
                self._contested[tp] = rest
            self.changed_at = now

    def check(self) -> None:
        """Raise `AssertionError` where a partition is handled by two members (invariant 4)."""
        for tp, holders in self._contested.items():
            handling = [each.name for each in holders if each.certain]
            assert len(handling) <= 1, f"invariant 4: {tp} is handled by {', '.join(handling)}"

    def check_given(self, receiver: Holder, partitions: Iterable[TopicPartition]) -> None:
        """Raise `AssertionError` where the coordinator gives what somebody else may still handle."""
        for tp in partitions:
            holder = self._holder.get(tp)
            if holder is None or (holder is receiver and tp not in self._contested):
                continue
            others = [each for each in self._contested.get(tp, [holder]) if each is not receiver and each.certain]
            assert not others, f"{tp} is given to {receiver.name} while {others[0].name} may handle it"

    def check_settled(self) -> None:
        """Raise `AssertionError` unless every partition is run by one member."""
        assert not self._unowned, f"{len(self._unowned)} partitions have no owner, {min(self._unowned)} is one of them"
        assert not self._contested, f"these have several owners: {self._contested}"

    def count(self, now: float) -> None:
        """Bring `unowned_seconds` up to date."""
        self.unowned_seconds += len(self._unowned) * (now - self._counted_at)
        self._counted_at = now
