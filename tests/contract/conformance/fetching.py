"""Scenarios of other clients' tests of fetching, to which our own fetcher is put: those of Java's
`FetchRequestManagerTest`, `FetcherTest` and `FetchSessionHandlerTest`, of librdkafka and of franz-go."""

from __future__ import annotations

from tests.contract.conformance.scenario import Area, Scenario

S = Scenario
F: Area = "fetching"

_FETCHED = (
    S("testFetchNormal", F, "records are given out once, and the position moves behind them"),
    S("testFetchNonContinuousRecords", F, "offsets with gaps are given out as they are"),
    S("testFetchMaxPollRecords", F, "no more is given out than was asked for; the rest follows"),
    S("testFetchedRecordsAfterSeek", F, "what was fetched before a seek is not given out after it"),
    S("testFetchAfterPartitionWithFetchedRecordsIsUnassigned", F, "what was fetched of a partition goes with it"),
    S("testFetchOnPausedPartition", F, "a paused partition is not asked for"),
    S("testInFlightFetchOnPausedPartition", F, "what comes for a paused partition is not given out"),
    S("testFetchOnCompletedFetchesForPausedAndResumedPartitions", F, "a resumed partition goes on without a gap"),
    S("testFetchDiscardedAfterPausedPartitionResumedAndSeekedToNewOffset", F, "a seek amid a pause counts"),
    S("testFetchRequestWhenRecordTooLarge", F, "a record larger than a response is asked for with more room"),
    S("testHeaders", F, "headers come through, the same name twice too"),
    S("testLeaderEpochInConsumerRecord", F, "a record says in which leader epoch it was written"),
    S("testUpdatePositionOnEmptyBatch", F, "a batch that compaction has emptied moves the position"),
    S("testUpdatePositionWithLastRecordMissingFromBatch", F, "so does one whose last record is gone"),
    S("testFetchDuringCooperativeRebalance", "whole clients", "partitions that stay are fetched amid a rebalance"),
)

_TRANSACTIONS = (
    S("testFetcherIgnoresControlRecords", F, "markers are not given out"),
    S("testEmptyControlBatch", F, "a response of markers alone moves the position"),
    S("testReturnCommittedTransactions", F, "records of committed transactions are given out"),
    S("testReadCommittedWithCommittedAndAbortedTransactions", F, "those of aborted ones are not"),
    S("testMultipleAbortMarkers", F, "a producer's next transaction is judged by itself"),
    S("testReturnAbortedTransactionsInUncommittedMode", F, "read_uncommitted gives out all"),
    S("testReadCommittedWithCompactedTopic", F, "aborted records are left out of a compacted log"),
)

_BATCHES = (
    S("testParseCorruptedRecord", F, "records before a damaged batch are given out, then the partition halts"),
    S("testInvalidDefaultRecordBatch", F, "a wrong checksum is told with its place"),
    S("testCorruptMessageError", F, "CORRUPT_MESSAGE is asked again: it ends nothing that another replica may cure"),
)

_ERRORS = (
    S("testHandleFetchResponseError", F, "each error of a partition has its reaction"),
    S("testFetchOffsetOutOfRange", F, "an offset outside the log is told, and asked for no more"),
    S("testStaleOutOfRangeError", F, "an error about an offset from before a seek changes nothing"),
    S("testUnauthorizedTopic", F, "a topic that may not be read is told once"),
    S("testFetchDisconnected", F, "a lost response loses nothing, and is asked for again"),
    S("testFetchSkipsBlackedOutNodes", F, "a broker out of reach is asked again after a pause that grows"),
    S("testFetchRequestInternalError", F, "what a broker cannot answer now is asked for again"),
    S("testQuotaMetrics", F, "a throttled broker is left alone for as long as it says"),
    S("testTruncationDetected", F, "a truncated log is noticed before anything of it is given out"),
    S(
        "testWhenFetchResponseReturnsALeaderShipChangeErrorAndNewLeaderInformation",
        F,
        "a new leader named in the answer is asked at once (KIP-951)",
    ),
    S(
        "testWhenFetchResponseReturnsALeaderShipChangeErrorButNoNewLeaderInformation",
        F,
        "without one the metadata is asked for",
    ),
)

