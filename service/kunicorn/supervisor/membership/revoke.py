"""The revoke hook: how partitions leave this member, revoked or lost.

Orderly: stop, drain, commit synchronously, and only then may the member join or leave (invariant 2). While there is no
coordinator to commit to there is none to join, either: a member that stays in the group waits for one, and leaves room
in the rebalance timeout for the join. One that leaves the group does not: a stop has its own budget. Lost: stop, commit
nothing; it ends an orderly revoke of the same partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping

from kunicorn.ipc import clock
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.text import listed

log = logs.get("kunicorn.handover")

Partitions = tuple[TopicPartition, ...]
Leaving = Mapping[TopicPartition, Partition]

_STRAGGLER_AFTER = 0.5
"""Seconds that drained partitions wait for one whose record takes longer; each straggler costs one more rebalance."""
_SHARE_OF_COMMITS = 0.75
"""Of the rebalance timeout, until the last commit has to be answered: the join comes behind it."""


class Revocation:
    """Partitions that leave this member: drained and committed first if they are revoked, stopped if they are lost."""

    def __init__(self, settings: Settings, assignment: Assignment, commits: OffsetCommitter, metrics: Metrics) -> None:
        group = settings.group
        self.uncommitted = 0
        """Partitions that left with something handled and not committed, which is handled again by the next owner.
        Set back when the service is told to stop: what was lost long ago must not spoil the exit code of today."""
        self._drain_timeout = group.drain_timeout_ms / 1000
        self._commit_timeout = group.commit_timeout_ms / 1000
        self._rebalance_timeout = group.max_poll_interval_ms / 1000
        self._leaves = False
        self.assignment = assignment
        self._commits = commits
        self._metrics = metrics

    def begin_leaving(self) -> None:
        """Count from zero what leaves uncommitted, and wait for no coordinator: the service is told to stop."""
        self.uncommitted = 0
        self._leaves = True

    def give_up(self, partitions: int) -> None:
        """Count so many partitions as uncommitted: they are not waited for, and the next owner handles them again."""
        self.uncommitted += partitions

    async def revoke(
        self, partitions: Partitions, can_revoke_later: Callable[[], bool]
    ) -> tuple[frozenset[TopicPartition], Coroutine[None, None, None] | None]:
        """The revoke hook: drain and commit; return what is still in hand, and the work of seeing it off.

        That is none unless `can_revoke_later` says that the next JoinGroup can still name them as owned (KIP-429): a
        record that takes a minute must not hold up the partitions beside it, and what a worker clings to even when it
        is killed must not be given to others while it may still be handled here.
        """
        began = clock.now()
        leaving = {tp: p for tp in partitions if (p := self.assignment.table.get(tp)) is not None}
        in_hand = sum(1 for partition in leaving.values() if partition.busy)
        drain = asyncio.ensure_future(
            self.assignment.revoke(partitions, began + self._drain_timeout, began + self._rebalance_timeout)
        )
        held = await self._drained(drain, partitions, can_revoke_later)
        drained = clock.now()
        free = tuple(tp for tp in partitions if tp not in held)
        last_commit = began + self._rebalance_timeout * _SHARE_OF_COMMITS - self._commit_timeout
        committed = await self._commit_and_forget(
            {tp: p for tp, p in leaving.items() if tp not in held},
            self._commit_timeout,
            away_until=0.0 if self._leaves else last_commit,
        )
        self._metrics.observe(catalogue.DRAIN_SECONDS, drained - began)
        if partitions:
            log.info(
                f"let go of {len(free)} partitions in {clock.now() - began:.3f} s",
                in_hand=in_hand,
                drained=round(drained - began, 3),
                committed=committed,
                partitions=listed(free),
            )
        if not held:
            return held, None
        log.info(f"{len(held)} more partitions follow: a record is in hand", partitions=listed(tuple(sorted(held))))
        return held, self._follow(drain, {tp: p for tp, p in leaving.items() if tp in held})

    async def lose(self, partitions: Partitions) -> None:
        """Stop partitions that another member may own by now; nothing of them is committed, nor what is in hand and
        goes on to its end."""
        table = self.assignment.table
        losing = [p for tp in partitions if (p := table.get(tp)) is not None and not p.lost]
        consumed = table.consumed()
        self._count([p for p in losing if p.tp in consumed])
        begun_at = {p: p.position if p.busy else None for p in losing if p.tp not in consumed}
        now = clock.now()
        await self.assignment.lose(partitions, now + self._drain_timeout, now + self._rebalance_timeout)
        self._count([p for p, began in begun_at.items() if p.undelivered or _is_behind(began, p.position)])

    async def _drained(
        self, drain: asyncio.Future[None], partitions: Partitions, can_revoke_later: Callable[[], bool]
    ) -> frozenset[TopicPartition]:
        while not (await asyncio.wait({drain}, timeout=_STRAGGLER_AFTER))[0]:
            held = self.assignment.table.held(partitions)
            if can_revoke_later() and 0 < len(held) < len(partitions):
                return held
        await drain
        return self.assignment.table.held(partitions) if can_revoke_later() else frozenset()

    async def _follow(self, drain: asyncio.Future[None], leaving: Leaving) -> None:
        """Commit what drained after the others had gone; take it up again if a plan has given it back meanwhile."""
        await drain
        # A join may be out, and be held up by others for so long; nothing can be committed before it is answered.
        await self._commit_and_forget(leaving, self._rebalance_timeout)

    async def _commit_and_forget(self, leaving: Leaving, within: float, away_until: float = 0.0) -> bool:
        committed = await self._commits.commit_all(self._unchanged(leaving), within, away_until)
        left = self._unchanged(leaving)
        consumed = self.assignment.table.consumed()
        self._count([leaving[tp] for tp in left if tp in consumed or leaving[tp].undelivered])
        self.assignment.forget(left)
        return committed

    def _unchanged(self, leaving: Leaving) -> Partitions:
        """The partitions that have not left since: one that was lost meanwhile may have been assigned to us again."""
        return tuple(tp for tp, partition in leaving.items() if self.assignment.table.get(tp) is partition)

    def _count(self, uncommitted: Collection[Partition]) -> None:
        self.uncommitted += len(uncommitted)
        if uncommitted:
            log.error(
                f"{len(uncommitted)} partitions leave with something handled and not committed",
                positions=listed(f"{p.tp}@{p.position.offset if p.position is not None else '?'}" for p in uncommitted),
            )


def _is_behind(began: Position | None, ended: Position | None) -> bool:
    return began is not None and ended is not None and began.offset < ended.offset
