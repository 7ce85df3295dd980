"""Catalogue of metrics: name, type, labels, meaning, and what to do about it; those of the service, and those that the
driver of `kunicorn pipeline` serves while a job runs. docs/metrics.md and the dashboard are made of it.

Names that the field knows are used as they are: those of Kafka's consumer (`kafka_consumer_…`) and OpenTelemetry's
messaging conventions (`messaging_…`). `kafka_consumergroup_lag` is left to the exporters that own it: beside one of
them, a second source would double every sum.

Labels `topic` and `partition` together appear only on *partition series*: those vanish when the partition leaves this
member, and are left out altogether above `[http] partition_metrics_max`. No label ever holds a key, an offset or an
error's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus's types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """One metric. A counter's name is without its `_total`; durations are seconds.

    Counters and histograms are made of these rows alone (`observe.metrics.Metrics`): for a new one, add a row, and
    count where it happens. Workers count by the same rows (`worker.stats.Counters`).
    """

    name: str
    kind: Kind
    meaning: str
    remedy: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Of a histogram: upper bounds in seconds."""
    members_only: bool = False
    """Exposed only by a member of a group: elsewhere it would stand at 0 and look like a fault."""
    counted_elsewhere: bool = False
    """Not counted by the service, but shown by it."""


_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Requests to a broker."""
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
"""What waits for handlers and for other members."""
CONVENTIONAL = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The buckets that OpenTelemetry's messaging conventions ask for."""
_CALLS = (0.000_01, 0.000_1, 0.001, 0.002_5, *CONVENTIONAL, 30.0, 60.0, 300.0)
"""From a trivial handler's microseconds to one that should have been split up."""

C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# -- records -------------------------------------------------------------------------------------------------------