_REPLICAS = (
    S("testPreferredReadReplica", F, "the replica that the leader names is asked, for a while (KIP-392)"),
    S("testPreferredReadReplicaOffsetError", F, "where that one lags, the leader is asked"),
    S("testFetchErrorShouldClearPreferredReadReplica", F, "so it is after any other error of that one"),
    S("testFetchDisconnectedShouldClearPreferredReadReplica", F, "and when it is out of reach"),
)

_SESSIONS = (
    S("testConsumingViaIncrementalFetchRequests", F, "a request names what has changed (KIP-227)"),
    S("testFetchSessionIdError", F, "a session that the broker dropped is begun anew"),
    S("testEpochSetInFetchRequest", F, "a request says which leader epoch is known, and which was read last"),
    S("testFetchWithTopicId", F, "topics are asked for by their ids (KIP-516)"),
    S("testFetchWithNoTopicId", F, "and by their names of brokers without ids"),
    S("testFetchTopicIdUpgradeDowngrade", F, "ids that come or go with brokers' versions end nothing"),
    S("testFetchForgetTopicIdWhenUnassigned", F, "a partition that is asked for no more is named as forgotten"),
    S("testFetchForgetTopicIdWhenReplaced", F, "a topic created anew leaves the session under its old id"),
    S("testSessionless", F, "a broker without room for sessions is told everything each time"),
    S("testIncrementalPartitionRemoval", F, "what comes back before the next request is not forgotten"),
    S("testTopLevelErrorResetsMetadata", F, "after an error of the whole response a session is closed by the next"),
    S(
        "testFetcherCloseClosesFetchSessionsInBroker",
        F,
        "closing ends the sessions",
        "a worker ends at once and says nothing more to brokers; they drop the sessions that are asked for least",
    ),
)

JAVA = (*_FETCHED, *_TRANSACTIONS, *_BATCHES, *_ERRORS, *_REPLICAS, *_SESSIONS)

LIBRDKAFKA = (
    S("0017 compression", F, "each codec is unpacked"),
    S("0026 consume_pause", F, "pauses cost and repeat no record"),
    S("0036 partial_fetch", F, "what a response has cut off is asked for again"),
    S("0041 fetch_max_bytes", F, "small limits of bytes go on all the same"),
    S("0052 msg_timestamps", F, "times of producers and of brokers come through, and which it is"),
    S("0070 null_empty", F, "null and empty are not the same"),
    S("0073 headers", F, "headers without a value, and with an empty one"),
    S("0077 compaction", F, "a compacted log is read to its end"),
    S("0082 fetch_max_bytes", F, "memory is bounded, whatever brokers have"),
    S("0093 holb", F, "a partition that nobody takes from holds up no other"),
    S("0098 consumer-txn", F, "transactions of several producers, committed and aborted"),
    S("0104 fetch_from_follower_mock", F, "the closest replica is fetched from, and the leader again"),
    S("0107 topic_recreate", F, "a topic created anew is noticed, and not glued to the old one"),
    S("0122 buffer_cleaning_after_rebalance", F, "what was fetched before a rebalance is not given out after it"),
    S("0127 fetch_queue_backoff", F, "a full queue stops fetching, and room starts it at once"),
    S("0129 fetch_aborted_msgs", F, "a log of aborted records alone moves the position"),
    S("0142 reauthentication", F, "a log-in is renewed between two fetches"),
)

FRANZ_GO = (
    S("TestKip951MoveAfterPurgeReAddNoPanic", F, "a partition that was let go and taken again follows its leader"),
    S("TestPauseIssueOct2023", F, "a pause amid a fetch gives nothing out twice"),
    S("TestDecompressBombBounded", F, "a batch that unpacks to too much is refused before it is unpacked"),
)
