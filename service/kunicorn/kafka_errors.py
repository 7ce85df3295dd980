"""Kafka's error codes: each with its name, whether trying again may cure it, and what a person can do about it. Pure.

The only place where a remedy for an error code is written. It lies below everything that meets such codes: our own wire
(`kunicorn.kafka`), the group's state machines (`kunicorn.group`, which may import no I/O), and librdkafka's clients,
whose positive codes are the same (`kunicorn.librdkafka.errors` adds librdkafka's own, negative ones).

Codes and their retriability are those of `Errors.java`, Kafka 4.3. Codes travel as plain integers everywhere: a newer
broker may send one that nobody here has heard of, and an `IntEnum` compares equal to its integer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class ErrorCode(IntEnum):
    """The codes of Kafka 4.3."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    #: Never sent by a broker: Kafka's clients use it for an answer that did not come.
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
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
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


_E = ErrorCode


class KafkaFault(NamedTuple):
    """One error code."""

    code: int
    name: str
    retriable: bool
    """Whether the client that got it may ask again, by Kafka's own table. What is really tried again, and after which
    pause, is for whoever asks to decide."""
    advice: str
    """With places for who asked for what; see `remedy`."""

    def __str__(self) -> str:
        return f"{self.name} ({self.code})"

    def remedy(
        self, *, topic: str = "the topic", group: str = "the group", rights: str = "", setting: str = "the name"
    ) -> str:
        """What a person can do about it.

        `topic` and `group`: what the request was about, in the words of the message ("it", "topic 'orders'");
        `rights`: the ACL operations that the request needs; `setting`: the one that names the topic.
        """
        return self.advice.format(
            topic=topic,
            group=group,
            topic_rights=rights or "DESCRIBE and READ",
            group_rights=rights or "READ",
            setting=setting,
        )


def fault(code: int) -> KafkaFault:
    """The row of the code; total."""
    return _FAULTS.get(code) or KafkaFault(int(code), "an error this version does not know", False, _NOT_OURS)


def describe(code: int) -> str:
    """The code for people: "REBALANCE_IN_PROGRESS (27)"; "error 999" where Kafka's list ends."""
    return str(_FAULTS[code]) if code in _FAULTS else f"error {int(code)}"


# -- the table ---------------------------------------------------------------------------------------------------------

_MOVED = "wait: the leader has moved, or moves; if this lasts, see which of the partition's brokers are down"
_COORDINATOR_MOVED = "wait: the coordinator has moved, or loads what it needs; if this lasts, see the brokers' log"
_SESSION = "wait: the client begins a new fetch session; if this lasts, see the brokers' log"
_REPLICAS = "start the brokers that are down: fewer replicas are in sync than the topic's min.insync.replicas"
_GONE_FROM_GROUP = (
    "see who is in the group now: this member has left it meanwhile, or was expelled (group.session_timeout_ms, "
    "group.max_poll_interval_ms)"
)
_FENCED = "make producing.transactional_id_prefix unique: another producer came with the same transactional id"
_PRODUCER_STATE = "see the brokers' log: they have lost what they knew of this producer, and a new one takes its place"
_NOT_OURS = "see the brokers' log; if it does not say why, report this with the versions of kunicorn and of the brokers"
_CONTROLLERS = (
    "correct kafka.bootstrap_servers, if it names controllers; what brokers and controllers say to each other is for "
    "their own logs"
)
_UNUSED = "see what stands between kunicorn and the brokers: the answer is about {what}, which kunicorn never asks for"
_TOKENS = _UNUSED.format(what="delegation tokens")
_TOPICS = _UNUSED.format(what="moving or deleting topics")
_SHARES = _UNUSED.format(what="share groups")
_STREAMS = _UNUSED.format(what="Kafka Streams")
_TELEMETRY = _UNUSED.format(what="telemetry")
_ACCOUNTS = _UNUSED.format(what="users and features of the cluster")