CONSUMED = Declared(
    "messaging_client_consumed_messages", C, "Records handled to the end.",
    "Flat while lag grows: look at in-flight records, halted partitions and worker restarts.", ("topic",),
)  # fmt: skip
PROCESS_SECONDS = Declared(
    "messaging_process_duration_seconds", H, "Duration of handler calls, decoding included, by the exception of those "
    "that failed (empty: none; Undecodable, NotDecodableYet, Expired and FilterFailed are not the handler's); a batch "
    "is one call.",
    "Rising: the handler's own dependencies are slow; more workers help only while there are CPUs and partitions.",
    ("topic", "error_type"),
    buckets=_CALLS,
)  # fmt: skip
FAILURES = Declared(
    "kunicorn_handler_failures", C, "Handler calls that failed, repeated ones included: the handler raised, or "
    "said an outcome other than Done and Wait. Those, too, to which it did not come: the record could not be decoded "
    "(or not yet), max_age_ms made a dead letter of it, or a filter failed.",
    "The log has the exceptions, with topic, partition and offset.", ("topic",),
)  # fmt: skip
RETRIES = Declared(
    "kunicorn_handler_retries", C, "Handler calls that failed and were repeated; those, too, whose record could not be "
    "decoded yet.",
    "Many retries and few halts: something behind the handler is flaky, and pays in lag.", ("topic",),
)  # fmt: skip
HOOK_FAILURES = Declared(
    "kunicorn_hook_failures", C, "Hooks of handlers that raised: on_assigned, on_revoked, on_lost, load_offsets, …",
    "The log has the exceptions. Partitions that on_assigned or load_offsets did not take on wait for it, and /status "
    "says so; what on_revoked could not write is for the handler's author to find.", ("hook",),
)  # fmt: skip
HANDLER_TIMEOUTS = Declared(
    "kunicorn_handler_timeouts", C, "Handler calls that took longer than handler_timeout_ms.",
    "The log names each record and the rung that ended it; a worker that had to be aborted has dumped its stacks.",
    ("topic",),
)  # fmt: skip
DEAD_LETTERS = Declared(
    "kunicorn_dead_letters", C, "Records that the dead-letter topic acknowledged, by what led there: handler (it said "
    "so itself), attempts (none is left), retry_timeout, handler_timeout, exit (it raised SystemExit), undecodable, "
    "poison (workers died with it in hand), expired (older than max_age_ms).",
    "Rising: `kunicorn dlq list` counts them by error, `kunicorn dlq replay` sends them back.", ("topic", "reason"),
)  # fmt: skip
RETRY_TOPICS = Declared(
    "kunicorn_retry_topic_records", C, "Records that a retry topic acknowledged, by the topic they came from and the "
    "delay of the one they went to.",
    "Rising with the longest delay: what is behind the handler has been away for as long; dead letters follow.",
    ("topic", "delay"),
)  # fmt: skip
SKIPPED = Declared(
    "kunicorn_skipped_records", C, "Records that were passed over, as on_failure or the handler says.",
    "The log names each; they are not handled.", ("topic",),
)  # fmt: skip
WAITS = Declared(
    "kunicorn_handler_waits", C, "Times that the handler had its record (or batch) wait, by kunicorn.Wait; no try "
    "of it has failed.",
    "Fast, while records handled are few: what the handler calls refuses more than it takes; set handler.rate_limit "
    "below its limit.", ("topic",),
)  # fmt: skip
FILTERED = Declared(
    "kunicorn_filtered_records", C, "Records that one of handler.filters has kept from the handler, or max_age_ms "
    "(filter=\"max_age_ms\"); they count among the records handled, too.",
    "More than you expect: a producer has changed its headers or keys, or the filter is wrong. Rising with "
    "filter=\"max_age_ms\": the group is further behind than records live; see its lag.", ("topic", "filter"),
)  # fmt: skip
WAITING = Declared(
    "kunicorn_partitions_waiting", G, "Partitions that wait: a failed record for its next try (retry), one for as long "
    "as its handler says (wait), records for their handler's circuit breaker (circuit_breaker) or rate limit "
    "(rate_limit), a failed one for the dead-letter topic (dead_letter) or a retry topic (retry_topic) to take it; a "
    "record for its time, in a retry topic or by delay_ms (delay); handled records for their outputs to be "
    "acknowledged, ten seconds "
    "and more (delivery).",
    "dead_letter, retry_topic or delivery for minutes: that topic takes nothing; /status says why. Only with delivery "
    "all partitions of the worker wait. delay and wait are as they should be, and rate_limit unless lag grows: raise "
    "handler.rate_limit then, if the other side bears it. Of circuit_breaker see kunicorn_circuit_breaker_open.",
    ("group", "waits_for"),
)  # fmt: skip
CIRCUITS = Declared(
    "kunicorn_circuit_breaker_open", G, "Partitions whose handler is not called, or only with probes: the circuit "
    "breaker of their worker is not closed.",
    "What the handler calls is away; the log and /status have the exception. Lag grows meanwhile, so lag alerts wait "
    "for as long.", ("group", "topic"),
)  # fmt: skip
CIRCUIT_OPENED = Declared(
    "kunicorn_circuit_breaker_opened", C, "Times that a worker's circuit breaker opened.",
    "Again and again: what the handler calls comes and goes. Look there; a larger open_ms leaves it in "
    "peace for longer.",
    ("handler",),
)  # fmt: skip
RATE = Declared(
    "kunicorn_rate_limit_per_second", G, "What this pod may begin a second of a handler's rate limit: the rate, "
    "divided by the group's members.",
    "Less than the rate divided by the pods: others are in the group; `kunicorn offsets show` has them.",
    ("group", "handler"),
)  # fmt: skip
INFLIGHT = Declared(
    "kunicorn_inflight_records", G, "Records that calls of the handler have in hand; all of a batch.",
    "At workers × concurrency while lag grows: raise handler.concurrency, or add workers. 0 while it grows: nothing is "
    "being handled; look at partitions by state.", ("group",),
)  # fmt: skip
INFLIGHT_AGE = Declared(
    "kunicorn_inflight_oldest_seconds", G, "Age of the longest handler call now; absent with nothing in hand.",
    "Near drain_timeout_ms: such a record would be handled twice if its partition moved. /status names it.", ("group",),
)  # fmt: skip

