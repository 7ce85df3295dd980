"""What a test has happen while one of its records is in the handler's hands. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Revoke:
    """The record's partition is taken away, in order: drained, committed, given to another member."""

    at: int
    """Index of the record among those given."""
    drain_timeout_ms: int | None = None
    """After so long (real time) the handler is interrupted by `DrainDeadline`; None: it may take its time."""


@dataclass(frozen=True, slots=True)
class LoseSession:
    """The member was fenced: its lease is over, other members have its partitions, nothing is committed."""

    at: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the worker when its handler is through with the record, and its offset does not count yet."""

    at: int


Stage = Revoke | LoseSession | Kill


def stage_of(
    count: int, revoke_at: int | None, drain_timeout_ms: int | None, lose_session_at: int | None, kill_at: int | None
) -> Stage | None:
    """The one that the arguments of `HandlerTest.run` ask for. Raises `ValueError`."""
    found: list[Stage] = []
    if revoke_at is not None:
        found.append(Revoke(revoke_at, drain_timeout_ms))
    elif drain_timeout_ms is not None:
        raise ValueError("drain_timeout_ms belongs to revoke_at: say at which record the partition is taken away")
    if lose_session_at is not None:
        found.append(LoseSession(lose_session_at))
    if kill_at is not None:
        found.append(Kill(kill_at))
    if len(found) > 1:
        raise ValueError("a run has one of revoke_at, lose_session_at and kill_at: what comes after one is another run")
    if found and not 0 <= found[0].at < count:
        raise ValueError(f"there is no record {found[0].at}: {count} are given, counted from 0")
    return found[0] if found else None
