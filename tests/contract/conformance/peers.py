"""Scenarios of the tests of franz-go and aiokafka, and of Kafka's system tests (ducktape, and in Scala)."""

from __future__ import annotations

from tests.contract.conformance.scenario import Area, Scenario

S = Scenario
K: Area = "consumer protocol (KIP-848)"

FRANZ_GO = (
    S("TestClassicProtocolVoting", "coordinator", "of the assignors that all offer the most wished for is chosen"),
    S("TestClassicPendingSyncTimeout", "coordinator", "a member that joined and does not sync is removed"),
    S("TestStaticMemberClassicRejoin", "coordinator", "a static member that returns gets a new id and its old plan"),
    S("TestStaticMemberClassicFencing", "coordinator", "its old id is fenced"),
    S("TestStaticMemberClassicLeaveByInstance", "leave and close", "an instance can be removed by name"),
    S("Test848RebalanceTimeout", K, "who does not let go in time is fenced"),
    S("Test848PartitionHandoffNoDuplicates", K, "no partition has two owners while it moves"),
    S("Test848FetchOffsetsStaleEpochRetry", K, "offsets refused for a stale epoch are asked for again"),
    S("TestCommitFatalMemberErrorTriggersRejoin", "commit", "a commit that tells of a fencing leads to a join"),
    S("TestUnreleasedInstanceID*", K, "a slot that is still taken is waited for, within limits"),
    S("consumer_group_848_test.go", K, "members come and go, each record is handled once"),
    S("static_membership_test.go", "whole clients", "a restart within the session moves nothing"),
    S("NegativeEpochIgnored", K, "a negative epoch is not adopted"),
    S("DuplicatePartitionAssignmentNoRewind", K, "a partition named twice or again is taken up once"),
    S("OffsetFetchErrorStallsAssignment", "commit", "start offsets are asked for until they are known"),
    S("LeaveUnknownMemberIsSuccess", "leave and close", "who is not known any more has left"),
    S("OffsetFetchOmittedPartition", "commit", "a partition left out of the answer is asked for again"),
    S("ApiVersionsDowngradeLoopTerminates", "connections and look-ups", "no broker keeps us negotiating"),
    S("TestKIP447RequireStable", "commit", "offsets pending in a transaction are waited for"),
    S(
        "TestGroupETL",
        "whole clients",
        "faults of all kinds lose nothing and repeat what is promised",
    ),
)

AIOKAFKA = (
    S("test_failed_group_join", "join and sync", "each error of JoinGroup has its reaction"),
    S("test_failed_sync_group", "join and sync", "each error of SyncGroup has its reaction"),
    S("test_generation_change_during_rejoin_sync", "join and sync", "a plan for a generation that is over is dropped"),
    S("test_commit_failed_scenarios", "commit", "each error of OffsetCommit has its reaction"),
    S("test_coordinator_metadata_change_by_broker", "leader and metadata", "changed metadata leads to one join"),
    S("test_coordinator__do_heartbeat", "heartbeat", "each error of Heartbeat has its reaction"),
)

KAFKA_SYSTEM = (
    S("test_broker_rolling_bounce", "whole clients", "brokers restarted one by one cost no rebalance"),
    S("test_consumer_bounce", "whole clients", "consumers that restart repeat nothing that was committed"),
    S(
        "test_static_consumer_bounce_with_eager_assignment",
        "whole clients",
        "static ones move nothing",
    ),
    S(
        "test_static_consumer_persisted_after_rejoin",
        "whole clients",
        "a restarted static leader goes on leading",
    ),
    S("test_fencing_static_consumer", "whole clients", "the one of two that came first is fenced"),
    S("test_consumer_failure", "whole clients", "a killed consumer's partitions go on elsewhere"),
    S("test_broker_failure", "whole clients", "a killed coordinator costs no rebalance"),
    S("test_group_consumption", "whole clients", "every record is handled by somebody"),
    S("test_valid_assignment", "whole clients", "each assignor gives every partition to one member"),
    S("truncation_test.py", "whole clients", "after an unclean election consumption goes on where the logs part"),
    S("consumer_protocol_migration_test.py", "whole clients", "a live group changes its protocol and back"),
    S("ConsumerBounceTest", "whole clients", "a broker that comes back finds the same members"),
    S(
        "PlaintextConsumerPollTest",
        "whole clients",
        "a handler beyond its budget is interrupted",
    ),
)

SCENARIOS = (*FRANZ_GO, *AIOKAFKA, *KAFKA_SYSTEM)
