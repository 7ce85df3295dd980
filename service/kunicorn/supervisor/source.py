"""Where our partitions come from: the group assigns them, or the settings name them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from kunicorn.observe.status import AssignStatus, CommitStatus, GroupStatus
from kunicorn.supervisor.commits import Commits
from kunicorn.supervisor.starts import Starts
from kunicorn.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of the service's end."""

    leaving: str
    """What a stop means, as log line and as the reason of a red /readyz."""
    clean: str
    unclean: str
    overdue: str


class Source(Protocol):
    """What the service needs of either. Runs on the loop; nothing blocks."""

    @property
    def words(self) -> Words:
        """How its end is told."""

    @property
    def commits(self) -> Commits | None:
        """The committer; None where no offsets are kept."""

    @property
    def asked(self) -> asyncio.Event:
        """Set once the first partitions are asked for: JoinGroup is on its way, or there is no group to join."""

    @property
    def steady(self) -> bool:
        """No partition is about to come or to go, as far as is known."""

    @property
    def over(self) -> bool:
        """`run` is through: nothing is in hand any more."""

    @property
    def unfinished(self) -> int:
        """Partitions that do not end as they should: exit code `NOT_ALL_COMMITTED`."""

    async def run(self) -> None:
        """Have partitions fetched until `leave` is through, or there is nothing left to do.

        Raises `ConfigError` for partitions that cannot be had.
        """

    def works(self) -> Sequence[Awaitable[None]]:
        """What has to run beside it."""

    def leave(self, reason: str) -> None:
        """Drain everything, and settle it; returns at once."""

    def hurry(self) -> None:
        """The service stops at once: what is in hand ends with its worker, and counts as unfinished."""

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        """Where these start. Raises `PeerError`."""

    def group(self, now: float) -> GroupStatus | None:
        """Our membership, if there is any."""

    def assign(self) -> AssignStatus | None:
        """How far [assign] has got, if it is in use."""


def commit_status(commits: Commits | None, now: float) -> CommitStatus | None:
    """The committer as `/status` shows it."""
    if commits is None:
        return None
    age = None if commits.last_ok_at is None else now - commits.last_ok_at
    return CommitStatus(last_age=age, last_result=commits.last_result, pending=commits.pending)
