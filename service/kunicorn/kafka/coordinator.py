"""Requests of one group member to the group's coordinator, and its answers in the terms of `kunicorn.group.protocol`.
Caller: the supervisor's group driver and its committer, on the event loop.

1. Two connections of its own: "control" and "offsets". A broker answers a connection in order, so a heartbeat would
   wait behind a commit that waits for a slow replica, and metadata behind a JoinGroup that waits for the group.
2. LeaveGroup goes over "offsets": behind the last commit, and not behind a JoinGroup that is still parked, which would
   hold it back until the others have given up on us. So do heartbeats while a JoinGroup or SyncGroup is out: another
   member's drain or plan may take minutes, and no commit is in their way then.
3. No retries and no reactions here: the caller has one table for those.
4. Where two versions say the same thing in different fields, the functions here choose by version, and nobody else.
   Answers are read by their own names, never by the order of the request: brokers reorder topics and partitions, and
   leave some out. Error codes become plain integers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from kunicorn.group.protocol import (
    LEAVE_EPOCH,
    NO_GENERATION,
    CommitAnswer,
    Committed,
    ConsumerHeartbeatAnswer,
    JoinAnswer,
    Member,
    OffsetFetchAnswer,
    Plan,
    Subscription,
    SyncAnswer,
    TopicPartitions,
)
from kunicorn.group.reactions import COORDINATOR_MOVED
from kunicorn.ipc import bitmap
from kunicorn.kafka.cluster import Cluster
from kunicorn.kafka.codec import Fields
from kunicorn.kafka.connection import Connection
from kunicorn.kafka.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kunicorn.kafka.errors import CoordinatorUnavailable, ProtocolError, UnsupportedByBroker
from kunicorn.kafka.metadata import Broker
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode, describe
from kunicorn.positions import NO_EPOCH, Position, TopicPartition
from kunicorn.text import topic_id_text

PROTOCOL_TYPE = "consumer"
"""What the group's members speak with one another; brokers keep members of different types apart."""

_BYTES_A_COMMIT = 500_000
"""So much of the coordinator's log a commit takes at most. It is written as one batch, and refused as a whole beyond
`max.message.bytes` of `__consumer_offsets` (1,048,588 as shipped): by Kafka 3 with INVALID_COMMIT_OFFSET_SIZE, by Kafka
4 with UNKNOWN_SERVER_ERROR (`handleOperationException`)."""
_BYTES_AN_OFFSET = 300
"""Beside the topic's name and the metadata. A group's name of 200 characters fits in; with one of 700 the batch is
still small enough."""

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
COMMIT_WITH_RETENTION = 4
"""The last version of OffsetCommit that says for how long offsets are kept. It knows no leader epochs."""
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
    """Subscription and limits of a member with the consumer protocol, as its full heartbeats say them (KIP-848)."""

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
    """LeaveGroup for one member. Before version 3 the member id alone identifies it (`LeaveGroupRequest.java`)."""
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


def first_piece(offsets: Mapping[TopicPartition, Position], metadata: str = "") -> dict[TopicPartition, Position]:
    """As many of the offsets as one OffsetCommit may have, from the first on; one at least. `metadata`: of those
    positions that have none of their own.
    """
    piece: dict[TopicPartition, Position] = {}
    size = 0
    for tp, position in offsets.items():
        size += _BYTES_AN_OFFSET + len(tp.topic) + len((position.done or metadata).encode())
        if piece and size > _BYTES_A_COMMIT:
            break
        piece[tp] = position
    return piece


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

    `require_stable` does not exist before version 7, and brokers that old have no offsets pending in a transaction that
    they could hold back (KIP-447, `OffsetFetchRequest.java`).
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
    """Partitions as requests have them: sorted, each topic once."""
    return [(topic, list(group)) for topic, group in groupby(sorted(set(partitions)), key=lambda each: each.topic)]


class Found(NamedTuple):
    """Answer to FindCoordinator: the broker, or the error and what the broker says about it."""

    error: int
    broker: Broker | None
    why: str = ""


def found(message: Any, group_id: str) -> Found:
    """Answer to FindCoordinator. A broker that leaves our group out is taken for one without a coordinator to name."""
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
    """Answer to DescribeConfigs: the error, and the setting's value where there is one."""
    resource = next((each for each in message.results or () if each.resource_name == group_id), None)
    if resource is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR, None
    return int(resource.error_code), next((each.value for each in resource.configs or () if each.name == name), None)