_RETRIABLE: Mapping[ErrorCode, str] = {
    _E.CORRUPT_MESSAGE: (
        "have another replica elected leader, it may have these records whole: they were damaged on a broker's disk or "
        "on their way"
    ),
    _E.UNKNOWN_TOPIC_OR_PARTITION: "create {topic}, or correct {setting}",
    _E.LEADER_NOT_AVAILABLE: "wait: {topic} is being created, or its brokers are down",
    _E.NOT_LEADER_OR_FOLLOWER: _MOVED,
    _E.REQUEST_TIMED_OUT: "see the brokers' load, and whether their replicas are in sync: the answer took too long",
    _E.REPLICA_NOT_AVAILABLE: _MOVED,
    _E.NETWORK_EXCEPTION: "see whether the broker is up, and the network to it: the connection ended without an answer",
    _E.COORDINATOR_LOAD_IN_PROGRESS: _COORDINATOR_MOVED,
    _E.COORDINATOR_NOT_AVAILABLE: (
        "the brokers that hold __consumer_offsets (for transactions, __transaction_state) are down; try again"
    ),
    _E.NOT_COORDINATOR: _COORDINATOR_MOVED,
    _E.NOT_ENOUGH_REPLICAS: _REPLICAS,
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _REPLICAS,
    _E.NOT_CONTROLLER: "wait: another controller is elected; if this lasts, see the controllers' log",
    _E.CONCURRENT_TRANSACTIONS: "wait: the transaction before this one is still being ended",
    _E.KAFKA_STORAGE_ERROR: "see that broker's disk and log; another replica takes over",
    _E.FETCH_SESSION_ID_NOT_FOUND: _SESSION,
    _E.INVALID_FETCH_SESSION_EPOCH: _SESSION,
    _E.LISTENER_NOT_FOUND: "give every broker the listener that kafka.bootstrap_servers names: the leader has none",
    _E.FENCED_LEADER_EPOCH: _MOVED,
    _E.UNKNOWN_LEADER_EPOCH: _MOVED,
    _E.OFFSET_NOT_AVAILABLE: _MOVED,
    _E.PREFERRED_LEADER_NOT_AVAILABLE: _MOVED,
    _E.ELIGIBLE_LEADERS_NOT_AVAILABLE: _MOVED,
    _E.ELECTION_NOT_NEEDED: _TOPICS,
    _E.UNSTABLE_OFFSET_COMMIT: (
        "wait for the transaction that commits this offset; if this lasts, find it with kafka-transactions.sh "
        "find-hanging"
    ),
    _E.THROTTLING_QUOTA_EXCEEDED: "raise this user's quota on the brokers, or run fewer members",
    _E.UNKNOWN_TOPIC_ID: "create {topic} again, or correct {setting}: it was deleted, or is another one by now",
    _E.INCONSISTENT_TOPIC_ID: "wait: {topic} was created anew, and the client learns its new id",
    _E.FETCH_SESSION_TOPIC_ID_ERROR: _SESSION,
    _E.SHARE_SESSION_NOT_FOUND: _SHARES,
    _E.INVALID_SHARE_SESSION_EPOCH: _SHARES,
    _E.SHARE_SESSION_LIMIT_REACHED: _SHARES,
}
"""Trying again may cure them; what is said is for when it does not."""

