"""Administrative requests: a group's members and offsets (to its coordinator), logs' offsets (to partitions' leaders),
and one's own rights, asked in ways that change nothing. Caller: supervisor and commands, on their event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Generic, TypeVar

from kunicorn.errors import PeerError
from kunicorn.group.protocol import NO_GENERATION, Committed, EpochEnd, LogOffset
from kunicorn.group.reactions import COORDINATOR_MOVED
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.codec import Fields
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.consumer_protocol import decode_assignment
from kunicorn.kafka.coordinator import COMMIT_WITH_RETENTION, Coordinator, by_topic, first_piece
from kunicorn.kafka.errors import CoordinatorUnavailable, ProtocolError, UnsupportedByBroker
from kunicorn.kafka.metadata import NO_LEADER, Broker, Metadata
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode, describe
from kunicorn.positions import Position, TopicPartition

PURPOSE = "admin"

KEPT_FOR_GOOD = timedelta(days=36_500)
"""Retention to ask for where a commit must outlive the week (`offsets.retention.minutes`) for which brokers keep the
offsets of a group that has been empty, also those that were committed a minute ago. Brokers go by it whatever becomes
of the group, until its service commits that partition again, by their own setting. Not less: of a partition that has no
more records a service commits nothing again."""

_DEAD = "Dead"
"""The state in which brokers before DescribeGroups v6 show a group that they do not know (`GroupMetadataManager`)."""
_CLASSIC_TYPE = "consumer"
_OTHER_TYPES = ("share", "streams")
"""Groups that no consumer joins, by the broker's names (`Group.GroupType`)."""


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """One member as the coordinator describes it. `host` is where its connection comes from."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    metadata: bytes = b""
    """What a classic member sent with JoinGroup: its subscription, encoded."""

    @property
    def address(self) -> str:
        """`host` for people; Kafka names it in Java's way, with a slash before it."""
        return self.host.removeprefix("/")


@dataclass(frozen=True, slots=True)
class Described:
    """Description of a group; with an `error` there is nothing else. `GROUP_ID_NOT_FOUND`: no group of this kind and
    name.
    """

    error: int
    why: str = ""
    state: str = ""
    members: Sequence[DescribedMember] = ()
    strategy: str = ""
    """The assignor that a classic group has agreed upon; empty where there is none, or the brokers assign."""
    classic: bool = False
    """Whether the group exists and its members speak the classic protocol."""
    other_type: str = ""
    """What it is instead, where consumers are none of it: "share" (KIP-932), "streams" (KIP-1071); or the protocol type
    of a classic group: "connect" of Kafka Connect's workers."""

    @property
    def refuses_consumers(self) -> bool:
        """Whether a consumer cannot join. An empty classic group takes members of any type (`ClassicGroup`,
        `supportsProtocols`); what is no classic group stays what it is.
        """
        return bool(self.other_type and (self.members or not self.classic))


