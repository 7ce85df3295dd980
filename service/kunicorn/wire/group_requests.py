"""What a member asks the coordinator, as fields for `make`; pure, one function for each request.

Where two versions say the same thing in different fields, the version decides here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from uuid import UUID

from kunicorn.group.protocol import NO_GENERATION, Plan, Subscription, TopicPartitions
from kunicorn.topics import Position, TopicPartition
from kunicorn.wire.consumer_protocol import encode_assignment, encode_subscription
from kunicorn.wire.make import Fields

PROTOCOL_TYPE = "consumer"
"""What the group's members speak with one another; brokers keep members of different types apart."""

MAX_REASON = 255
"""Characters of a reason that Kafka's own client sends (`JoinGroupRequest.java`)."""

_GROUP_KEY = 0
"""A coordinator is looked up for a group (1 would be a transactional id)."""

_GROUP_CONFIG = 32
"""The settings of a group, among the kinds of resources that have settings (`ConfigResource.java`)."""

_FIND_BATCHED = 4
_LEAVE_BATCHED = 3
_FETCH_BATCHED = 8
COMMIT_BY_NAME = 9
"""The last version of OffsetCommit that names topics by their names."""
_FETCH_STABLE = 7


def find_coordinator(version: int, group_id: str) -> Fields:
    """FindCoordinator for one group (KIP-699)."""
    if version >= _FIND_BATCHED:
        return {"key_type": _GROUP_KEY, "coordinator_keys": [group_id]}
    return {"key_type": _GROUP_KEY, "key": group_id}


def describe_config(group_id: str, name: str) -> Fields:
    """DescribeConfigs for one setting of a group (KIP-848)."""
    return {"resources": [{"resource_type": _GROUP_CONFIG, "resource_name": group_id, "configuration_keys": [name]}]}


def join(
    group_id: str,
    member_id: str,
    instance_id: str | None,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    protocols: Sequence[tuple[str, Subscription]],
    reason: str,
) -> Fields:
    """JoinGroup, one subscription for each assignor, in order of preference."""
    return {
        "group_id": group_id,
        "session_timeout": timedelta(milliseconds=session_timeout_ms),
        "rebalance_timeout": timedelta(milliseconds=rebalance_timeout_ms),
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [
            {"name": assignor, "metadata": encode_subscription(assignor, subscription)}
            for assignor, subscription in protocols
        ],
        "reason": reason[:MAX_REASON],
    }


def sync(
    group_id: str, generation: int, member_id: str, instance_id: str | None, assignor: str | None, plan: Plan
) -> Fields:
    """SyncGroup; an empty plan for followers."""
    return {
        "group_id": group_id,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_name": assignor,
        "assignments": [
            {"member_id": member, "assignment": encode_assignment(partitions)} for member, partitions in plan.items()
        ],
    }


def heartbeat(group_id: str, generation: int, member_id: str, instance_id: str | None) -> Fields:
    """Heartbeat."""
    return {
        "group_id": group_id,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
    }


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a member of a group with the consumer protocol wants, as its full heartbeats say it (KIP-848)."""

    topics: tuple[str, ...]
    pattern: str
    """For RE2, matched by the brokers; empty for none."""
    rebalance_timeout_ms: int
    rack: str | None
    assignor: str | None


def consumer_heartbeat(
    group_id: str,
    member_id: str,
    epoch: int,
    instance_id: str | None,
    wishes: Wishes | None,
    owned: TopicPartitions | None,
) -> Fields:
    """ConsumerGroupHeartbeat. Without `wishes` and `owned` it says that nothing has changed.

    The empty pattern is said, not left out: a static member may take over from one that had another subscription.
    """
    fields: dict[str, object] = {
        "group_id": group_id,
        "member_id": member_id,
        "member_epoch": epoch,
        "instance_id": instance_id,
        "topic_partitions": None
        if owned is None
        else [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in owned],
    }
    if wishes is not None:
        fields |= {
            "rack_id": wishes.rack,
            "rebalance_timeout": timedelta(milliseconds=wishes.rebalance_timeout_ms),
            "subscribed_topic_names": wishes.topics,
            "subscribed_topic_regex": wishes.pattern,
            "server_assignor": wishes.assignor,
        }
    return fields


def leave(version: int, group_id: str, member_id: str, instance_id: str | None, reason: str) -> Fields:
    """LeaveGroup for one member. Before version 3 the member id alone says who (`LeaveGroupRequest.java`)."""
    if version < _LEAVE_BATCHED:
        return {"group_id": group_id, "member_id": member_id}
    member = {"member_id": member_id, "group_instance_id": instance_id, "reason": reason[:MAX_REASON]}
    return {"group_id": group_id, "members": [member]}


def commit(
    version: int,
    group_id: str,
    generation: int,
    member_id: str,
    instance_id: str | None,
    offsets: Mapping[TopicPartition, Position],
    topic_ids: Mapping[str, UUID],
    metadata: str,
) -> Fields:
    """OffsetCommit. `topic_ids` has every topic where the version is above `COMMIT_BY_NAME`."""
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "topics": [
            {
                **({"name": topic} if version <= COMMIT_BY_NAME else {"topic_id": topic_ids[topic]}),
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "committed_offset": offsets[each].offset,
                        "committed_leader_epoch": offsets[each].leader_epoch,
                        "committed_metadata": offsets[each].done or metadata,
                    }
                    for each in partitions
                ],
            }
            for topic, partitions in by_topic(offsets)
        ],
    }


def fetch_offsets(
    version: int,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    require_stable: bool,
    member_id: str | None = None,
    epoch: int = NO_GENERATION,
) -> Fields:
    """OffsetFetch for one group (`partitions` None: all that it has committed); `member_id` and `epoch` only of members
    with the consumer protocol.

    Before version 7 `require_stable` cannot be said, and brokers that old have no offsets pending in a transaction
    that they could hold back (KIP-447, `OffsetFetchRequest.java`).
    """
    named = [
        {"name": topic, "partition_indexes": [each.partition for each in group]}
        for topic, group in by_topic(partitions or ())
    ]
    topics = named if partitions is not None else None
    stable = require_stable and version >= _FETCH_STABLE
    if version >= _FETCH_BATCHED:
        group = {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, "topics": topics}
        return {"groups": [group], "require_stable": stable}
    return {"group_id": group_id, "topics": topics, "require_stable": stable}


def by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[TopicPartition]]]:
    """The partitions as requests want them: sorted, each topic once."""
    return [(topic, list(group)) for topic, group in groupby(sorted(set(partitions)), key=lambda each: each.topic)]
