"""What the user that we are may do, asked in ways that change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum

from kunicorn.wire.cluster import Cluster
from kunicorn.wire.connection import Connection
from kunicorn.wire.coordinator import Coordinator
from kunicorn.wire.error_codes import ErrorCode
from kunicorn.wire.make import Fields
from kunicorn.wire.versions import Api


class Operation(IntEnum):
    """Kafka's operations (`AclOperation.java`), as far as they concern a consumer."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8


_NOBODY = "kunicorn-check"
"""A member id that no coordinator has given anybody."""
_ASKS_FOR_RIGHTS = 8
"""The first version of Metadata that does (KIP-430)."""


async def on_topics(cluster: Cluster, topics: Collection[str], timeout: float) -> Mapping[str, frozenset[Operation]]:
    """The operations that are allowed on each topic that we may see at all (KIP-430).

    Empty where the brokers are too old to say. Raises `BrokersUnreachable`.
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
        return {t.name: _operations(int(t.topic_authorized_operations)) for t in message.topics if not t.error_code}

    return await cluster.ask_any(ask)


async def may_join(coordinator: Coordinator, timeout: float) -> bool:
    """Whether we may READ the group: join it and commit.

    A heartbeat of a member that there is not: the broker looks at the right first (`KafkaApis.handleHeartbeatRequest`),
    and answers UNKNOWN_MEMBER_ID otherwise. No answer about rights tells of a group that does not exist yet.
    """
    error = await coordinator.heartbeat(generation=0, member_id=_NOBODY, instance_id=None, timeout=timeout)
    return error != ErrorCode.GROUP_AUTHORIZATION_FAILED


def _operations(bits: int) -> frozenset[Operation]:
    return frozenset(operation for operation in Operation if bits & (1 << operation))
