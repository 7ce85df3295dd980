"""One member of a classic group, as the model of its coordinator sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kunicorn.group.protocol import JoinAnswer, Subscription, SyncAnswer
from kunicorn.positions import TopicPartition

Joined = Callable[[JoinAnswer], None]
Synced = Callable[[SyncAnswer], None]


class GroupState(Enum):
    """Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass
class Seat:
    """One member as the coordinator sees it."""

    member_id: str
    instance_id: str | None
    protocols: Mapping[str, Subscription]
    session_timeout: float
    rebalance_timeout: float
    expires: float = 0.0
    assigned: tuple[TopicPartition, ...] = ()
    joined: Joined | None = None
    """The answer to JoinGroup that is still to be given."""
    synced: Synced | None = None
    has_synced: bool = False

    @property
    def parked(self) -> bool:
        """Whoever waits for an answer of ours is alive."""
        return self.joined is not None or self.synced is not None