SENT = Declared(
    "messaging_client_sent_messages", C, "Records sent for handlers. Without error_type: acknowledged; in "
    "transactions, committed. With it: refused, by the brokers' error; such a record is sent again, or has failed. "
    "Topics beyond the first thousand are told as one, _OTHER.",
    "Flat while records are handled: the log says which broker does not acknowledge, or the handler returns nothing. "
    "With error_type: the log has the topic, the brokers' reason and what to do.",
    ("topic", "error_type"),
)  # fmt: skip
OPERATION_SECONDS = Declared(
    "messaging_client_operation_duration_seconds", H, "Duration of a client's operations: send (all that is sent "
    "together, until it is acknowledged) and commit, by the error of those that failed.",
    "send of seconds: a broker's replicas are slow, or acks wait for one that is away. commit: see "
    "kafka_consumer_commit_duration_seconds.",
    ("operation", "error_type"),
    buckets=CONVENTIONAL,
)  # fmt: skip
UNENCODED = Declared(
    "kunicorn_unencoded_outputs", C, "Outputs that could not be encoded as [producing] says, by why: content (the "
    "object does not fit its schema), schema (the registry does not have ours, or refuses it), registry (it does not "
    "answer).",
    "The log has the topic, the field and the reason. content: correct the handler, or the schema. schema: the "
    "message has both schemas; register ours, or write by the registry's. registry: partitions wait until it "
    "answers.",
    ("topic", "why"),
)  # fmt: skip
TRANSACTIONS = Declared(
    "kunicorn_transactions", C, "Transactions of the workers by result: committed, aborted.",
    "Many aborted ones: rebalances, or brokers that end them (transaction_timeout_ms); each is sent again.",
    ("result",),
)  # fmt: skip
TRANSACTION_SECONDS = Declared(
    "kunicorn_transaction_seconds", H, "From a complete batch to its committed transaction.",
    "Above 0.1: the brokers write markers slowly; raise transaction_max_records and transaction_max_ms.",
    buckets=_FAST,
)  # fmt: skip

# -- processes -----------------------------------------------------------------------------------------------------

