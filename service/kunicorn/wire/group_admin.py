"""What an administrator asks a group's coordinator: who is in the group, and the removal of one static member."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunicorn.group.protocol import NO_GENERATION, Committed
from kunicorn.topics import Position, TopicPartition
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.consumer_protocol import decode_assignment
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.error_codes import COORDINATOR_MOVED, ErrorCode, describe
from kunicorn.wire.errors import CoordinatorUnavailable, ProtocolError, UnsupportedByBroker
from kunicorn.wire.make import Fields
from kunicorn.wire.metadata import Broker
from kunicorn.wire.versions import Api

PURPOSE = "admin"

_DEAD = "Dead"
"""The state in which brokers before DescribeGroups v6 show a group that they do not know (`GroupMetadataManager`)."""
_CLASSIC_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """One member as the coordinator has it. `host` is where its connection comes from."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    metadata: bytes = b""
    """What a classic member sent with JoinGroup: its subscription, encoded."""


@dataclass(frozen=True, slots=True)
class Described:
    """A group; with an `error` there is nothing else. `GROUP_ID_NOT_FOUND`: no group of this kind and name."""

    error: int
    why: str = ""
    state: str = ""
    members: Sequence[DescribedMember] = ()
    strategy: str = ""
    """The assignor that a classic group has agreed upon; empty where there is none, or the brokers assign."""
    classic: bool = False
    """There is such a group, and its members speak the classic protocol."""


class GroupAdmin:
    """The requests about one group. Not a member of it. Times are seconds.

    All raise `CoordinatorUnavailable` while the coordinator is not to be had or is another node than was thought (then
    it is looked up anew), and any other `PeerError` when the transport fails.
    """

    def __init__(self, cluster: Cluster, group_id: str, timeout: float) -> None:
        """Sends nothing."""
        self._cluster = cluster
        self._group_id = group_id
        self._timeout = timeout
        self._coordinator = Coordinator(cluster, group_id)

    async def describe(self) -> Described:
        """The group, whichever protocol its members speak: each kind is unknown to the other kind's API (KIP-848)."""
        await self._node()
        classic = classic_group(await self._coordinator.describe(self._timeout), self._group_id)
        if classic.error != ErrorCode.GROUP_ID_NOT_FOUND:
            return self._settled(classic)
        fields: Fields = {"group_ids": [self._group_id], "include_authorized_operations": False}
        try:
            answer = await self._ask(Api.CONSUMER_GROUP_DESCRIBE, fields)
        except UnsupportedByBroker:
            return classic  # Before Kafka 4.0 there is no other kind.
        described = consumer_group(answer, self._group_id)
        # Brokers of 3.9 know the API and refuse it: the protocol is switched off there.
        return classic if described.error == ErrorCode.UNSUPPORTED_VERSION else self._settled(described)

    async def remove(self, member: DescribedMember, reason: str) -> int:
        """Take the slot of a static member from it (LeaveGroup, KIP-345); the error code.

        Names the member's id beside its instance id: if the instance has joined again meanwhile, under a new id, the
        broker refuses (FENCED_INSTANCE_ID) instead of removing one that works.
        """
        await self._node()
        error = await self._coordinator.leave(
            member_id=member.member_id, instance_id=member.instance_id, reason=reason, timeout=self._timeout
        )
        self._check_moved(error)
        return error

    async def committed(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Committed]:
        """What the group has committed for these partitions (None: for all for which it has committed anything).

        Raises `CoordinatorUnavailable`, too, where the group refuses to tell.
        """
        await self._node()
        answer = await self._coordinator.fetch_offsets(
            partitions=partitions, require_stable=False, timeout=self._timeout
        )
        self._check_moved(answer.error)
        if answer.error:
            raise CoordinatorUnavailable(answer.error, "its offsets cannot be read")
        return answer.partitions

    async def reset(self, offsets: Mapping[TopicPartition, int], metadata: str) -> Mapping[TopicPartition, int]:
        """Commit these offsets as nobody; the error code of each.

        The broker takes a commit without a member only while the group has none (UNKNOWN_MEMBER_ID otherwise,
        `GroupMetadataManager`): that is the fence between looking at the group and changing it.
        """
        await self._node()
        answer = await self._coordinator.commit(
            generation=NO_GENERATION,
            member_id="",
            instance_id=None,
            offsets={tp: Position(offset) for tp, offset in offsets.items()},
            metadata=metadata,
            timeout=self._timeout,
        )
        for error in answer.errors.values():
            self._check_moved(error)
        return answer.errors

    async def _ask(self, api: Api, fields: Fields) -> Any:
        connection = await self._cluster.connection((await self._node()).node_id, PURPOSE, self._timeout)
        return await connection.request(api, fields, self._timeout)

    async def _node(self) -> Broker:
        return self._coordinator.node or await self._coordinator.find(self._timeout)

    def _settled(self, described: Described) -> Described:
        self._check_moved(described.error)
        return described

    def _check_moved(self, error: int) -> None:
        if error in COORDINATOR_MOVED:
            self._coordinator.forget()
            raise CoordinatorUnavailable(error, f"group {self._group_id!r}: {describe(error)}")


def classic_group(message: Any, group_id: str) -> Described:
    """DescribeGroups, any version."""
    group = next((each for each in message.groups or () if each.group_id == group_id), None)
    if group is None:
        return Described(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer does not mention the group")
    error = int(group.error_code)
    if error:
        return Described(error, getattr(group, "error_message", None) or "")
    if group.group_state == _DEAD:
        return Described(ErrorCode.GROUP_ID_NOT_FOUND)
    readable = group.protocol_type == _CLASSIC_TYPE
    members = tuple(
        DescribedMember(
            each.member_id,
            each.group_instance_id,
            each.client_id,
            each.client_host,
            _assigned(each.member_assignment) if readable else (),
            bytes(each.member_metadata or b""),
        )
        for each in group.members or ()
    )
    strategy = group.protocol_data if readable else ""
    return Described(error, "", group.group_state, members, strategy, classic=True)


def conversion_refused(group_id: str, found: Described) -> str:
    """Why a member with the consumer protocol does not join this classic group unless it is told to (KIP-848): the
    group would be converted, and takes its classic members along."""
    return (
        f"group {group_id!r} is a classic group ({found.state}, {len(found.members)} members); joining it with "
        f'group.group_protocol = "consumer" converts it: set group.allow_protocol_upgrade = true if that is '
        f'wanted, else group.group_protocol = "classic"'
    )


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(data)
    except ProtocolError:
        return ()  # Another client's own format: the member can be shown without it.


def consumer_group(message: Any, group_id: str) -> Described:
    """ConsumerGroupDescribe, any version."""
    group = next((each for each in message.groups or () if each.group_id == group_id), None)
    if group is None:
        return Described(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer does not mention the group")
    if error := int(group.error_code):
        return Described(error, group.error_message or "")
    members = tuple(
        DescribedMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            tuple(
                TopicPartition(topic.topic_name, int(number))
                for topic in each.assignment.topic_partitions or ()
                for number in topic.partitions or ()
            ),
        )
        for each in group.members or ()
    )
    return Described(int(ErrorCode.NONE), "", group.group_state, members)
