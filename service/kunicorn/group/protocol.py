"""What members and the coordinator say to one another, in our own terms and whatever the version on the wire.

`kafka` translates between these and Kafka's messages. Error codes stay plain integers (Kafka's `Errors.java`):
a newer broker may send one that this code has never heard of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from kunicorn.positions import NO_EPOCH, NO_OFFSET, TopicPartition

NO_GENERATION = -1
"""Not a member of any generation."""

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_KEEPING_SLOT_EPOCH = 0, -1, -2
"""Of a member's first and last heartbeat with the consumer protocol (`ConsumerGroupHeartbeatRequest.java`)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member's wishes, version 3 of Kafka's ConsumerProtocolSubscription (KIP-54, 429, 792, 881)."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """The generation in which `owned` was assigned; older claims lose against newer ones."""
    rack: str | None = None
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the leader sees it in the answer to its JoinGroup."""

    member_id: str
    subscription: Subscription
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """JoinGroup. `members` is empty for a follower. `skip_assignment`: stay leader but send no plan (KIP-814)."""

    error: int
    generation: int = NO_GENERATION
    member_id: str = ""
    leader: str = ""
    protocol_type: str | None = None
    assignor: str | None = None
    skip_assignment: bool = False
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """SyncGroup. `partitions` is what the leader gave us, duplicates and negative numbers removed."""

    error: int
    partitions: tuple[TopicPartition, ...] = ()
    protocol_type: str | None = None
    assignor: str | None = None
    unreadable: str = ""
    """Why it cannot be read what the leader gave us; empty where it can."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One partition of an OffsetFetch answer; `offset` is `NO_OFFSET` where the group committed nothing."""

    error: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetFetchAnswer:
    """OffsetFetch. Check `error` first: a broker that is not the coordinator answers with no partitions at all."""

    error: int
    partitions: Mapping[TopicPartition, Committed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """OffsetCommit, error code by partition. Partitions the broker left out are missing here, too."""

    errors: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogOffset:
    """One partition of a ListOffsets answer."""

    error: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """OffsetForLeaderEpoch: where the log of that epoch ends; both −1 if the broker does not know (KIP-320)."""

    error: int
    leader_epoch: int = NO_EPOCH
    end_offset: int = NO_OFFSET


TopicPartitions = tuple[tuple[UUID, tuple[int, ...]], ...]
"""Partition numbers by topic id, both sorted: how the consumer protocol names partitions (KIP-848)."""


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """ConsumerGroupHeartbeat (KIP-848). Of an answer with an error nothing is to be adopted.

    `assignment`: all that we may own from now on; None where nothing has changed since the last answer.
    """

    error: int
    message: str = ""
    epoch: int = 0
    assignment: TopicPartitions | None = None


Plan = Mapping[str, Sequence[TopicPartition]]
"""What an assignor decides: partitions by member id; every member has an entry."""


class Offsets(Protocol):
    """What is asked of the brokers; every call may raise `PeerError`."""

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        """OffsetFetch with `require_stable` (KIP-447)."""

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        """ListOffsets, by partition and timestamp."""

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        """OffsetForLeaderEpoch."""

    async def confirm_ids(self, topics: Collection[str]) -> None:
        """Metadata: which topics have these names now; asked again while one may have been created anew. Offsets are
        asked for by name: those found before this are of the topics that are confirmed."""

    def is_of_another_topic(self, topic: str, committed: Committed) -> bool:
        """Whether an offset that was committed under this name says that it is of a topic that had it before."""

    def created_anew(self, topic: str) -> bool:
        """Whether another topic had this name when the service began to consume it."""

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        """All partitions of these topics, as known now."""
