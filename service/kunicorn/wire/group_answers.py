"""What the coordinator answers, in the terms of `kunicorn.group.protocol`; pure.

Every function takes kio's message of any version we speak. Error codes become plain integers. Answers are read by
their own names, never by the order of the request: brokers reorder topics and partitions, and leave some out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kunicorn.group.protocol import (
    CommitAnswer,
    Committed,
    ConsumerHeartbeatAnswer,
    JoinAnswer,
    Member,
    OffsetFetchAnswer,
    SyncAnswer,
)
from kunicorn.topics import TopicPartition
from kunicorn.wire.consumer_protocol import decode_assignment, decode_subscription
from kunicorn.wire.error_codes import ErrorCode
from kunicorn.wire.errors import ProtocolError
from kunicorn.wire.metadata import Broker


class Found(NamedTuple):
    """FindCoordinator: the broker, or the error and what the broker says about it."""

    error: int
    broker: Broker | None
    why: str = ""


def found(message: Any, group_id: str) -> Found:
    """FindCoordinator. A broker that leaves our group out is taken for one without a coordinator to name."""
    answer = message
    if hasattr(message, "coordinators"):
        answer = next((each for each in message.coordinators or () if each.key == group_id), None)
    if answer is None:
        return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, None, "the answer does not mention the group")
    error = int(answer.error_code)
    if error != ErrorCode.NONE:
        return Found(error, None, answer.error_message or "")
    if not answer.host:
        return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, None, f"node {int(answer.node_id)} has no address")
    return Found(error, Broker(int(answer.node_id), answer.host, int(answer.port)))


def config_described(message: Any, group_id: str, name: str) -> tuple[int, str | None]:
    """DescribeConfigs: the error, and the setting's value where there is one."""
    resource = next((each for each in message.results or () if each.resource_name == group_id), None)
    if resource is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR, None
    return int(resource.error_code), next((each.value for each in resource.configs or () if each.name == name), None)


def joined(message: Any) -> JoinAnswer:
    """JoinGroup; the members' subscriptions are read by the rules of the assignor that was chosen."""
    assignor = message.protocol_name or None
    return JoinAnswer(
        error=int(message.error_code),
        generation=int(message.generation_id),
        member_id=message.member_id or "",
        leader=message.leader or "",
        protocol_type=getattr(message, "protocol_type", None),
        assignor=assignor,
        skip_assignment=bool(getattr(message, "skip_assignment", False)),
        members=tuple(
            Member(
                each.member_id,
                decode_subscription(assignor, each.member_id, each.metadata or b""),
                each.group_instance_id,
            )
            for each in message.members or ()
        ),
    )


def synced(message: Any) -> SyncAnswer:
    """SyncGroup. The broker passes on what the leader wrote: where that cannot be read, the answer itself can."""
    error, unreadable = int(message.error_code), ""
    partitions: tuple[TopicPartition, ...] = ()
    if error == ErrorCode.NONE:
        try:
            partitions = decode_assignment(message.assignment)
        except ProtocolError as problem:
            unreadable = str(problem)
    return SyncAnswer(
        error=error,
        partitions=partitions,
        protocol_type=getattr(message, "protocol_type", None),
        assignor=getattr(message, "protocol_name", None),
        unreadable=unreadable,
    )


def consumer_heartbeat_answered(message: Any) -> ConsumerHeartbeatAnswer:
    """ConsumerGroupHeartbeat. Negative partition numbers and topics without an id are left out: nobody can own them."""
    assigned: dict[UUID, set[int]] = {}
    for each in message.assignment.topic_partitions or () if message.assignment is not None else ():
        if each.topic_id is not None:
            numbers = assigned.setdefault(each.topic_id, set())
            numbers.update(int(number) for number in each.partitions or () if number >= 0)
    return ConsumerHeartbeatAnswer(
        error=int(message.error_code),
        message=message.error_message or "",
        epoch=int(message.member_epoch),
        assignment=None
        if message.assignment is None
        else tuple((topic_id, tuple(sorted(assigned[topic_id]))) for topic_id in sorted(assigned)),
    )


def left(message: Any, member_id: str, instance_id: str | None) -> int:
    """LeaveGroup. From version 3 on the error on top is 0 and the member's own stands beside its name."""
    error = int(message.error_code)
    if error != ErrorCode.NONE:
        return error
    for each in getattr(message, "members", None) or ():
        if each.member_id == member_id or (instance_id is not None and each.group_instance_id == instance_id):
            return int(each.error_code)
    return error


def committed(message: Any, topic_ids: Mapping[str, UUID]) -> CommitAnswer:
    """OffsetCommit; `topic_ids` are those it was asked with, for answers that name topics by id."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    errors: dict[TopicPartition, int] = {}
    for topic in message.topics or ():
        name: str | None = topic.name if hasattr(topic, "name") else names.get(topic.topic_id)
        if name is not None:
            errors |= {TopicPartition(name, int(e.partition_index)): int(e.error_code) for e in topic.partitions or ()}
    return CommitAnswer(errors)


def offsets_fetched(message: Any, group_id: str) -> OffsetFetchAnswer:
    """OffsetFetch. The group's error comes with no partitions: who only loops over those sees "no offsets"."""
    if not hasattr(message, "groups"):
        return OffsetFetchAnswer(int(message.error_code), _offsets(message.topics))
    for group in message.groups or ():
        if group.group_id == group_id:
            return OffsetFetchAnswer(int(group.error_code), _offsets(group.topics))
    return OffsetFetchAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)


def _offsets(topics: Any) -> dict[TopicPartition, Committed]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): Committed(
            int(each.error_code), int(each.committed_offset), int(each.committed_leader_epoch), each.metadata or ""
        )
        for topic in topics or ()
        for each in topic.partitions or ()
    }