class GroupAdmin:
    """Requests about one group, by a client that is not its member. Times are seconds.

    All raise `CoordinatorUnavailable` while the coordinator cannot be found or has moved (then it is looked up anew),
    and any other `PeerError` when the transport fails.
    """

    def __init__(self, cluster: Cluster, group_id: str, timeout: float) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._timeout = timeout
        self._coordinator = Coordinator(cluster, group_id)

    async def describe(self) -> Described:
        """The group, whichever protocol its members speak. Asks both APIs, as neither knows groups of the other kind
        (KIP-848).
        """
        await self._node()
        classic = classic_group(await self._coordinator.describe(self._timeout), self._group_id)
        if classic.error != ErrorCode.GROUP_ID_NOT_FOUND:
            return self._settled(classic)
        fields: Fields = {"group_ids": [self._group_id], "include_authorized_operations": False}
        try:
            answer = await self._ask(Api.CONSUMER_GROUP_DESCRIBE, fields)
        except UnsupportedByBroker:
            return classic  # Before Kafka 4.0 there is no other kind.
        described = self._settled(consumer_group(answer, self._group_id))
        if described.error == ErrorCode.GROUP_ID_NOT_FOUND:
            return await self._of_other_type()
        # Brokers of 3.9 know the API and refuse it: the protocol is switched off there.
        return classic if described.error == ErrorCode.UNSUPPORTED_VERSION else described

    async def _of_other_type(self) -> Described:
        """The group as one that no consumer joins; or none, as far as the brokers tell."""
        try:
            answer = await self._ask(Api.LIST_GROUPS, {"states_filter": [], "types_filter": list(_OTHER_TYPES)})
        except UnsupportedByBroker:
            return Described(ErrorCode.GROUP_ID_NOT_FOUND)
        return group_of_other_type(answer, self._group_id)

    async def can_be_converted(self) -> bool:
        """Whether a member with the consumer protocol would convert the group, if it is a classic one: only brokers
        that speak it do."""
        await self._node()
        return await self._coordinator.speaks_consumer_protocol(self._timeout)

    async def remove(self, member: DescribedMember, reason: str) -> int:
        """Remove a static member from the group (LeaveGroup, KIP-345); the error code.

        Names the member's id beside its instance id: if the instance has joined again meanwhile, under a new id, the
        broker refuses (FENCED_INSTANCE_ID) instead of removing one that works.
        """
        await self._node()
        error = await self._coordinator.leave(
            member_id=member.member_id, instance_id=member.instance_id, reason=reason, timeout=self._timeout
        )
        self._check_moved(error)
        return error

    def forget(self) -> None:
        """Look the coordinator up anew for the next request: it did not answer."""
        self._coordinator.forget()

    async def committed(
        self, partitions: Collection[TopicPartition] | None = None, *, stable: bool = False
    ) -> Mapping[TopicPartition, Committed]:
        """Committed offsets of these partitions (None: of all for which the group has any). `stable`: those that an
        open transaction may still move are an error (UNSTABLE_OFFSET_COMMIT, KIP-447).

        Raises `CoordinatorUnavailable`, too, where the group refuses to tell.
        """
        await self._node()
        answer = await self._coordinator.fetch_offsets(
            partitions=partitions, require_stable=stable, timeout=self._timeout
        )
        self._check_moved(answer.error)
        if answer.error:
            raise CoordinatorUnavailable(answer.error, "its offsets cannot be read")
        return answer.partitions

    async def commit(
        self, offsets: Mapping[TopicPartition, Position], metadata: str, retention: timedelta | None = None
    ) -> Mapping[TopicPartition, int]:
        """Commit these offsets without being a member; the error code of each. Of very many those that come first may
        count, and others be refused. `metadata`: of those positions that have none of their own. `retention`: see
        `Coordinator.commit`.

        The broker takes a commit without a member only while the group has none (UNKNOWN_MEMBER_ID otherwise,
        `GroupMetadataManager`): that is the fence between looking at the group and changing it.
        """
        errors: dict[TopicPartition, int] = {}
        while piece := first_piece({tp: at for tp, at in offsets.items() if tp not in errors}, metadata):
            await self._node()
            answer = await self._coordinator.commit(
                generation=NO_GENERATION,
                member_id="",
                instance_id=None,
                offsets=piece,
                metadata=metadata,
                timeout=self._timeout,
                retention=retention,
            )
            for error in answer.errors.values():
                self._check_moved(error)
            errors |= {tp: answer.errors.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in piece}
        return errors

    async def takes_retention(self) -> bool:
        """Whether the coordinator can be told for how long to keep committed offsets."""
        connection = await self._cluster.connection((await self._node()).node_id, PURPOSE, self._timeout)
        try:
            connection.version(Api.OFFSET_COMMIT, COMMIT_WITH_RETENTION)
        except UnsupportedByBroker:
            return False
        return True

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
    """Group in an answer to DescribeGroups, of any version."""
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
    other_type = "" if readable else group.protocol_type
    return Described(error, "", group.group_state, members, strategy, classic=True, other_type=other_type)


def group_of_other_type(message: Any, group_id: str) -> Described:
    """Group in an answer to ListGroups."""
    for each in message.groups or ():
        if each.group_id == group_id and each.group_type in _OTHER_TYPES:
            return Described(ErrorCode.GROUP_ID_NOT_FOUND, state=each.group_state, other_type=each.group_type)
    return Described(ErrorCode.GROUP_ID_NOT_FOUND)


