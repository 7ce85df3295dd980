"""What members ask a modelled coordinator, in our own terms and without a wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kunicorn.group.protocol import Plan, Subscription, TopicPartitions


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. Times are seconds."""

    member_id: str
    protocols: Mapping[str, Subscription]
    """By assignor, in order of preference."""
    instance_id: str | None = None
    session_timeout: float = 45.0
    rebalance_timeout: float = 300.0
    protocol_type: str = "consumer"


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup."""

    member_id: str
    generation: int
    plan: Plan
    """Empty for followers."""
    instance_id: str | None = None
    assignor: str | None = None


@dataclass(frozen=True, slots=True)
class Leaver:
    """LeaveGroup, for one member."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """ConsumerGroupHeartbeat; None where nothing changed. Times are seconds."""

    member_id: str
    epoch: int
    owned: TopicPartitions | None = None
    full: bool = False
    instance_id: str | None = None
    rebalance_timeout: float = 300.0
