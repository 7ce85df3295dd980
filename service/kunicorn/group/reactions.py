"""One table from a broker's error to our reaction; the only place that decides what an error means.

After Kafka's `AbstractCoordinator.java` and `ConsumerCoordinator.java`; where clients differ, the reason stands beside
the row. Codes are those of Kafka's `Errors.java`.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Api(Enum):
    """The requests whose errors concern membership; each has its own reading of the same code."""

    FIND_COORDINATOR = "FindCoordinator"
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"
    OFFSET_FETCH = "OffsetFetch"


class Code(IntEnum):
    """The error codes that have a row below."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    NOT_LEADER_OR_FOLLOWER = 6
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    UNSTABLE_OFFSET_COMMIT = 88


class Reaction(Enum):
    """What a member does about an answer."""

    #: No error.
    PROCEED = "proceed"
    #: The same request to the same node, after a backoff.
    RETRY = "retry"
    #: The coordinator is elsewhere or gone: look it up; membership is kept.
    REDISCOVER = "rediscover"
    #: A rebalance is under way: join it, with the member id and generation we have.
    REJOIN = "rejoin"
    #: The generation is over without us: partitions are lost, the member id stays. Forgetting the id as well would
    #: leave a ghost member behind, for which the next rebalance waits until its session ends.
    RESET_GENERATION = "reset generation"
    #: The coordinator does not know us: partitions are lost, join with an empty member id.
    FORGET_MEMBER = "forget member"
    #: KIP-394: store the id that the coordinator gave and send the same request again, at once.
    ADOPT_MEMBER_ID = "adopt member id"
    #: This partition's offset will not be accepted; the others' are.
    GIVE_UP = "give up"
    #: Only a person can help.
    FAIL = "fail"


_REACTIONS: dict[tuple[Api, Code], Reaction] = {
    (Api.FIND_COORDINATOR, Code.INVALID_GROUP_ID): Reaction.FAIL,
    (Api.FIND_COORDINATOR, Code.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.FIND_COORDINATOR, Code.CLUSTER_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.JOIN, Code.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.JOIN, Code.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.JOIN, Code.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.JOIN, Code.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.JOIN, Code.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.JOIN, Code.REBALANCE_IN_PROGRESS): Reaction.RETRY,
    (Api.JOIN, Code.MEMBER_ID_REQUIRED): Reaction.ADOPT_MEMBER_ID,
    (Api.SYNC, Code.COORDINATOR_LOAD_IN_PROGRESS): Reaction.REJOIN,
    (Api.SYNC, Code.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.SYNC, Code.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.SYNC, Code.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.SYNC, Code.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.SYNC, Code.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    (Api.SYNC, Code.INCONSISTENT_GROUP_PROTOCOL): Reaction.FAIL,
    (Api.SYNC, Code.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.SYNC, Code.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.HEARTBEAT, Code.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.HEARTBEAT, Code.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.HEARTBEAT, Code.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.HEARTBEAT, Code.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.HEARTBEAT, Code.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    (Api.HEARTBEAT, Code.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.HEARTBEAT, Code.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.COMMIT, Code.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.COMMIT, Code.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.COMMIT, Code.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.COMMIT, Code.REQUEST_TIMED_OUT): Reaction.REDISCOVER,
    (Api.COMMIT, Code.UNKNOWN_TOPIC_OR_PARTITION): Reaction.GIVE_UP,
    (Api.COMMIT, Code.OFFSET_METADATA_TOO_LARGE): Reaction.GIVE_UP,
    (Api.COMMIT, Code.INVALID_COMMIT_OFFSET_SIZE): Reaction.GIVE_UP,
    (Api.COMMIT, Code.TOPIC_AUTHORIZATION_FAILED): Reaction.GIVE_UP,
    (Api.COMMIT, Code.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.COMMIT, Code.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.COMMIT, Code.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    (Api.COMMIT, Code.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.COMMIT, Code.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.OFFSET_FETCH, Code.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.OFFSET_FETCH, Code.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.OFFSET_FETCH, Code.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.OFFSET_FETCH, Code.UNSTABLE_OFFSET_COMMIT): Reaction.RETRY,
    (Api.OFFSET_FETCH, Code.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.OFFSET_FETCH, Code.TOPIC_AUTHORIZATION_FAILED): Reaction.GIVE_UP,
}

_OTHERWISE: dict[Api, Reaction] = {
    Api.FIND_COORDINATOR: Reaction.RETRY,
    Api.JOIN: Reaction.FAIL,
    Api.SYNC: Reaction.REJOIN,
    Api.HEARTBEAT: Reaction.RETRY,
    Api.COMMIT: Reaction.RETRY,
    Api.OFFSET_FETCH: Reaction.RETRY,
}


def reaction(api: Api, error: int) -> Reaction:
    """What to do about `error` in an answer to `api`; total: codes from the future have a reaction, too."""
    if error == Code.NONE:
        return Reaction.PROCEED
    try:
        return _REACTIONS.get((api, Code(error)), _OTHERWISE[api])
    except ValueError:
        return _OTHERWISE[api]


_REMEDIES: dict[Code, str] = {
    Code.INVALID_GROUP_ID: "correct group.id",
    Code.GROUP_AUTHORIZATION_FAILED: "this user needs READ on the group",
    Code.CLUSTER_AUTHORIZATION_FAILED: "ask whoever runs the cluster for the permission",
    Code.GROUP_MAX_SIZE_REACHED: "the group is full; run fewer members, or raise the brokers' group.max.size",
    Code.INVALID_SESSION_TIMEOUT: (
        "group.session_timeout_ms is outside the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms"
    ),
    Code.INCONSISTENT_GROUP_PROTOCOL: (
        "the members have no assignor in common; give all the same group.partition_assignment_strategy"
    ),
    Code.FENCED_INSTANCE_ID: "another member came with the same group.group_instance_id; make it unique",
}


def remedy(error: int) -> str:
    """What a person can do about an error that ends the service; total."""
    try:
        return _REMEDIES.get(Code(error), _NO_REMEDY)
    except ValueError:
        return _NO_REMEDY


_NO_REMEDY = "trying again does not cure it; the brokers' log says more"
