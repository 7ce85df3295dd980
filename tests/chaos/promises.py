"""What is promised about delivery, which settings govern it and which metrics show it: a table of docs/delivery.md."""

from __future__ import annotations

from typing import NamedTuple


class Promise(NamedTuple):
    """One row. Settings are `section.name`, metrics as `/metrics` has them."""

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
        "A killed worker repeats the record (or batch) it had in hand, and causes no rebalance.",
        ("handler.mode", "handler.batch_max_records", "workers.max_crashes"),
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
        "Records of a partition are handled in the order of their offsets.",
        ("workers.count",),
        ("kafka_consumer_position",),
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