def no_consumers(group_id: str, found: Described) -> str:
    """Why no consumer joins this group, whose members are none."""
    what = (
        f"its {len(found.members)} members are of type {found.other_type!r}, and brokers let no consumer in beside them"
        if found.classic
        else f"it is a {found.other_type} group ({found.state}), and brokers let no consumer in, even without members"
    )
    return f"group {group_id!r} is taken: {what}; use another group.id"


def conversion_refused(group_id: str, found: Described) -> str:
    """Why a member with the consumer protocol does not join this classic group unless it is told to (KIP-848): joining
    would convert the group, and its classic members with it.
    """
    if found.refuses_consumers:
        return no_consumers(group_id, found)
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
    """Group in an answer to ConsumerGroupDescribe, of any version."""
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


logger = logging.getLogger("kunicorn.wire.log_offsets")

LOG_PURPOSE = "offsets-of-logs"
"""These connections' own: a slow look-up in an old segment must not hold up a heartbeat."""

_CONSUMER = -1
"""Replica id of clients, which are no replicas."""


class IsolationLevel(IntEnum):
    """Which records count: up to the high watermark, or up to the last stable offset (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors that asking again after fresh metadata may cure (`OffsetFetcherUtils.java`)."""

AnswerT = TypeVar("AnswerT", LogOffset, EpochEnd)
Batch = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class _Question(Generic[AnswerT]):
    """One API of partition leaders: its request, its answer, and an answer that stands for a failure."""

    api: Api
    fields: Callable[[Batch, Metadata], Fields]
    read: Callable[[Any], dict[TopicPartition, AnswerT]]
    failed: Callable[[int], AnswerT]


async def list_offsets(
    cluster: Cluster, queries: Batch, isolation_level: int, timeout: float
) -> dict[TopicPartition, LogOffset]:
    """The offset at `LATEST`, `EARLIEST` or a timestamp (milliseconds), for each partition asked.

    A timestamp finds the first record not older than it; the answer's offset is −1 where there is none. Every partition
    has an answer, with an error of its own: `NETWORK_EXCEPTION` if its leader did not reply, `UNSUPPORTED_VERSION` if
    it does not offer the API. Refreshes metadata and asks once more where that may help. Ends within twice `timeout`,
    and raises no `PeerError`.
    """

    def fields(batch: Batch, metadata: Metadata) -> Fields:
        return {
            "replica_id": _CONSUMER,
            "isolation_level": int(isolation_level),
            "timeout": timedelta(seconds=timeout),
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": each.partition,
                            "current_leader_epoch": metadata.leader(each)[1],
                            "timestamp": batch[each],
                        }
                        for each in partitions
                    ],
                }
                for topic, partitions in by_topic(batch)
            ],
        }

    return await _ask_leaders(cluster, queries, _Question(Api.LIST_OFFSETS, fields, _log_offsets, LogOffset), timeout)


async def epoch_ends(cluster: Cluster, queries: Batch, timeout: float) -> dict[TopicPartition, EpochEnd]:
    """End of the given leader epoch in each partition's log (KIP-320); otherwise as `list_offsets`."""
    question = _Question(Api.OFFSET_FOR_LEADER_EPOCH, _epoch_fields, _epoch_ends, EpochEnd)
    return await _ask_leaders(cluster, queries, question, timeout)


def _epoch_fields(batch: Batch, metadata: Metadata) -> Fields:
    return {
        "replica_id": _CONSUMER,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": each.partition,
                        "current_leader_epoch": metadata.leader(each)[1],
                        "leader_epoch": batch[each],
                    }
                    for each in partitions
                ],
            }
            for topic, partitions in by_topic(batch)
        ],
    }


def _log_offsets(message: Any) -> dict[TopicPartition, LogOffset]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): LogOffset(
            int(each.error_code), int(each.offset), int(each.leader_epoch), int(each.timestamp)
        )
        for topic in message.topics or ()
        for each in topic.partitions or ()
    }


def _epoch_ends(message: Any) -> dict[TopicPartition, EpochEnd]:
    return {
        TopicPartition(topic.topic, int(each.partition)): EpochEnd(
            int(each.error_code), int(each.leader_epoch), int(each.end_offset)
        )
        for topic in message.topics or ()
        for each in topic.partitions or ()
    }


