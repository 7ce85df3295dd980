"""The group's coordinator, as one member sees it.

1. Two connections of its own: "control" and "offsets". A broker answers a connection in order, so a heartbeat would
   wait behind a commit that waits for a slow replica, and metadata behind a JoinGroup that waits for the group.
2. LeaveGroup goes over "offsets": behind the last commit, and not behind a JoinGroup that is still parked, which
   would hold it back until the others have given up on us. So do heartbeats while a JoinGroup or SyncGroup is out:
   another member's drain or plan may take minutes, and no commit is in their way then.
3. No retries and no reactions here: the caller has one table for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kunicorn.group.protocol import (
    NO_GENERATION,
    CommitAnswer,
    ConsumerHeartbeatAnswer,
    JoinAnswer,
    OffsetFetchAnswer,
    Plan,
    Subscription,
    SyncAnswer,
    TopicPartitions,
)
from kunicorn.topics import Position, TopicPartition
from kunicorn.wire import group_answers, group_requests
from kunicorn.wire.cluster import Cluster
from kunicorn.wire.connection import Connection
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import CoordinatorUnavailable
from kunicorn.wire.make import Fields
from kunicorn.wire.metadata import Broker
from kunicorn.wire.versions import Api

_NO_IDS: Mapping[str, UUID] = MappingProxyType({})

CONTROL = "control"
OFFSETS = "offsets"

_LOOK_UP_TIMEOUT = 3.0
"""Seconds; every broker has the answer at hand. One that is frozen keeps its connections, and no heartbeat goes out
while a look-up waits for it: asking somebody else is quicker than any patience."""


class Coordinator:
    """The requests of one group's member. Timeouts are seconds, connecting included.

    All but `find` raise `CoordinatorUnavailable` while the node is unknown, and `PeerError` when the transport fails.
    Errors that the broker answers with are in the answer.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        """Sends nothing."""
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

        Raises `CoordinatorUnavailable` with Kafka's error code, `BrokersUnreachable` if nobody answered at all.
        """
        limit = min(self._cluster.request_timeout, _LOOK_UP_TIMEOUT) if timeout is None else timeout

        async def ask(connection: Connection) -> Any:
            fields = group_requests.find_coordinator(connection.version(Api.FIND_COORDINATOR), self._group_id)
            return await connection.request(Api.FIND_COORDINATOR, fields, limit)

        answer = group_answers.found(await self._cluster.ask_any(ask, limit), self._group_id)
        if answer.broker is None:
            raise CoordinatorUnavailable(
                answer.error,
                f"no coordinator for group {self._group_id!r}: {describe(answer.error)} {answer.why}".strip(),
            )
        self._cluster.learn(answer.broker)
        self.node = answer.broker
        return answer.broker

    def forget(self) -> None:
        """The coordinator moved or does not answer: close both connections. What is in flight ends as lost."""
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

        Without `member_id` and `instance_id` it is answered at once, with the id to come back with (KIP-394).
        """
        sent = self.join_sent if member_id or instance_id is not None else None
        fields = group_requests.join(
            self._group_id, member_id, instance_id, session_timeout_ms, rebalance_timeout_ms, protocols, reason
        )
        return group_answers.joined(await self._park(Api.JOIN_GROUP, fields, timeout, sent))

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
        fields = group_requests.sync(self._group_id, generation, member_id, instance_id, assignor, plan)
        return group_answers.synced(await self._park(Api.SYNC_GROUP, fields, timeout))

    async def heartbeat(self, *, generation: int, member_id: str, instance_id: str | None, timeout: float) -> int:
        """Heartbeat; its error code."""
        fields = group_requests.heartbeat(self._group_id, generation, member_id, instance_id)
        answer = await self._ask(OFFSETS if self._parked else CONTROL, Api.HEARTBEAT, lambda _: fields, timeout)
        return int(answer.error_code)

    async def consumer_heartbeat(
        self,
        *,
        member_id: str,
        epoch: int,
        instance_id: str | None,
        wishes: group_requests.Wishes | None,
        owned: TopicPartitions | None,
        timeout: float,
    ) -> ConsumerHeartbeatAnswer:
        """ConsumerGroupHeartbeat. Raises `UnsupportedByBroker` where the consumer protocol is not known."""
        fields = group_requests.consumer_heartbeat(self._group_id, member_id, epoch, instance_id, wishes, owned)
        answer = await self._ask(CONTROL, Api.CONSUMER_GROUP_HEARTBEAT, lambda _: fields, timeout, sent=self.join_sent)
        return group_answers.consumer_heartbeat_answered(answer)

    async def describe(self, timeout: float) -> Any:
        """DescribeGroups: kio's message about this group as a classic one; see `group_admin.classic_group`."""
        fields: Fields = {"groups": [self._group_id], "include_authorized_operations": False}
        return await self._ask(CONTROL, Api.DESCRIBE_GROUPS, lambda _: fields, timeout)

    async def describe_config(self, name: str, timeout: float) -> tuple[int, str | None]:
        """DescribeConfigs: the error, and the value that the brokers' setting of that name has for this group."""
        fields = group_requests.describe_config(self._group_id, name)
        answer = await self._ask(CONTROL, Api.DESCRIBE_CONFIGS, lambda _: fields, timeout)
        return group_answers.config_described(answer, self._group_id, name)

    async def leave(self, *, member_id: str, instance_id: str | None, reason: str, timeout: float) -> int:
        """LeaveGroup; the error code that concerns this member."""

        def fields(version: int) -> Fields:
            return group_requests.leave(version, self._group_id, member_id, instance_id, reason)

        answer = await self._ask(OFFSETS, Api.LEAVE_GROUP, fields, timeout)
        return group_answers.left(answer, member_id, instance_id)

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
    ) -> CommitAnswer:
        """OffsetCommit. The broker checks neither ownership nor the offsets: both are the caller's to get right.

        Where `topic_ids` has every topic and the broker takes ids, an offset of a topic that is gone is refused with
        UNKNOWN_TOPIC_ID; else it counts for whatever topic has that name now.
        """
        by_id = all(tp.topic in topic_ids for tp in offsets)

        def fields(version: int) -> Fields:
            return group_requests.commit(
                version, self._group_id, generation, member_id, instance_id, offsets, topic_ids, metadata
            )

        at_most = None if by_id else group_requests.COMMIT_BY_NAME
        answer = await self._ask(OFFSETS, Api.OFFSET_COMMIT, fields, timeout, at_most)
        return group_answers.committed(answer, topic_ids)

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
            return group_requests.fetch_offsets(version, self._group_id, partitions, require_stable, member_id, epoch)

        answer = await self._ask(OFFSETS, Api.OFFSET_FETCH, fields, timeout)
        return group_answers.offsets_fetched(answer, self._group_id)

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
        return await connection.request(api, fields(version), max(0.0, deadline - loop.time()), version)
