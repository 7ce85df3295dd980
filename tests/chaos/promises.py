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
        "finish within the drain budget.",
        ("group.drain_timeout_ms", "group.commit_timeout_ms", "group.max_poll_interval_ms"),
        ("kunicorn_drain_seconds", "kafka_consumer_rebalances_total"),
    ),
    Promise(
        "A killed worker repeats the record (or batch) it had in hand, or those if it had several, and causes no "
        "rebalance.",
        ("handler.mode", "handler.batch_max_records", "handler.concurrency", "workers.max_crashes"),
        ("kunicorn_worker_restarts_total",),
    ),
    Promise(
        "A member that is killed, or frozen for longer than its session, repeats at most what it handled since its "
        "last commit.",
        ("group.commit_interval_ms", "group.session_timeout_ms"),
        ("kunicorn_last_commit_seconds", "kafka_consumer_partitions_lost_total"),
    ),
    Promise(
        "A partition is in the hands of one worker of the group at a time; when a lease ran out, except the record "
        "each of its workers had in hand.",
        ("group.session_timeout_ms",),
        ("kunicorn_lease_left_seconds", "kunicorn_workers_paused"),
    ),
    Promise(
        "Records of a partition are handled in the order of their offsets; those of a key, or none, where that is "
        "asked for.",
        ("handler.ordering", "handler.concurrency"),
        ("kafka_consumer_position", "kunicorn_inflight_records"),
    ),
    Promise(
        "Workers are recycled and code is reloaded without a rebalance, and nothing is handled twice as long as "
        "records in hand finish within the drain budget.",
        ("workers.max_records", "workers.max_age_s", "workers.max_rss_mb", "group.drain_timeout_ms"),
        ("kunicorn_worker_recycles_total", "kunicorn_reloads_total"),
    ),
    Promise(
        "A record that fails is tried again, then halts its partition, is skipped or becomes a dead letter; no other "
        "partition waits for it.",
        ("handler.max_attempts", "handler.retry_backoff_ms", "handler.retry_timeout_ms", "handler.on_failure"),
        ("kunicorn_handler_failures_total", "kunicorn_partitions_waiting", "kunicorn_skipped_records_total"),
    ),
    Promise(
        "A dead letter is acknowledged by every in-sync replica before its record's offset is committed; while the "
        "dead-letter topic is away, that partition waits.",
        ("dead_letters.topic", "dead_letters.delivery_timeout_ms"),
        ("kunicorn_dead_letters_total", "kunicorn_partitions_waiting"),
    ),
    Promise(
        "With retry topics a record that fails gives up its place: its offset is committed only once its retry topic "
        "has it, it is not handled again before its delay, and its partition goes on meanwhile.",
        ("handler.retry_topic_delays_ms", "handler.retry_topic"),
        ("kunicorn_retry_topic_records_total", "kunicorn_partitions_waiting"),
    ),
    Promise(
        "A record that kills its worker, or has it killed by a time-out, goes the way of a failed one after so many "
        "deaths, without the handler being called again.",
        ("workers.max_crashes", "handler.handler_timeout_ms", "handler.on_failure"),
        ("kunicorn_worker_restarts_total", "kunicorn_handler_timeouts_total"),
    ),
    Promise(
        "What a worker fetches ahead stays within its memory, however many partitions it has.",
        ("workers.memory_per_worker_mb",),
        ("kunicorn_worker_rss_bytes",),
    ),
    Promise(
        "A partition that nobody handles has a state and a reason in /status, and its lag goes on growing; /livez is "
        "red for what a restart cures, and for nothing else.",
        (),
        ("kunicorn_partitions", "kafka_consumer_lag_seconds", "kunicorn_live"),
    ),
    Promise(
        "No start offset is guessed: without a committed one the policy decides, and its choice is committed before "
        "anything is handled; under `latest` a new group handles nothing that was written before it began, and "
        "everything of partitions that are added later; a position outside the log is told, counted and replaced by "
        "policy.",
        ("group.auto_offset_reset",),
        ("kunicorn_offset_resets_total",),
    ),
    Promise(
        "A broker that dies, freezes or restarts, the coordinator included, causes no rebalance; handling goes on "
        "while commits wait, for as long as the session lasts.",
        ("group.session_timeout_ms", "kafka.request_timeout_ms"),
        ("kafka_consumer_last_heartbeat_seconds", "kafka_consumer_commits_total"),
    ),
    Promise(
        "After exit code 0, everything handled is committed.",
        ("group.drain_timeout_ms", "group.commit_timeout_ms"),
        ("kafka_consumer_commits_total",),
    ),
)
