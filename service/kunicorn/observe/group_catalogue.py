"""The metrics of what the group has us do: where we are in each partition, our membership, and the commits."""

from __future__ import annotations

from kunicorn.observe.catalogue import Declared, Kind

C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_PARTITION = ("group", "topic", "partition")

# -- lag -----------------------------------------------------------------------------------------------------------

LAG = Declared(
    "kafka_consumer_records_lag", G, "Records between our position and the end of the partition.",
    "Rising for minutes: add workers while CPUs are free, else members, else partitions.", _PARTITION,
)  # fmt: skip
LAG_MAX = Declared(
    "kafka_consumer_records_lag_max", G, "The largest lag of all our partitions; absent while none is known.",
    "Far above the mean: a hot key or a halted partition.", ("group",),
)  # fmt: skip
LAG_SECONDS = Declared(
    "kafka_consumer_lag_seconds", G, "Age of the oldest unhandled record, in a retry topic since its time came; 0 "
    "without lag. Absent while unknown: for seconds where no worker has begun with the partition, for good where "
    "records carry no time.",
    "The figure to alert on: it means the same at every throughput.", _PARTITION,
)  # fmt: skip
POSITION = Declared(
    "kafka_consumer_position", G, "The next offset to handle.",
    "Flat while the log's end moves: the partition is stalled; /status says why.", _PARTITION,
)  # fmt: skip
COMMITTED = Declared(
    "kafka_consumer_committed_offset", G, "The committed offset: the next one to read after a restart.",
    "Flat while the position moves: commits fail; see kafka_consumer_commits_total.", _PARTITION,
)  # fmt: skip
LOG_END = Declared(
    "kafka_consumer_log_end_offset", G, "High watermark, or last stable offset with read_committed.",
    "Flat: nobody produces, or with read_committed a transaction hangs open.", _PARTITION,
)  # fmt: skip

# -- the group -----------------------------------------------------------------------------------------------------

ASSIGNED = Declared(
    "kafka_consumer_assigned_partitions", G, "Partitions assigned to this member.",
    "0 on some members: there are more members than partitions.", ("group",),
)  # fmt: skip
PARTITIONS = Declared(
    "kunicorn_partitions", G, "Assigned partitions by state.",
    "halted: a record cannot be handled; the log and /status name it, and nothing else of it is lost meanwhile. "
    "stuck: a worker outlives SIGKILL, which the kernel's log explains.", ("group", "state"),
)  # fmt: skip
GENERATION = Declared(
    "kafka_consumer_group_generation", G, "The generation we are a member of; absent outside of one.",
    "Rising steadily: a rebalance storm; compare the members' restarts and heartbeats.", ("group",),
)  # fmt: skip
GROUP_INFO = Declared(
    "kafka_consumer_group_info", G, "Always 1; its labels say who we are.",
    "Join it to other series by instance.", ("group", "protocol", "instance_id"),
)  # fmt: skip
GROUP_STATE = Declared(
    "kunicorn_group_state", G, "1 for the membership's current state.",
    "Long in anything but stable: the log tells each request's answer.", ("group", "state"),
)  # fmt: skip
HEARTBEATS = Declared(
    "kafka_consumer_heartbeats", C, "Heartbeats by result.",
    "Unanswered ones: the coordinator or the network; errors are Kafka's codes.", ("result",),
)  # fmt: skip
HEARTBEAT_SECONDS = Declared(
    "kafka_consumer_heartbeat_duration_seconds", H, "Answer time of heartbeats.",
    "Seconds: the coordinator is overloaded, or held up by a commit with a frozen replica.",
)  # fmt: skip
HEARTBEAT_AGE = Declared(
    "kafka_consumer_last_heartbeat_seconds", G, "Since the last heartbeat answered without an error.",
    "Above half the session timeout: partitions are about to be lost; check the brokers and this pod's CPU limit.",
    ("group",),
)  # fmt: skip
SESSION_TIMEOUT = Declared(
    "kunicorn_session_timeout_seconds", G, "The session timeout, to compare the last heartbeat with.",
    "Raise session_timeout_ms if pauses of the machine come near it.", ("group",),
)  # fmt: skip
LEASE_LEFT = Declared(
    "kunicorn_lease_left_seconds", G, "How long membership is certain; below 0 the workers pause.",
    "Below 0: no heartbeat got through for a session timeout; handling resumes with the next one.", ("group",),
)  # fmt: skip
REBALANCES = Declared(
    "kafka_consumer_rebalances", C, "Finished rebalances by result, and by what began them: join (this member's own), "
    "group (another one came or went), topics, evicted.",
    "Many by group: members come and go, look at their restarts. evicted: our heartbeats are late. Result lost: "
    "partitions went without a commit.",
    ("result", "reason"),
)  # fmt: skip
REBALANCE_SECONDS = Declared(
    "kafka_consumer_rebalance_duration_seconds", H, "From a rebalance's first sign to a settled assignment.",
    "As long as drain_timeout_ms: handlers are slow to finish; as max_poll_interval_ms: a member hangs.",
)  # fmt: skip
LAST_POLL = Declared(
    "kafka_consumer_last_poll_seconds", G, "Since the last turn of the worker that is longest without one; a "
    "handler call is part of a turn.",
    "Above the longest handler call: that worker is stuck; /status names it. It costs no membership.",
    ("group",),
)  # fmt: skip
REBALANCE_AGE = Declared(
    "kafka_consumer_last_rebalance_seconds", G, "Since the last rebalance ended; absent before the first.",
    "Always small: see kafka_consumer_rebalances_total.", ("group",),
)  # fmt: skip
PARTITIONS_LOST = Declared(
    "kafka_consumer_partitions_lost", C, "Partitions taken away without an orderly revoke.",
    "Each may repeat records on its next owner: we were fenced or evicted; look at heartbeats and pauses.",
)  # fmt: skip

# -- commits -------------------------------------------------------------------------------------------------------

COMMITS = Declared(
    "kafka_consumer_commits", C, "Offset commits by result.",
    "Failures that go on: after a restart everything since the committed offset is handled again.", ("result",),
)  # fmt: skip
COMMIT_SECONDS = Declared(
    "kafka_consumer_commit_duration_seconds", H, "Duration of offset commits.",
    "Seconds: a replica of __consumer_offsets is slow or frozen.",
)  # fmt: skip
COMMIT_AGE = Declared(
    "kunicorn_last_commit_seconds", G, "Since the last successful commit; absent before the first.",
    "Grows while nothing is handled, too; alarming only while the position moves.", ("group",),
)  # fmt: skip
OFFSET_RESETS = Declared(
    "kunicorn_offset_resets", C, "Positions that were not in the log, by reason.",
    "Records were deleted before they were handled (raise retention, or catch up), or the log was truncated.",
    ("reason",),
)  # fmt: skip
DRAIN_SECONDS = Declared(
    "kunicorn_drain_seconds", H, "From a revoke until the last record in hand was finished.",
    "Near drain_timeout_ms: make handler calls shorter, or allow more.",
)  # fmt: skip
