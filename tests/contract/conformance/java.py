"""Scenarios of Kafka's own tests: of its Java consumer, and of the broker's group coordinator."""

from __future__ import annotations

from itertools import product

from tests.contract.conformance.scenario import Area, Scenario

S = Scenario

_COMMIT_ERRORS = {
    "IllegalGeneration": "ILLEGAL_GENERATION",
    "UnknownMember": "UNKNOWN_MEMBER_ID",
    "FencedInstance": "FENCED_INSTANCE_ID",
}
_COMMITTED_AS = {
    "New": "of a generation that has been followed by another changes nothing",
    "Reset": "that comes when the generation has been reset already changes nothing more",
    "Rebalancing": "while the member joins the next generation leaves that join alone",
}

JOIN = (
    S("testJoinGroupRequestWithMemberIdRequired", "join and sync", "the id given is used at once, without a callback"),
    S("testJoinGroupRequestWithFencedInstanceIdException", "join and sync", "a fenced instance is refused for good"),
    S("testJoinGroupRequestWithRebalanceInProgress", "join and sync", "the join is sent again with the same id"),
    S("testJoinGroupProtocolTypeAndName", "join and sync", "answers about another type or assignor are refused"),
    S("testRetainMemberIdAfterJoinGroupDisconnect", "join and sync", "a lost JoinGroup is repeated with the same id"),
    S("testRetainMemberIdAfterSyncGroupDisconnect", "join and sync", "a lost SyncGroup is sent again under that id"),
    S("testJoinGroupUnknownMemberResponseWithOldGeneration", "join and sync", "an outdated refusal resets nothing"),
    S("testSyncGroupUnknownMemberResponseWithOldGeneration", "join and sync", "an outdated refusal resets nothing"),
    S("testSyncGroupIllegalGenerationResponseWithOldGeneration", "join and sync", "an outdated refusal resets nothing"),
    S("testJoinGroupRequestMaxTimeout", "join and sync", "a parked join outlasts the rebalance timeout"),
    S("testRejoinReason", "join and sync", "each join says why, in 255 characters at most (KIP-800)"),
    S(
        "testCoordinatorDiscoveryExponentialBackoff",
        "join and sync",
        "failing look-ups come further and further apart",
    ),
)

HEARTBEAT = (
    S("testHeartbeatSentWhenCompletingRebalance", "heartbeat", "heartbeats go out between JoinGroup and SyncGroup"),
    S("testHeartbeatIllegalGenerationResponseWithOldGeneration", "heartbeat", "an outdated answer resets nothing"),
    S("testHeartbeatUnknownMemberResponseWithOldGeneration", "heartbeat", "an outdated answer resets nothing"),
    S("testHeartbeatInstanceFencedResponseWithOldGeneration", "heartbeat", "an outdated answer is not fatal"),
    S("testHeartbeatRebalanceInProgressResponseDuringRebalancing", "heartbeat", "said again, it disturbs no drain"),
    S("HeartbeatTest", "heartbeat", "intervals, the session's end and retries are counted from the time of sending"),
)

LEAVE = (
    S(
        "testLeaveGroupSentWithGroupInstanceIdUnSet",
        "leave and close",
        "a static member goes without it",
    ),
    S(
        "testHandleNormalLeaveGroupResponseAndTruncatedLeaveReason",
        "leave and close",
        "a long reason is cut",
    ),
    S("testPendingMemberShouldLeaveGroup", "leave and close", "an id that never joined is handed back"),
    S("testCloseCoordinatorNotKnownWithCommits", "leave and close", "without a coordinator the stop ends in time"),
    S("testCloseNoResponseForLeaveGroup", "leave and close", "LeaveGroup is tried once"),
)

LEADER = (
    S("testOnLeaderElectedShouldSkipAssignment", "leader and metadata", "a returning leader sends no plan (KIP-814)"),
    S("testStaticLeaderRejoinsGroupAndCanTriggersRebalance", "leader and metadata", "it can still ask for a new plan"),
    S(
        "testStaticLeaderRejoinsGroupAndCanDetectMetadataChangesForOtherMembers",
        "leader and metadata",
        "it watches topics that only others subscribe to",
    ),
    S(
        "testMetadataRefreshDuringRebalance",
        "leader and metadata",
        "a change amid a rebalance is not missed",
    ),
    S(
        "testOutdatedCoordinatorAssignment",
        "leader and metadata",
        "an outdated plan is followed by a join",
    ),
    S("testRackAwareConsumerRebalance*", "leader and metadata", "replicas in other racks ask for a new plan (KIP-881)"),
    S("testRebalanceAfterTopicUnavailable*", "leader and metadata", "topics that go and come back are noticed"),
)