def joined(message: Any) -> JoinAnswer:
    """Answer to JoinGroup; the members' subscriptions are read by the rules of the assignor that was chosen."""
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
    """Answer to SyncGroup. The broker passes on what the leader wrote: if that cannot be read, the answer still is."""
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
    """Answer to ConsumerGroupHeartbeat, without negative partition numbers and topics without an id: nobody can own
    them.
    """
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
    """Error code of an answer to LeaveGroup. From version 3 on the error on top is 0 and the member's own stands beside
    its name.
    """
    error = int(message.error_code)
    if error != ErrorCode.NONE:
        return error
    for each in getattr(message, "members", None) or ():
        if each.member_id == member_id or (instance_id is not None and each.group_instance_id == instance_id):
            return int(each.error_code)
    return error


def committed(message: Any, topic_ids: Mapping[str, UUID]) -> CommitAnswer:
    """Answer to OffsetCommit; `topic_ids` are those of the request, for answers that name topics by id."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    errors: dict[TopicPartition, int] = {}
    for topic in message.topics or ():
        name: str | None = topic.name if hasattr(topic, "name") else names.get(topic.topic_id)
        if name is not None:
            errors |= {TopicPartition(name, int(e.partition_index)): int(e.error_code) for e in topic.partitions or ()}
    return CommitAnswer(errors)


def offsets_fetched(message: Any, group_id: str, topic_id: Callable[[str], str] = lambda _: "") -> OffsetFetchAnswer:
    """Answer to OffsetFetch. The group's error comes with no partitions: a loop over those alone sees "no offsets".

    `topic_id`: of a topic by its name, empty where it is not known. A leader epoch that a commit could not name in its
    field is taken from its metadata, if it names that topic.
    """
    if not hasattr(message, "groups"):
        return OffsetFetchAnswer(int(message.error_code), _offsets(message.topics, topic_id))
    for group in message.groups or ():
        if group.group_id == group_id:
            return OffsetFetchAnswer(int(group.error_code), _offsets(group.topics, topic_id))
    return OffsetFetchAnswer(ErrorCode.UNKNOWN_SERVER_ERROR)


def _offsets(topics: Any, topic_id: Callable[[str], str]) -> dict[TopicPartition, Committed]:
    return {
        TopicPartition(topic.name, int(each.partition_index)): _committed(each, topic_id(topic.name))
        for topic in topics or ()
        for each in topic.partitions or ()
    }


def _committed(told: Any, topic_id: str) -> Committed:
    at, epoch, metadata = int(told.committed_offset), int(told.committed_leader_epoch), told.metadata or ""
    if epoch == NO_EPOCH:
        epoch = bitmap.epoch(at, metadata, topic_id)
    return Committed(int(told.error_code), at, epoch, metadata)


_NO_IDS: Mapping[str, UUID] = MappingProxyType({})

CONTROL = "control"
OFFSETS = "offsets"

_LOOK_UP_TIMEOUT = 3.0
"""Seconds; every broker has the answer at hand. One that is frozen keeps its connections, and no heartbeat goes out
while a look-up waits for it: asking somebody else is quicker than any patience."""


class Coordinator:
    """Requests of one group member. Timeouts are seconds, connecting included; a third is left for the answer even so.

    All but `find` raise `CoordinatorUnavailable` while the node is unknown, and `PeerError` when the transport fails.
    Errors that the broker answers with are in the answer.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.node: Broker | None = None
        self.join_sent = asyncio.Event()
        """Set from the first JoinGroup on that may bring an assignment, or the first ConsumerGroupHeartbeat. Whoever
        waits for it goes on after the frame was written."""
        self._cluster = cluster
        self._group_id = group_id
        self._parked = 0
        """Requests on "control" that the broker may answer much later, and behind which it reads nothing."""

    async def find(self, timeout: float | None = None) -> Broker:
        """Ask the least loaded nodes in turn where the coordinator is, `timeout` each (3 s by default).

        Raises `CoordinatorUnavailable` with Kafka's error code, `BrokersUnreachable` if nobody answered at all. After
        the former the next look-up may ask another node.
        """
        limit = min(self._cluster.request_timeout, _LOOK_UP_TIMEOUT) if timeout is None else timeout

        async def ask(connection: Connection) -> Any:
            fields = find_coordinator(connection.version(Api.FIND_COORDINATOR), self._group_id)
            return await connection.request(Api.FIND_COORDINATOR, fields, limit)

        answer = found(await self._cluster.ask_any(ask, limit), self._group_id)
        if answer.broker is None:
            # As it has answered, its turn would go on: one that is cut off from the controllers would be asked for
            # longer than a session lasts.
            self._cluster.doubt()
            raise CoordinatorUnavailable(
                answer.error,
                f"no coordinator for group {self._group_id!r}: {describe(answer.error)} {answer.why}".strip(),
            )
        self._cluster.learn(answer.broker)
        self.node = answer.broker
        return answer.broker

    def forget(self) -> None:
        """Forget the node and close both connections: the coordinator has moved or does not answer. Requests in flight
        end as lost. The next look-up may ask another node than the last.
        """
        self._cluster.doubt()
        if self.node is not None:
            for purpose in (CONTROL, OFFSETS):
                self._cluster.disconnect(self.node.node_id, purpose)
        self.node = None

    async def join(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Sequence[tuple[str, Subscription]],
        reason: str,
        timeout: float,
    ) -> JoinAnswer:
        """JoinGroup; parked by the broker until all members have come, `rebalance_timeout_ms` at most.

        Without `member_id` and `instance_id` it is answered at once, with the id to come back with (KIP-394), but by
        a broker that takes it for the join.
        """
        sent = self.join_sent if member_id or instance_id is not None else None
        fields = join(
            self._group_id, member_id, instance_id, session_timeout_ms, rebalance_timeout_ms, protocols, reason
        )
        answer = joined(await self._park(Api.JOIN_GROUP, fields, timeout, sent))
        if not answer.error:
            self.join_sent.set()
        return answer

    async def sync(
        self,
        *,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignor: str | None,
        plan: Plan,
        timeout: float,
    ) -> SyncAnswer:
        """SyncGroup; parked by the broker until the leader's has come. A follower's `plan` is empty."""
        fields = sync(self._group_id, generation, member_id, instance_id, assignor, plan)
        return synced(await self._park(Api.SYNC_GROUP, fields, timeout))

    async def heartbeat(self, *, generation: int, member_id: str, instance_id: str | None, timeout: float) -> int:
        """Heartbeat; its error code."""
        fields = heartbeat(self._group_id, generation, member_id, instance_id)
        answer = await self._ask(OFFSETS if self._parked else CONTROL, Api.HEARTBEAT, lambda _: fields, timeout)
        return int(answer.error_code)

    async def consumer_heartbeat(
        self,
        *,
        member_id: str,
        epoch: int,
        instance_id: str | None,
        wishes: Wishes | None,
        owned: TopicPartitions | None,
        timeout: float,
    ) -> ConsumerHeartbeatAnswer:
        """ConsumerGroupHeartbeat. Raises `UnsupportedByBroker` where the consumer protocol is not known."""
        fields = consumer_heartbeat(self._group_id, member_id, epoch, instance_id, wishes, owned)
        answer = await self._ask(CONTROL, Api.CONSUMER_GROUP_HEARTBEAT, lambda _: fields, timeout, sent=self.join_sent)
        return consumer_heartbeat_answered(answer)

    async def speaks_consumer_protocol(self, timeout: float) -> bool:
        """Whether a ConsumerGroupHeartbeat could join. Asked by one that never joins: a member that nobody knows
        leaves, whereby no group is made, and none converted.

        Raises `CoordinatorUnavailable` where the node is no coordinator now, too.
        """
        nobody = consumer_heartbeat(self._group_id, str(uuid4()), LEAVE_EPOCH, None, None, None)
        try:
            answer = await self._ask(CONTROL, Api.CONSUMER_GROUP_HEARTBEAT, lambda _: nobody, timeout)
        except UnsupportedByBroker:
            return False
        error = int(answer.error_code)
        if error in COORDINATOR_MOVED:
            raise CoordinatorUnavailable(error, f"group {self._group_id!r}: {describe(error)}")
        # Brokers of 3.7 to 3.9, and those with an older group.version, know the request and refuse it.
        return error != ErrorCode.UNSUPPORTED_VERSION

    async def describe(self, timeout: float) -> Any:
        """DescribeGroups: kio's message about this group as a classic one; see `kafka.admin.classic_group`."""
        fields: Fields = {"groups": [self._group_id], "include_authorized_operations": False}
        return await self._ask(CONTROL, Api.DESCRIBE_GROUPS, lambda _: fields, timeout)

    async def describe_config(self, name: str, timeout: float) -> tuple[int, str | None]:
        """DescribeConfigs: the error, and the value that the brokers' setting of that name has for this group."""
        fields = describe_config(self._group_id, name)
        answer = await self._ask(CONTROL, Api.DESCRIBE_CONFIGS, lambda _: fields, timeout)
        return config_described(answer, self._group_id, name)

    async def leave(self, *, member_id: str, instance_id: str | None, reason: str, timeout: float) -> int:
        """LeaveGroup; the error code that concerns this member."""

        def fields(version: int) -> Fields:
            return leave(version, self._group_id, member_id, instance_id, reason)

        answer = await self._ask(OFFSETS, Api.LEAVE_GROUP, fields, timeout)
        return left(answer, member_id, instance_id)

    async def commit(
        self,
        *,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, Position],
        metadata: str,
        timeout: float,
        topic_ids: Mapping[str, UUID] = _NO_IDS,
        retention: timedelta | None = None,
    ) -> CommitAnswer:
        """OffsetCommit, of no more than `first_piece` gives. The broker checks neither ownership nor the offsets: both
        are the caller's to get right.

        Where `topic_ids` has every topic and the broker takes ids, an offset of a topic that is gone is refused with
        UNKNOWN_TOPIC_ID; else it counts for whatever topic has that name now.

        `retention`: the brokers keep the offsets for so long, and not for `offsets.retention.minutes`. The positions
        have no leader epochs then, which belong into the metadata (`bitmap.epoch_word`). Raises `UnsupportedByBroker`
        where the broker cannot be told so.
        """
        by_id = all(tp.topic in topic_ids for tp in offsets)
        kept: Fields = {} if retention is None else {"retention_time": retention}

        def fields(version: int) -> Fields:
            said = commit(version, self._group_id, generation, member_id, instance_id, offsets, topic_ids, metadata)
            return {**said, **kept}

        at_most = None if by_id else COMMIT_BY_NAME
        at_most = at_most if retention is None else COMMIT_WITH_RETENTION
        answer = await self._ask(OFFSETS, Api.OFFSET_COMMIT, fields, timeout, at_most)
        return committed(answer, topic_ids)

    async def fetch_offsets(
        self,
        *,
        partitions: Collection[TopicPartition] | None,
        require_stable: bool,
        timeout: float,
        member_id: str | None = None,
        epoch: int = NO_GENERATION,
    ) -> OffsetFetchAnswer:
        """OffsetFetch: what the group has committed, for all partitions there are with `partitions` None.

        Look at the group's error before the partitions'. With a member's id and epoch the broker refuses a member that
        it has fenced meanwhile (KIP-848).
        """

        def fields(version: int) -> Fields:
            return fetch_offsets(version, self._group_id, partitions, require_stable, member_id, epoch)

        answer = await self._ask(OFFSETS, Api.OFFSET_FETCH, fields, timeout)
        return offsets_fetched(answer, self._group_id, self._topic_id)

    def _topic_id(self, topic: str) -> str:
        known = self._cluster.metadata.topics.get(topic)
        return "" if known is None else topic_id_text(known.topic_id)

    async def _park(self, api: Api, fields: Fields, timeout: float, sent: asyncio.Event | None = None) -> Any:
        self._parked += 1
        try:
            return await self._ask(CONTROL, api, lambda _: fields, timeout, sent=sent)
        finally:
            self._parked -= 1

    async def _ask(
        self,
        purpose: str,
        api: Api,
        fields: Callable[[int], Fields],
        timeout: float,
        at_most: int | None = None,
        sent: asyncio.Event | None = None,
    ) -> Any:
        if self.node is None:
            raise CoordinatorUnavailable(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{api.title}: the coordinator is not known now"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        connection = await self._cluster.connection(self.node.node_id, purpose, timeout)
        version = connection.version(api, at_most)
        if sent is not None:
            # Nothing else has its turn between here and the request's frame.
            sent.set()
        # Hung up on because it took nearly all the time to connect, it would be connected to anew, again and again.
        left = max(timeout / 3, deadline - loop.time())
        return await connection.request(api, fields(version), left, version)