async def _ask_leaders(
    cluster: Cluster, queries: Batch, question: _Question[AnswerT], timeout: float
) -> dict[TopicPartition, AnswerT]:
    answers = await _ask_once(cluster, queries, question, timeout)
    again = {each: queries[each] for each, answer in answers.items() if answer.error in STALE_METADATA}
    if not again:
        return answers
    try:
        async with asyncio.timeout(timeout):
            await cluster.refresh({each.topic for each in again})
    except (PeerError, TimeoutError):
        return answers
    return answers | await _ask_once(cluster, again, question, timeout)


async def _ask_once(
    cluster: Cluster, queries: Batch, question: _Question[AnswerT], timeout: float
) -> dict[TopicPartition, AnswerT]:
    by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
    for partition, query in queries.items():
        by_leader[cluster.metadata.leader(partition)[0]][partition] = query
    answers = await asyncio.gather(
        *(_ask_leader(cluster, leader, batch, question, timeout) for leader, batch in by_leader.items())
    )
    return {partition: answer for batch in answers for partition, answer in batch.items()}


async def _ask_leader(
    cluster: Cluster, leader: int, batch: Batch, question: _Question[AnswerT], timeout: float
) -> dict[TopicPartition, AnswerT]:
    """One leader's answers, for exactly the partitions asked."""
    if leader == NO_LEADER:
        return {each: question.failed(ErrorCode.LEADER_NOT_AVAILABLE) for each in batch}
    try:
        connection = await cluster.connection(leader, LOG_PURPOSE, timeout)
        message = await connection.request(question.api, question.fields(batch, cluster.metadata), timeout)
    except UnsupportedByBroker as error:
        logger.info("%s for %d partitions: %s", question.api.title, len(batch), error)
        return {each: question.failed(ErrorCode.UNSUPPORTED_VERSION) for each in batch}
    except PeerError as error:
        logger.info("%s for %d partitions: %s", question.api.title, len(batch), error)
        return {each: question.failed(ErrorCode.NETWORK_EXCEPTION) for each in batch}
    answers = question.read(message)
    return {each: answers.get(each) or question.failed(ErrorCode.UNKNOWN_SERVER_ERROR) for each in batch}


class Operation(IntEnum):
    """Kafka's ACL operations (`AclOperation.java`), those that concern a consumer."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8


_NOBODY = "kunicorn-check"
"""A member id that no coordinator has given anybody."""
_ASKS_FOR_RIGHTS = 8
"""The first version of Metadata that does (KIP-430)."""


async def on_topics(cluster: Cluster, topics: Collection[str], timeout: float) -> Mapping[str, frozenset[Operation]]:
    """Allowed operations on each topic that is visible to this user at all (KIP-430).

    Empty where the brokers are too old to say. A topic of which no right is told is left out: a broker that looks at
    rights shows a topic only to those who may DESCRIBE it. Raises `BrokersUnreachable`.
    """

    async def ask(connection: Connection) -> Mapping[str, frozenset[Operation]]:
        version = connection.version(Api.METADATA)
        if version < _ASKS_FOR_RIGHTS:
            return {}
        fields: Fields = {
            "topics": [{"topic_id": None, "name": name} for name in sorted(set(topics))],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": False,
        }
        message = await connection.request(Api.METADATA, fields, timeout, version)
        told = {t.name: _operations(int(t.topic_authorized_operations)) for t in message.topics if not t.error_code}
        return {name: operations for name, operations in told.items() if operations}

    return await cluster.ask_any(ask)


async def may_join(coordinator: Coordinator, timeout: float) -> bool:
    """Whether this user has READ on the group: may join it and commit.

    Sends a heartbeat of a member that does not exist: the broker checks the right first
    (`KafkaApis.handleHeartbeatRequest`), and answers UNKNOWN_MEMBER_ID otherwise. No answer about rights tells of a
    group that does not exist yet.
    """
    error = await coordinator.heartbeat(generation=0, member_id=_NOBODY, instance_id=None, timeout=timeout)
    return error != ErrorCode.GROUP_AUTHORIZATION_FAILED


def _operations(bits: int) -> frozenset[Operation]:
    return frozenset(operation for operation in Operation if bits & (1 << operation))