COMMIT = (
    *(
        S(f"testCommitOffset{error}With{when}Generation", "commit", f"{_COMMIT_ERRORS[error]} {_COMMITTED_AS[when]}")
        for error, when in product(_COMMIT_ERRORS, _COMMITTED_AS)
    ),
    S("testCommitOffsetRebalanceInProgress", "commit", "a heartbeat asks for it; the generation is kept"),
    S(
        "testOnJoinPrepareWithOffsetCommitShouldKeepJoinAfterRebalanceTimeout",
        "commit",
        "a commit that cannot be had does not hold up the join for ever",
    ),
    S("testRefreshOffsetWithPendingTransactions", "commit", "an offset that is not stable yet is waited for (KIP-447)"),
    S(
        "testManyInFlightAsyncCommitsWithCoordinatorDisconnect",
        "commit",
        "a coordinator that hangs up is looked up once, however many requests it leaves unanswered",
    ),
)

LOST = (
    S(
        "shouldLoseAllOwnedPartitionsBeforeRejoiningAfterDroppingOutOfTheGroup",
        "lost partitions",
        "a member that is not known any more loses everything before it joins",
    ),
    S(
        "shouldLoseAllOwnedPartitionsBeforeRejoiningAfterResettingGenerationId",
        "lost partitions",
        "a member whose generation is over loses everything before it joins",
    ),
)

K: Area = "consumer protocol (KIP-848)"
CONSUMER = (
    S("testDelayedReconciliationResultDiscarded*", K, "a drain that ends after a fencing acknowledges nothing"),
    S("testSameAssignmentReconciledAgainWhenFenced", K, "the same partitions are taken up again after a fencing"),
    S("testNewAssignmentReplacesPreviousOneWaitingOnMetadata", K, "what had no name yet is dropped if taken away"),
    S(
        "testReconcilePartitionsRevokedWithFailedAutoCommitCompletesRevocationAnyway",
        K,
        "a commit that fails does not keep partitions from others",
    ),
    S("testFencingWhenStateIs*", K, "fenced in any state, the member loses everything and joins again"),
    S("testConsumerAcksReconciledAssignmentAfterAckLost", K, "an acknowledgement that was lost is repeated"),
    S(
        "testValidateConsumerGroupHeartbeatRequest*",
        K,
        "all is said to join and after trouble, else changes",
    ),
    S(
        "testFencedMemberStopHeartbeatUntilItReleasesAssignmentToRejoin",
        K,
        "what a worker still has in hand is not handed out again before it lets go, though the member joins at once",
    ),
    S(
        "testAutoCommitSyncBeforeRevocationRetriesOnRetriableAndStaleEpoch",
        K,
        "the commit of a drain is repeated with the newest epoch",
    ),
)

OTHERS = (
    S("RangeAssignorTest", "assignors and subscriptions", "range plans what Kafka's plans"),
    S("RoundRobinAssignorTest", "assignors and subscriptions", "roundrobin plans what Kafka's plans"),
    S("AbstractStickyAssignorTest", "assignors and subscriptions", "sticky is as even as Kafka's and moves no more"),
    S(
        "CooperativeStickyAssignorTest",
        "assignors and subscriptions",
        "nothing moves before it was let go of",
    ),
    S("ConsumerProtocolTest", "assignors and subscriptions", "bytes of newer versions are read as far as known"),
    S("ConsumerNetworkThreadTest", "connections and look-ups", "nothing that takes long holds up a heartbeat"),
    S(
        "CoordinatorRequestManagerTest",
        "connections and look-ups",
        "one look-up at a time, a refusal is told",
    ),
    S(
        "NetworkClientDelegateTest",
        "connections and look-ups",
        "time-outs and broken links end requests",
    ),
    S("testHeartbeatDuringPreparingRebalance", "coordinator", "heartbeats hear of the rebalance"),
    S("testHeartbeatDuringCompletingRebalance", "coordinator", "heartbeats are taken while the plan is awaited"),
    S("testRebalanceTimesOutWhenSyncRequestIsNotReceived*", "coordinator", "who does not sync in time is removed"),
    S("testStaticMember*", "coordinator", "static members return without a rebalance"),
    S("testReplaceStaticMember*", "coordinator", "the process before is fenced"),
    S("testConsumerGroupMemberEpochValidation", "coordinator", "wrong epochs are fenced, a lost answer's is forgiven"),
)

SCENARIOS = (*JOIN, *HEARTBEAT, *LEAVE, *LEADER, *COMMIT, *LOST, *CONSUMER, *OTHERS)