WORKERS = Declared(
    "kunicorn_workers", G, "Places for workers by state: starting, ready, draining, backing-off, idle.",
    "backing-off: workers die as soon as they start, or none can be started; the log says why. "
    "idle: fewer partitions than workers.",
    ("state",),
)  # fmt: skip
WORKER_UP = Declared(
    "kunicorn_worker_up", G, "1 while the worker handles records or could.",
    "0 for minutes: it fails to start; the log says at what.", ("worker",),
)  # fmt: skip
WORKER_RSS = Declared(
    "kunicorn_worker_rss_bytes", G, "The worker's resident memory.",
    "Rising for ever: the handler leaks. Above plan: lower memory_per_worker_mb, which sizes fetch buffers.",
    ("worker",),
)  # fmt: skip
WORKER_PARTITIONS = Declared(
    "kunicorn_worker_partitions", G, "Partitions the worker holds.",
    "Uneven loads show in kunicorn_worker_load and lag, not here: partitions differ.", ("worker",),
)  # fmt: skip
WORKER_LOAD = Declared(
    "kunicorn_worker_load", G, "What the worker's partitions take of its time: 1 is all it has; a lag counts as what "
    "it takes to catch up in ten seconds.",
    "Above 1 for minutes at every worker: more workers while CPUs are free, else members. At one alone: one partition "
    "has that much, which only another key, or more partitions, divides.", ("worker",),
)  # fmt: skip
PARTITION_MOVES = Declared(
    "kunicorn_partition_moves", C, "Partitions that went from one worker to another inside the pool, by reason: count "
    "(workers came or went), load (the other had less to do), crowded (another one took all of its worker).",
    "load going on for hours: what is busy changes faster than partitions should follow; raise "
    "[workers] sharing_interval_ms or sharing_gap_percent.", ("reason",),
)  # fmt: skip
WORKERS_PAUSED = Declared(
    "kunicorn_workers_paused", G, "Workers that pause because membership is not certain.",
    "Not 0: see kunicorn_lease_left_seconds.",
)  # fmt: skip
WORKER_RESTARTS = Declared(
    "kunicorn_worker_restarts", C, "Workers that died and were replaced, by what ended them.",
    "SIGKILL: out of memory, most likely. SIGSEGV: an extension module. No rebalance follows from either.", ("reason",),
)  # fmt: skip
WORKER_RECYCLES = Declared(
    "kunicorn_worker_recycles", C,
    "Workers replaced in order: records, age, rss, reload, certificate, silent (its client), request (HTTP).",
    "rss every few minutes: the handler leaks fast, or [workers] max_rss_mb is near what it needs.", ("reason",),
)  # fmt: skip
RELOADS = Declared(
    "kunicorn_reloads", C, "Reloads of settings and handler (SIGHUP): completed, failed, incomplete.",
    "failed: nothing was changed; incomplete: two versions of the handler run. /status and the log say why.",
    ("result",),
)  # fmt: skip
TEMPLATE_RESTARTS = Declared(
    "kunicorn_template_restarts", C, "Template processes that died and were replaced.",
    "Living workers go on; importing the handler may need more memory than there is.",
)  # fmt: skip
REPORTS_REFUSED = Declared(
    "kunicorn_reports_refused", C, "Workers' reports that came too late to count, by reason.",
    "A few around worker deaths are normal: this is the guard that keeps old offsets out of commits.", ("reason",),
)  # fmt: skip
LOGS_DROPPED = Declared(
    "kunicorn_log_lines_dropped", C, "Log lines that nobody was there to read.",
    "Whoever reads standard output is too slow; raise [log] level.",
    counted_elsewhere=True,
)  # fmt: skip

OTLP_EXPORTS = Declared(
    "kunicorn_otlp_exports", C, "Exports of these metrics to an OpenTelemetry collector, with [otlp]: ok, failed.",
    "failed: the log says why; a later export has the counts that an earlier one has not brought.", ("result",),
)  # fmt: skip
HTTP_ACTIONS = Declared(
    "kunicorn_http_actions", C,
    "Actions asked for over HTTP: done, refused (not possible now), denied (no right), failed (see the log).",
    "denied: somebody tries without the token of [http]; the port should not be open to everybody.",
    ("action", "result"),
)  # fmt: skip

# -- the workers' Kafka clients, with [kafka] statistics_interval_ms ---------------------------------------------------

CLIENT_RTT = Declared(
    "kunicorn_client_broker_rtt_seconds", G, "Mean time in which a broker answers, by the slowest worker.",
    "Far above the others': that broker, or the way to it. Fetches wait up to fetch.wait.max.ms for new records.",
    ("broker",),
)  # fmt: skip
CLIENT_RECEIVED = Declared(
    "kunicorn_client_received_bytes", C, "Bytes that the workers have received from a broker.",
    "One broker with most of it: its partitions are the busy ones; client_rack may bring replicas nearby.", ("broker",),
    counted_elsewhere=True,
)  # fmt: skip
CLIENT_TIMEOUTS = Declared(
    "kunicorn_client_request_timeouts", C, "Requests of the workers that a broker did not answer in time.",
    "Rising: that broker is overloaded, or packets are lost on the way.", ("broker",),
    counted_elsewhere=True,
)  # fmt: skip
CLIENT_DISCONNECTS = Declared(
    "kunicorn_client_disconnects", C, "Connections of the workers to a broker that ended.",
    "A few an hour are idle ones (connections.max.idle.ms); many: the network, a proxy, or a broker that restarts.",
    ("broker",),
    counted_elsewhere=True,
)  # fmt: skip
CLIENT_QUEUE = Declared(
    "kunicorn_client_fetch_queue_records", G, "Records that the workers have fetched and not yet handled.",
    "0 with lag: fetching is the bottleneck, look at the brokers. Full: the handler is.",
)  # fmt: skip
CLIENT_QUEUE_BYTES = Declared(
    "kunicorn_client_fetch_queue_bytes", G, "Bytes of those records.",
    "At the limit that memory_per_worker_mb gives while workers idle: raise it.",
)  # fmt: skip

