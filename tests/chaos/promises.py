"""What is promised about delivery, which settings govern it and which metrics show it: a table of docs/delivery.md."""

from __future__ import annotations

from typing import NamedTuple


class Promise(NamedTuple):
    """One row. Settings are `section.name`, none where nothing can change it; metrics as `/metrics` has them."""

    what: str
    settings: tuple[str, ...]
    metrics: tuple[str, ...]


PROMISES = (
    Promise(
        "No record is lost: a committed offset never passes an unfinished record.",
        ("group.auto_offset_reset",),
        ("kafka_consumer_committed_offset", "kunicorn_offset_resets_total"),
    ),
    Promise(
        "Nothing is handled twice when members join, leave or are restarted one by one, as long as records in hand "
        "finish within the drain budget. A rebalance waits for a coordinator that is away, up to three quarters of "
        "`group.max_poll_interval_ms`; a member that stops, for `group.commit_timeout_ms`.",
        ("group.drain_timeout_ms", "group.commit_timeout_ms", "group.max_poll_interval_ms"),
        ("kunicorn_drain_seconds", "kafka_consumer_rebalances_total"),
    ),
    Promise(
        "A killed worker causes no rebalance. The records (or the batch) that it had in hand are handled again.",
        ("handler.mode", "handler.batch_max_records", "handler.concurrency", "workers.max_crashes"),
        ("kunicorn_worker_restarts_total",),
    ),
    Promise(
        "If a member is killed, or frozen for longer than its session, at most what it handled since its last commit "
        "is handled again.",
        ("group.commit_interval_ms", "group.session_timeout_ms"),
        ("kunicorn_last_commit_seconds", "kafka_consumer_partitions_lost_total"),
    ),
    Promise(
        "One worker of the group at a time handles a partition. The exception: when a lease runs out, each worker "
        "finishes what it has [in hand](glossary.md#in-hand).",
        ("group.session_timeout_ms",),
        ("kunicorn_lease_left_seconds", "kunicorn_workers_paused"),
    ),
    Promise(
        "Records of a partition are handled in the order of their offsets. `handler.ordering` loosens that to the "
        "records of a key, or to none.",
        ("handler.ordering", "handler.concurrency"),
        ("kafka_consumer_position", "kunicorn_inflight_records"),
    ),
    Promise(
        "Workers are recycled and code is reloaded without a rebalance. Nothing is handled twice, as long as records "
        "in hand finish within the drain budget.",
        ("workers.max_records", "workers.max_age_s", "workers.max_rss_mb", "group.drain_timeout_ms"),
        ("kunicorn_worker_recycles_total", "kunicorn_reloads_total"),
    ),
    Promise(
        "A record that fails is tried again, then halts its partition, is skipped or becomes a dead letter. No other "
        "partition waits for it.",
        ("handler.max_attempts", "handler.retry_backoff_ms", "handler.retry_timeout_ms", "handler.on_failure"),
        ("kunicorn_handler_failures_total", "kunicorn_partitions_waiting", "kunicorn_skipped_records_total"),
    ),
    Promise(
        "Every in-sync replica has acknowledged a dead letter before its record's offset is committed. While the "
        "dead-letter topic is away, that partition waits.",
        ("dead_letters.topic", "dead_letters.delivery_timeout_ms"),
        ("kunicorn_dead_letters_total", "kunicorn_partitions_waiting"),
    ),
    Promise(
        "With retry topics a record that fails gives up its place, and its partition goes on. Its offset is committed "
        "only once its retry topic has it. It is not handled again before its delay is over.",
        ("handler.retry_topic_delays_ms", "handler.retry_topic"),
        ("kunicorn_retry_topic_records_total", "kunicorn_partitions_waiting"),
    ),
    Promise(
        "A record that kills its worker, or has it killed by a time-out, counts as failed after `workers.max_crashes` "
        "deaths. The handler is not called with it again.",
        ("workers.max_crashes", "handler.handler_timeout_ms", "handler.on_failure"),
        ("kunicorn_worker_restarts_total", "kunicorn_handler_timeouts_total"),
    ),
    Promise(
        "A worker's fetched records stay within its memory, however many partitions it has.",
        ("workers.memory_per_worker_mb",),
        ("kunicorn_worker_rss_bytes",),
    ),
    Promise(
        "A partition that nobody handles has a state and a reason in /status, and its lag goes on growing. /livez is "
        "red if a restart is the cure, and only then.",
        (),
        ("kunicorn_partitions", "kafka_consumer_lag_seconds", "kunicorn_live"),
    ),
    Promise(
        "No start offset is guessed. Without a committed one the policy decides, and its choice is committed before "
        "anything is handled. Under `latest` a new group handles nothing that was written before it began, and "
        "everything of partitions that are added later. A position outside the log is logged, counted and replaced "
        "by policy.",
        ("group.auto_offset_reset",),
        ("kunicorn_offset_resets_total",),
    ),
    Promise(
        "A broker that dies, freezes or restarts causes no rebalance, be it the coordinator. Handling goes on while "
        "commits wait, for as long as the session lasts.",
        ("group.session_timeout_ms", "kafka.request_timeout_ms"),
        ("kafka_consumer_last_heartbeat_seconds", "kafka_consumer_commits_total"),
    ),
    Promise(
        "After exit code 0, everything handled is committed.",
        ("group.drain_timeout_ms", "group.commit_timeout_ms"),
        ("kafka_consumer_commits_total",),
    ),
)
