"""What the fetcher does about an error that a broker answers for one partition: one table. Pure.

As `FetchCollector.java` (handleInitializeErrors) of Kafka 4.3, but where a comment says otherwise. Of a code that is
not here Kafka's own table decides: what it calls retriable is asked again, and anything else ends the grant as
`FailureKind.PARTITION`, for it would stay silent. So CORRUPT_MESSAGE, for which Java's consumer raises, is asked again:
another replica may have the batch whole, and a batch that came damaged the decoder finds by its checksum.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from kunicorn.ipc.messages import FailureKind
from kunicorn.kafka_errors import ErrorCode, fault


class Reaction(Enum):
    """What is done about an error."""

    #: Ask the same broker again after a wait.
    ASK_AGAIN = "ask again"
    #: Ask for the metadata, and then whoever leads the partition, after a wait.
    FIND_LEADER = "find the leader"
    #: The offset is not in this replica's log: a follower may lag, what the leader says counts (KIP-392).
    OUT_OF_RANGE = "out of range"
    #: The grant ends: this user may not read the topic.
    DENIED = "denied"
    #: The grant ends.
    END = "end"


REACTIONS: Mapping[int, Reaction] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: Reaction.OUT_OF_RANGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reaction.DENIED,
    # A leader that was elected a moment ago does not know its high watermark yet (KIP-207).
    ErrorCode.OFFSET_NOT_AVAILABLE: Reaction.ASK_AGAIN,
    # The broker has not heard of the epoch that we know.
    ErrorCode.UNKNOWN_LEADER_EPOCH: Reaction.ASK_AGAIN,
    ErrorCode.UNKNOWN_SERVER_ERROR: Reaction.ASK_AGAIN,
    ErrorCode.REQUEST_TIMED_OUT: Reaction.ASK_AGAIN,
    # Java's consumer raises here; the broker says so while it loads a segment from tiered storage (KIP-405).
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: Reaction.ASK_AGAIN,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: Reaction.FIND_LEADER,
    ErrorCode.LEADER_NOT_AVAILABLE: Reaction.FIND_LEADER,
    ErrorCode.REPLICA_NOT_AVAILABLE: Reaction.FIND_LEADER,
    ErrorCode.BROKER_NOT_AVAILABLE: Reaction.FIND_LEADER,
    ErrorCode.KAFKA_STORAGE_ERROR: Reaction.FIND_LEADER,
    ErrorCode.FENCED_LEADER_EPOCH: Reaction.FIND_LEADER,
    # A topic that was just created is not known to every broker; one that was deleted is the supervisor's to notice.
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.FIND_LEADER,
    ErrorCode.UNKNOWN_TOPIC_ID: Reaction.FIND_LEADER,
    ErrorCode.INCONSISTENT_TOPIC_ID: Reaction.FIND_LEADER,
}

KINDS: Mapping[Reaction, FailureKind] = {
    Reaction.OUT_OF_RANGE: FailureKind.OUT_OF_RANGE,
    Reaction.DENIED: FailureKind.DENIED,
    Reaction.END: FailureKind.PARTITION,
}
"""As what a grant ends, by the reaction."""


def reaction_to(error: int, *, from_leader: bool) -> Reaction:
    """Reaction to a partition's error. `from_leader`: the leader was asked, not another replica."""
    reaction = REACTIONS.get(error)
    if reaction is None:
        reaction = Reaction.ASK_AGAIN if fault(error).retriable else Reaction.END
    if not from_leader and reaction in (Reaction.OUT_OF_RANGE, Reaction.ASK_AGAIN):
        return Reaction.FIND_LEADER
    return reaction