_FINAL: Mapping[ErrorCode, str] = {
    _E.UNKNOWN_SERVER_ERROR: "see the log of the broker that answered: it has the exception",
    _E.NONE: "nothing is to be done: it went well",
    _E.OFFSET_OUT_OF_RANGE: (
        "choose an offset that is in the log, with kunicorn seek or kunicorn offsets: retention has removed this one, "
        "or the log was truncated"
    ),
    _E.INVALID_FETCH_SIZE: _NOT_OURS,
    _E.BROKER_NOT_AVAILABLE: "start the broker: it is down",
    _E.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes, or send less",
    _E.STALE_CONTROLLER_EPOCH: _CONTROLLERS,
    _E.OFFSET_METADATA_TOO_LARGE: (
        "raise the brokers' offset.metadata.max.bytes to 1000 or more (the default is 4096): what is done beyond an "
        "offset is committed with it; or unset handler.ordering and handler.concurrency"
    ),
    _E.INVALID_TOPIC_EXCEPTION: "correct {setting}: that is no legal name of a topic",
    _E.RECORD_LIST_TOO_LARGE: "raise the topic's segment.bytes, or send less",
    _E.INVALID_REQUIRED_ACKS: "correct producing.acks",
    _E.ILLEGAL_GENERATION: _GONE_FROM_GROUP,
    _E.INCONSISTENT_GROUP_PROTOCOL: (
        "the members have no assignor in common: give all the same group.partition_assignment_strategy; or they are no "
        "consumers, such as Kafka Connect's workers or a share group's members: use another group.id (`kunicorn check` "
        "tells which)"
    ),
    _E.INVALID_GROUP_ID: "correct group.id",
    _E.UNKNOWN_MEMBER_ID: _GONE_FROM_GROUP,
    _E.INVALID_SESSION_TIMEOUT: (
        "set group.session_timeout_ms between the brokers' group.min.session.timeout.ms and "
        "group.max.session.timeout.ms"
    ),
    _E.REBALANCE_IN_PROGRESS: "wait: the group is rebalancing; try again when it is stable",
    _E.INVALID_COMMIT_OFFSET_SIZE: "raise the brokers' message.max.bytes: the commit is larger",
    _E.TOPIC_AUTHORIZATION_FAILED: "this user needs {topic_rights} on {topic}",
    _E.GROUP_AUTHORIZATION_FAILED: "this user needs {group_rights} on {group}",
    _E.CLUSTER_AUTHORIZATION_FAILED: (
        "this user needs a right on the cluster itself (to produce, IDEMPOTENT_WRITE before Kafka 2.8): the brokers' "
        "authorizer log names it"
    ),
    _E.INVALID_TIMESTAMP: (
        "its timestamp is too far from now: raise the topic's message.timestamp.before.max.ms, or .after.max.ms"
    ),
    _E.UNSUPPORTED_SASL_MECHANISM: "set kafka.sasl_mechanism to one that the listener offers",
    _E.ILLEGAL_SASL_STATE: (
        "the listener asks for no SASL; set kafka.security_protocol to PLAINTEXT or SSL, or kafka.bootstrap_servers to "
        "the port of the listener that does"
    ),
    _E.UNSUPPORTED_VERSION: (
        "upgrade this broker, others speak what it does not; group.group_protocol = classic does without the consumer "
        "protocol"
    ),
    _E.TOPIC_ALREADY_EXISTS: "look again: {topic} has been created meanwhile",
    _E.INVALID_PARTITIONS: "correct topics.partitions",
    _E.INVALID_REPLICATION_FACTOR: (
        "start the brokers that are down, or lower topics.replication_factor, or the brokers' "
        "default.replication.factor: it is more than there are brokers"
    ),
    _E.INVALID_REPLICA_ASSIGNMENT: _NOT_OURS,
    _E.INVALID_CONFIG: "correct [topics], or upgrade the brokers: they do not take a setting of {topic}",
    _E.INVALID_REQUEST: _NOT_OURS,
    _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: "upgrade the brokers, or raise the topic's message.format.version",
    _E.POLICY_VIOLATION: "the brokers' policy forbids it: ask whoever runs the cluster what it allows",
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _PRODUCER_STATE,
    _E.DUPLICATE_SEQUENCE_NUMBER: _PRODUCER_STATE,
    _E.INVALID_PRODUCER_EPOCH: _FENCED,
    _E.INVALID_TXN_STATE: _PRODUCER_STATE,
    _E.INVALID_PRODUCER_ID_MAPPING: _PRODUCER_STATE,
    _E.INVALID_TRANSACTION_TIMEOUT: (
        "lower producing.transaction_timeout_ms, or raise the brokers' transaction.max.timeout.ms"
    ),
    _E.TRANSACTION_COORDINATOR_FENCED: _CONTROLLERS,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "this user needs WRITE and DESCRIBE on the transactional ids that begin with producing.transactional_id_prefix"
    ),
    _E.SECURITY_DISABLED: "nothing need be granted: the brokers have no authorizer, and this asks about rights",
    _E.OPERATION_NOT_ATTEMPTED: "try again: another part of the same request failed, see the error beside this one",
    _E.LOG_DIR_NOT_FOUND: _TOPICS,
    _E.SASL_AUTHENTICATION_FAILED: "correct the credentials: kafka.sasl_username and its password, or the token",
    _E.UNKNOWN_PRODUCER_ID: _PRODUCER_STATE,
    _E.REASSIGNMENT_IN_PROGRESS: _TOPICS,
    _E.DELEGATION_TOKEN_AUTH_DISABLED: _TOKENS,
    _E.DELEGATION_TOKEN_NOT_FOUND: _TOKENS,
    _E.DELEGATION_TOKEN_OWNER_MISMATCH: _TOKENS,
    _E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: _TOKENS,
    _E.DELEGATION_TOKEN_AUTHORIZATION_FAILED: _TOKENS,
    _E.DELEGATION_TOKEN_EXPIRED: _TOKENS,
    _E.INVALID_PRINCIPAL_TYPE: _TOKENS,
    _E.NON_EMPTY_GROUP: "stop the group's members first",
    _E.GROUP_ID_NOT_FOUND: (
        "correct group.id: a share group or a streams group of this name takes no consumer (`kunicorn check` tells); a "
        "classic group of this name cannot be converted now: see group.consumer.migration.policy of the brokers"
    ),
    _E.TOPIC_DELETION_DISABLED: _TOPICS,
    _E.UNSUPPORTED_COMPRESSION_TYPE: "correct producing.compression_type, or upgrade the brokers",
    _E.STALE_BROKER_EPOCH: _CONTROLLERS,
    _E.MEMBER_ID_REQUIRED: "join again with the member id of the answer; kunicorn does that by itself",
    _E.GROUP_MAX_SIZE_REACHED: "the group is full; run fewer members, or raise the brokers' group.max.size",
    _E.FENCED_INSTANCE_ID: (
        "another member came with the same group.group_instance_id; make it unique, or look again if it is the same "
        "one that came back"
    ),
    _E.NO_REASSIGNMENT_IN_PROGRESS: _TOPICS,
    _E.GROUP_SUBSCRIBED_TO_TOPIC: "stop the group's members first: they are subscribed to {topic}",
    _E.INVALID_RECORD: "the brokers do not accept it; a compacted topic needs a key",
    _E.PRODUCER_FENCED: _FENCED,
    _E.RESOURCE_NOT_FOUND: _NOT_OURS,
    _E.DUPLICATE_RESOURCE: _NOT_OURS,
    _E.UNACCEPTABLE_CREDENTIAL: _ACCOUNTS,
    _E.INCONSISTENT_VOTER_SET: _CONTROLLERS,
    _E.INVALID_UPDATE_VERSION: _CONTROLLERS,
    _E.FEATURE_UPDATE_FAILED: _ACCOUNTS,
    _E.PRINCIPAL_DESERIALIZATION_FAILURE: "see the brokers' principal.builder.class, and their log",
    _E.SNAPSHOT_NOT_FOUND: _CONTROLLERS,
    _E.POSITION_OUT_OF_RANGE: _CONTROLLERS,
    _E.DUPLICATE_BROKER_REGISTRATION: _CONTROLLERS,
    _E.BROKER_ID_NOT_REGISTERED: _CONTROLLERS,
    _E.INCONSISTENT_CLUSTER_ID: _CONTROLLERS,
    _E.TRANSACTIONAL_ID_NOT_FOUND: _PRODUCER_STATE,
    _E.INELIGIBLE_REPLICA: _CONTROLLERS,
    _E.NEW_LEADER_ELECTED: _CONTROLLERS,
    _E.OFFSET_MOVED_TO_TIERED_STORAGE: _CONTROLLERS,
    _E.FENCED_MEMBER_EPOCH: _GONE_FROM_GROUP,
    _E.UNRELEASED_INSTANCE_ID: (
        "another member with the same group.group_instance_id goes on living; make it unique, or stop the other"
    ),
    _E.UNSUPPORTED_ASSIGNOR: "correct group.group_remote_assignor; the brokers have uniform and range",
    _E.STALE_MEMBER_EPOCH: "wait: the next heartbeat brings the member's new epoch",
    _E.MISMATCHED_ENDPOINT_TYPE: _CONTROLLERS,
    _E.UNSUPPORTED_ENDPOINT_TYPE: _CONTROLLERS,
    _E.UNKNOWN_CONTROLLER_ID: _CONTROLLERS,
    _E.UNKNOWN_SUBSCRIPTION_ID: _TELEMETRY,
    _E.TELEMETRY_TOO_LARGE: _TELEMETRY,
    _E.INVALID_REGISTRATION: _CONTROLLERS,
    _E.TRANSACTION_ABORTABLE: "the transaction is aborted and its records are sent again; see the brokers' log for why",
    _E.INVALID_RECORD_STATE: _SHARES,
    _E.FENCED_STATE_EPOCH: _SHARES,
    _E.INVALID_VOTER_KEY: _CONTROLLERS,
    _E.DUPLICATE_VOTER: _CONTROLLERS,
    _E.VOTER_NOT_FOUND: _CONTROLLERS,
    _E.INVALID_REGULAR_EXPRESSION: (
        "correct the pattern in group.topics; with the consumer protocol brokers match it, by the rules of RE2"
    ),
    _E.REBOOTSTRAP_REQUIRED: "see whether kafka.bootstrap_servers names this cluster: the client asks there anew",
    _E.STREAMS_INVALID_TOPOLOGY: _STREAMS,
    _E.STREAMS_INVALID_TOPOLOGY_EPOCH: _STREAMS,
    _E.STREAMS_TOPOLOGY_FENCED: _STREAMS,
}
"""The same request will not be answered otherwise."""

_FAULTS: Mapping[int, KafkaFault] = {
    int(code): KafkaFault(int(code), code.name, code in _RETRIABLE, advice)
    for code, advice in (*_RETRIABLE.items(), *_FINAL.items())
}
