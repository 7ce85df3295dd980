"""A member's reaction to an error code, by the request that was answered with it. Pure.

After Kafka's `AbstractCoordinator.java` and `ConsumerCoordinator.java`; where clients differ, the reason stands beside
the row. What is said about a code, and what a person can do, is in `kunicorn.kafka_errors`.
"""

from __future__ import annotations

from enum import Enum

from kunicorn.kafka_errors import ErrorCode

COORDINATOR_MOVED = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
"""The coordinator is another node, or will answer soon: nothing is wrong with the group or with us."""


class Api(Enum):
    """The requests whose errors concern membership; each has its own reading of the same code."""

    FIND_COORDINATOR = "FindCoordinator"
    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"
    OFFSET_FETCH = "OffsetFetch"
    CONSUMER_HEARTBEAT = "ConsumerGroupHeartbeat"


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
    #: The coordinator could not take the plan, and has begun another rebalance: join it, but after waits that grow, as
    #: the next plan will most likely be refused, too. A person is told.
    REJOIN_LATER = "rejoin later"
    #: The generation is over without us: partitions are lost, the member id stays. Forgetting the id as well would
    #: leave a ghost member behind, for which the next rebalance waits until its session ends.
    RESET_GENERATION = "reset generation"
    #: The coordinator does not know us: partitions are lost, join with an empty member id.
    FORGET_MEMBER = "forget member"
    #: KIP-394: store the id that the coordinator gave and send the same request again, at once.
    ADOPT_MEMBER_ID = "adopt member id"
    #: Our epoch is not the coordinator's, or there is a rebalance: heartbeat at once, and go by what that brings.
    BEAT = "heartbeat now"
    #: The member before us holds our static slot; it lets go of it or its session ends.
    AWAIT_SLOT = "await slot"
    #: The broker does not speak this protocol: be a classic member instead.
    FALL_BACK = "fall back"
    #: This partition's offset will not be accepted, whoever asks for it; the others' are.
    GIVE_UP = "give up"
    #: Only a person can help.
    FAIL = "fail"


