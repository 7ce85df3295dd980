"""The member that the settings ask for."""

from __future__ import annotations

import random
import uuid

from kunicorn.group.assignors import ASSIGNORS
from kunicorn.group.classic import ClassicMember
from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.timing import Timings
from kunicorn.settings import Settings

Member = ClassicMember | ConsumerMember


def member_for(settings: Settings) -> Member:
    """A member of whichever protocol is wished for; it has joined nothing yet."""
    if settings.group.group_protocol == "classic":
        return classic_member(settings)
    group = settings.group
    return ConsumerMember(
        str(uuid.uuid4()), timings(settings), random.Random(), group.group_instance_id, group.group_remote_assignor
    )


def classic_member(settings: Settings) -> ClassicMember:
    """A classic one, whatever is wished for: what brokers without the consumer protocol get."""
    group = settings.group
    assignors = [ASSIGNORS[name] for name in group.partition_assignment_strategy]
    cooperative = {assignor.name: assignor.cooperative for assignor in assignors}
    return ClassicMember(cooperative, timings(settings), random.Random(), group.group_instance_id)


def timings(settings: Settings) -> Timings:
    """The member's times, from the settings' milliseconds."""
    group, kafka = settings.group, settings.kafka
    return Timings(
        session_timeout=group.session_timeout_ms / 1000,
        rebalance_timeout=group.max_poll_interval_ms / 1000,
        heartbeat_interval=group.heartbeat_interval_ms / 1000,
        fast_period=group.drain_timeout_ms / 1000 + 2.0,
        retry_backoff=kafka.retry_backoff_ms / 1000,
        retry_backoff_max=kafka.retry_backoff_max_ms / 1000,
    )