# -- the service ---------------------------------------------------------------------------------------------------

BUILD_INFO = Declared("kunicorn_build_info", G, "Always 1; says the version.", "Nothing to do.", ("version",))
LIVE = Declared("kunicorn_live", G, "What /livez says: 1 or 0.", "0: a restart is due; /livez says why.")
READY = Declared("kunicorn_ready", G, "What /readyz says: 1 or 0.", "0: /readyz says why.")
BROKERS_REACHED = Declared(
    "kunicorn_brokers_reached", G, "1 while a broker answers.", "0: network, DNS, bootstrap_servers; see /status."
)
LOOP_LAG = Declared(
    "kunicorn_event_loop_lag_seconds", G, "How late the supervisor's event loop ran lately, at worst.",
    "Above 0.5: too little CPU for the supervisor; lower [workers] count or raise the limit.",
)  # fmt: skip
UPTIME = Declared("kunicorn_uptime_seconds", G, "Since the supervisor's start.", "Small again and again: restarts.")


CERTIFICATE_ENDS = Declared(
    "kunicorn_tls_certificate_expiry_timestamp_seconds", G, "When our own certificate ends, in seconds since 1970: "
    "kafka, at kafka.ssl_certificate_location; http, at http.tls_certificate_file; absent without one.",
    "Less than a week away: it is not being renewed; see what should write its file.", ("certificate",),
)  # fmt: skip

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
    "kafka_consumer_lag_seconds", G, "Age of the oldest unhandled record, in a retry topic and with delay_ms since its "
    "time came; 0 "
    "without lag. Absent while unknown: for seconds where no worker has begun with the partition, for good where "
    "records carry no time.",
    "The figure to alert on: it means the same at every throughput.", _PARTITION,
)  # fmt: skip
LAG_SECONDS_MAX = Declared(
    "kafka_consumer_max_lag_seconds", G, "The largest kafka_consumer_lag_seconds of the topic's partitions on this "
    "member, however many they are. Absent while none is known.",
    "The alerts ask for it: it stays where the partitions' own series are left out.", ("group", "topic"),
)  # fmt: skip
POSITION = Declared(
    "kafka_consumer_position", G, "The next offset to handle.",
    "Flat while the log's end moves: the partition is stalled; /status says why.", _PARTITION,
)  # fmt: skip
COMMITTED = Declared(
    "kafka_consumer_committed_offset", G, "The committed offset: the next one to read after a restart; absent where "
    "the handler keeps the offsets.",
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
    members_only=True,
)  # fmt: skip
HEARTBEAT_SECONDS = Declared(
    "kafka_consumer_heartbeat_duration_seconds", H, "Answer time of heartbeats.",
    "Seconds: the coordinator is overloaded, or held up by a commit with a frozen replica.",
    buckets=_FAST, members_only=True,
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
    "partitions went without a commit. Result failed: the coordinator did not take the plan, the log says why.",
    ("result", "reason"),
    members_only=True,
)  # fmt: skip
REBALANCE_SECONDS = Declared(
    "kafka_consumer_rebalance_duration_seconds", H, "From a rebalance's first sign to a settled assignment.",
    "As long as drain_timeout_ms: handlers are slow to finish; as max_poll_interval_ms: a member hangs.",
    buckets=_SLOW, members_only=True,
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
    members_only=True,
)  # fmt: skip