_REACTIONS: dict[tuple[Api, int], Reaction] = {
    (Api.FIND_COORDINATOR, ErrorCode.INVALID_GROUP_ID): Reaction.FAIL,
    (Api.FIND_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.FIND_COORDINATOR, ErrorCode.CLUSTER_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.JOIN, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.JOIN, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.JOIN, ErrorCode.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.JOIN, ErrorCode.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.JOIN, ErrorCode.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.JOIN, ErrorCode.REBALANCE_IN_PROGRESS): Reaction.RETRY,
    (Api.JOIN, ErrorCode.MEMBER_ID_REQUIRED): Reaction.ADOPT_MEMBER_ID,
    (Api.SYNC, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): Reaction.REJOIN,
    (Api.SYNC, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.SYNC, ErrorCode.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.SYNC, ErrorCode.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.SYNC, ErrorCode.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.SYNC, ErrorCode.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    (Api.SYNC, ErrorCode.GROUP_ID_NOT_FOUND): Reaction.FORGET_MEMBER,
    (Api.SYNC, ErrorCode.INCONSISTENT_GROUP_PROTOCOL): Reaction.FAIL,
    (Api.SYNC, ErrorCode.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.SYNC, ErrorCode.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.HEARTBEAT, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.HEARTBEAT, ErrorCode.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.HEARTBEAT, ErrorCode.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    (Api.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS): Reaction.REJOIN,
    # Kafka's own coordinator says UNKNOWN_MEMBER_ID of a group that is gone; others, and librdkafka's mock, say so.
    (Api.HEARTBEAT, ErrorCode.GROUP_ID_NOT_FOUND): Reaction.FORGET_MEMBER,
    (Api.HEARTBEAT, ErrorCode.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.COMMIT, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.COMMIT, ErrorCode.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.COMMIT, ErrorCode.REQUEST_TIMED_OUT): Reaction.REDISCOVER,
    # As the Java client (KAFKA-6829): a coordinator whose metadata lags behind knows new topics and partitions later.
    (Api.COMMIT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): Reaction.RETRY,
    (Api.COMMIT, ErrorCode.OFFSET_METADATA_TOO_LARGE): Reaction.GIVE_UP,
    (Api.COMMIT, ErrorCode.INVALID_COMMIT_OFFSET_SIZE): Reaction.GIVE_UP,
    (Api.COMMIT, ErrorCode.TOPIC_AUTHORIZATION_FAILED): Reaction.GIVE_UP,
    (Api.COMMIT, ErrorCode.UNKNOWN_TOPIC_ID): Reaction.RETRY,
    (Api.COMMIT, ErrorCode.STALE_MEMBER_EPOCH): Reaction.BEAT,
    (Api.COMMIT, ErrorCode.ILLEGAL_GENERATION): Reaction.RESET_GENERATION,
    (Api.COMMIT, ErrorCode.UNKNOWN_MEMBER_ID): Reaction.FORGET_MEMBER,
    # From version 9 on (`OffsetMetadataManager.java`, validateOffsetCommit); ILLEGAL_GENERATION before.
    (Api.COMMIT, ErrorCode.GROUP_ID_NOT_FOUND): Reaction.FORGET_MEMBER,
    # The Java client joins at once. But where the rebalance is over, a leader that joins makes another; heartbeats
    # tell of every rebalance: librdkafka waits for its next one, and we ask at once.
    (Api.COMMIT, ErrorCode.REBALANCE_IN_PROGRESS): Reaction.BEAT,
    (Api.COMMIT, ErrorCode.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.COMMIT, ErrorCode.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.OFFSET_FETCH, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.OFFSET_FETCH, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.OFFSET_FETCH, ErrorCode.NOT_COORDINATOR): Reaction.REDISCOVER,
    (Api.OFFSET_FETCH, ErrorCode.UNSTABLE_OFFSET_COMMIT): Reaction.RETRY,
    (Api.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.OFFSET_FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED): Reaction.GIVE_UP,
    (Api.OFFSET_FETCH, ErrorCode.STALE_MEMBER_EPOCH): Reaction.BEAT,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): Reaction.RETRY,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.COORDINATOR_NOT_AVAILABLE): Reaction.REDISCOVER,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.NOT_COORDINATOR): Reaction.REDISCOVER,
    # The client makes the id, so there is no other to forget it for (KIP-1082).
    (Api.CONSUMER_HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID): Reaction.RESET_GENERATION,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.FENCED_MEMBER_EPOCH): Reaction.RESET_GENERATION,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.UNRELEASED_INSTANCE_ID): Reaction.AWAIT_SLOT,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.UNSUPPORTED_VERSION): Reaction.FALL_BACK,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.INVALID_REQUEST): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.INVALID_GROUP_ID): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.GROUP_MAX_SIZE_REACHED): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.UNSUPPORTED_ASSIGNOR): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.INVALID_REGULAR_EXPRESSION): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.GROUP_AUTHORIZATION_FAILED): Reaction.FAIL,
    (Api.CONSUMER_HEARTBEAT, ErrorCode.TOPIC_AUTHORIZATION_FAILED): Reaction.FAIL,
    # A classic group whose members offer nothing that a consumer member could work with, or migration is forbidden.
    (Api.CONSUMER_HEARTBEAT, ErrorCode.GROUP_ID_NOT_FOUND): Reaction.FAIL,
}

_OTHERWISE: dict[Api, Reaction] = {
    Api.FIND_COORDINATOR: Reaction.RETRY,
    Api.JOIN: Reaction.FAIL,
    # Kafka's client ends there. The group with its plan is one record of __consumer_offsets: if that is too large, all
    # are answered with UNKNOWN_SERVER_ERROR (`GroupMetadataManager.scala`, storeGroup).
    Api.SYNC: Reaction.REJOIN_LATER,
    Api.HEARTBEAT: Reaction.RETRY,
    Api.COMMIT: Reaction.RETRY,
    Api.OFFSET_FETCH: Reaction.RETRY,
    Api.CONSUMER_HEARTBEAT: Reaction.RETRY,
}


_OF_MEMBERS: dict[tuple[Api, int], Reaction] = {
    # The group was deleted: it can be joined again.
    (Api.CONSUMER_HEARTBEAT, ErrorCode.GROUP_ID_NOT_FOUND): Reaction.RESET_GENERATION,
    # The right may come back, as the one that a fetch is refused for; the Java client goes on, too.
    (Api.CONSUMER_HEARTBEAT, ErrorCode.TOPIC_AUTHORIZATION_FAILED): Reaction.RETRY,
}
"""What refuses a newcomer for good, and passes for a member."""


def reaction_of_member(api: Api, error: int) -> Reaction:
    """As `reaction`, for a request of one who has been let in."""
    return _OF_MEMBERS.get((api, error)) or reaction(api, error)


def reaction(api: Api, error: int) -> Reaction:
    """What to do about `error` in an answer to `api`; total: codes from the future have a reaction, too."""
    if error == ErrorCode.NONE:
        return Reaction.PROCEED
    return _REACTIONS.get((api, error), _OTHERWISE[api])
