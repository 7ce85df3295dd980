"""The limits of a service that runs as a job, as the command line asks for them. Light: read before any process is
started. Pure, but for the clock."""

from __future__ import annotations

from dataclasses import dataclass

from kunicorn.errors import ConfigError
from kunicorn.group.consumer import BROKERS_SESSION
from kunicorn.ipc.clock import wall_ms
from kunicorn.settings import Settings
from kunicorn.text import moment, span


@dataclass(frozen=True, slots=True)
class Until:
    """The limits of a run; the first that is reached ends the service."""

    end: bool = False
    """Whether the partitions' ends are a limit."""
    max_records: int | None = None
    """Records that were handled, skipped, or sent to a dead-letter or retry topic, by all workers together; what they
    handle until that is noticed comes on top."""
    seconds: float | None = None
    """Seconds since the service was started."""
    stop_at_ms: int | None = None
    """Time of day: the wall clock's, whatever the service has to wait for before it begins."""
    idle_patience: float = 45.0
    """Seconds that a member waits for a first partition; those of a dead one come when its session is over."""


def until_of(
    settings: Settings, *, end: bool, max_records: int | None, run_for: str | None, stop_at: str | None
) -> Until:
    """The limits that the command line asks for; `run_for` and `stop_at` as in `kunicorn.text`. Raises
    `ConfigError`."""
    if end and settings.assigned:
        raise ConfigError('--until-end is for groups: with [assign], set assign.stop = "end"')
    if run_for is not None and stop_at is not None:
        raise ConfigError("--for and --stop-at both say when to stop: choose one")
    seconds = None if run_for is None else span("--for", run_for)
    stop_at_ms = None
    if stop_at is not None:
        now_ms = wall_ms()
        stop_at_ms = moment("--stop-at", stop_at, now_ms)
        if stop_at_ms <= now_ms:
            raise ConfigError(f"--stop-at {stop_at!r} lies in the past")
    session = settings.group.session_timeout_ms / 1000
    # With the consumer protocol a dead member's partitions come when the brokers' session is over, not ours.
    idle_patience = max(session, BROKERS_SESSION) if settings.group.group_protocol == "consumer" else session
    return Until(end, max_records, seconds, stop_at_ms, idle_patience)
