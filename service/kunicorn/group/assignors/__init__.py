"""Assignors: how the group's leader decides which member gets which partitions. Pure, and the same input always gives
the same plan, whatever order the members arrive in.

Members that name a rack get partitions with a replica there first, where that makes a difference (KIP-881): all
assignors but roundrobin, as Kafka's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from kunicorn.group.assignors.racks import PartitionRacks
from kunicorn.group.assignors.range import RangeAssignor, RoundRobinAssignor
from kunicorn.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kunicorn.group.protocol import Member, Plan
from kunicorn.positions import TopicPartition


class Assignor(Protocol):
    """One strategy of `partition_assignment_strategy`, compatible with the Java consumer's of the same name."""

    @property
    def name(self) -> str:
        """What members call it in JoinGroup; all members of a group must offer one in common."""

    @property
    def cooperative(self) -> bool:
        """Partitions that stay go on running while the group rebalances; what is revoked is given to its new owner
        only in a second round, so whoever revokes something must rejoin at once (KIP-429)."""

    def plan(
        self, members: Sequence[Member], partitions: Mapping[str, int], racks: PartitionRacks | None = None
    ) -> Plan:
        """The partitions of each member; every member has an entry, sorted.

        `partitions` is the number of partitions by topic; a subscribed topic missing there is skipped. `racks`:
        where each partition's replicas are, as far as known. Never raises
        on what members claim: nonsense (unknown partitions, unreadable user data) counts as not claimed.
        Caller: supervisor, in a thread: twenty thousand partitions take a tenth of a second, two with as many topics.
        """

    def user_data(self, generation: int, previous: Collection[TopicPartition] = ()) -> bytes | None:
        """What our own Subscription carries beside its fields; None if nothing.

        `previous` is our last assignment and `generation` the one it was made in, `NO_GENERATION` if we lost it.
        """


_BUILT_IN: tuple[Assignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)

ASSIGNORS: Mapping[str, Assignor] = {assignor.name: assignor for assignor in _BUILT_IN}
"""Every assignor by the name that settings and JoinGroup use."""