# -- commits -------------------------------------------------------------------------------------------------------

COMMITS = Declared(
    "kafka_consumer_commits", C, "Offset commits by result.",
    "Failures that go on: after a restart everything since the committed offset is handled again.", ("result",),
    members_only=True,
)  # fmt: skip
COMMIT_SECONDS = Declared(
    "kafka_consumer_commit_duration_seconds", H, "Duration of offset commits.",
    "Seconds: a replica of __consumer_offsets is slow or frozen.",
    buckets=_FAST, members_only=True,
)  # fmt: skip
COMMIT_AGE = Declared(
    "kunicorn_last_commit_seconds", G, "Since the last successful commit; absent before the first, with transactions, "
    "and where all handlers keep their offsets.",
    "Grows while nothing is handled, too; alarming only while kunicorn_uncommitted_partitions is above 0.", ("group",),
)  # fmt: skip
UNCOMMITTED = Declared(
    "kunicorn_uncommitted_partitions", G, "Partitions of which more is consumed than committed; absent with "
    "transactions, and where all handlers keep their offsets.",
    "Some for a second at a time are normal. Always some, while no commit succeeds: see kafka_consumer_commits_total.",
    ("group",),
)  # fmt: skip
OFFSET_RESETS = Declared(
    "kunicorn_offset_resets", C, "Positions that were not in the log, by reason.",
    "Records were deleted before they were handled (raise retention, or catch up), or the log was truncated.",
    ("reason",),
)  # fmt: skip
FETCHED_ANEW = Declared(
    "kunicorn_partitions_fetched_anew", C, "Partitions taken from a worker's client and given back to it, or to a "
    "successor's, as nothing of them came for a minute although the brokers had records.",
    "Now and then: the client had lost them, nothing need be done. Going on: their leaders do not answer workers (see "
    "the log, and the network between).",
)  # fmt: skip
DRAIN_SECONDS = Declared(
    "kunicorn_drain_seconds", H, "From a revoke until the last record in hand was finished.",
    "Near drain_timeout_ms: make handler calls shorter, or allow more.",
    buckets=_SLOW,
)  # fmt: skip


def every() -> list[Declared]:
    """Metrics of the service, in the order of docs/metrics.md."""
    return list(_SERVED)


_SERVED = [value for value in list(globals().values()) if isinstance(value, Declared)]
"""The declarations above; those below are of jobs."""


RECORDS = Declared(
    "kunicorn_pipeline_records", Kind.GAUGE, "Records that count, by what became of them: records (done), skipped, "
    "dead_letters; and filtered, those of the done that filters passed by.",
    "dead_letters rising: the run's outcome table has each with its error; `kunicorn dlq list` counts those sent.",
    ("job", "outcome"),
)  # fmt: skip
LEFT = Declared(
    "kunicorn_pipeline_offsets_left", Kind.GAUGE, "Offsets that are still to be handled, those underway by "
    "what their tasks tell; absent for stream, which has no end.",
    "Flat: Spark has no executors, or the handler waits between tries. Where the driver sees no file of its executors "
    "a task counts when it ends, so that flat for less than pipeline.range_seconds says nothing.",
    ("job",),
)  # fmt: skip
SAVES = Declared(
    "kunicorn_pipeline_saves", Kind.GAUGE, "How often progress was saved; of a stream its micro-batches.",
    "Flat: no range has ended, or Spark tries its tasks again; Spark's UI tells which.", ("job",),
)  # fmt: skip
TASKS = Declared(
    "kunicorn_pipeline_tasks", Kind.GAUGE, "Tasks underway by state: done, running, failed.",
    "failed above 0: Spark tries them again, four times each; its UI has the reason.", ("job", "state"),
)  # fmt: skip


def every_of_jobs() -> list[Declared]:
    """Metrics of a job's driver, in the order of docs/metrics.md."""
    return [value for value in globals().values() if isinstance(value, Declared) and value not in _SERVED]
