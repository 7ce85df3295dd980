"""How partitions leave us: the revoke hook, and what is lost.

Orderly: stop, drain, commit synchronously, and only then may the member join or leave (invariant 2). Lost: stop, commit
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from kunicorn.ipc import clock
from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.offsets.commits import Commits
from kunicorn.supervisor.partitions.assignment import Fetchers
from kunicorn.supervisor.partitions.partition import Partition

log = logs.get("kunicorn.handover")

Partitions = tuple[TopicPartition, ...]
Leaving = Mapping[TopicPartition, Partition]

_STRAGGLER_AFTER = 0.5
"""Seconds that drained partitions wait for one whose record takes longer; each straggler costs one more rebalance."""


class Handover:
    """Lets go of partitions, in order if there is time."""

    def __init__(self, settings: Settings, fetchers: Fetchers, commits: Commits, metrics: Metrics) -> None:
        group = settings.group
        self.uncommitted = 0
        """Partitions that left with something handled and not committed, which is handled again by the next owner.
        Set back when the service is told to stop: what was lost long ago must not spoil the exit code of today."""
        self._drain_timeout = group.drain_timeout_ms / 1000
        self._commit_timeout = group.commit_timeout_ms / 1000
        self._rebalance_timeout = group.max_poll_interval_ms / 1000
        self._fetchers = fetchers
        self._commits = commits
        self._metrics = metrics

    async def revoke(
        self, partitions: Partitions, may_follow: Callable[[], bool]
    ) -> tuple[frozenset[TopicPartition], Coroutine[None, None, None] | None]:
        """The revoke hook: drain and commit; return what is still in hand, and the work of seeing it off.

        That is none unless `may_follow` says that the next JoinGroup can still name them as owned (KIP-429): a record
        that takes a minute must not hold up the partitions beside it, and what a worker clings to even when it is
        killed must not be given to others while it may still be handled here.
        """
        began = clock.now()
        leaving = {tp: p for tp in partitions if (p := self._fetchers.table.get(tp)) is not None}
        in_hand = sum(1 for partition in leaving.values() if partition.busy)
        drain = asyncio.ensure_future(
            self._fetchers.revoke(partitions, began + self._drain_timeout, began + self._rebalance_timeout)
        )
        held = await self._drained(drain, partitions, may_follow)
        drained = clock.now()
        free = tuple(tp for tp in partitions if tp not in held)
        committed = await self._settle({tp: p for tp, p in leaving.items() if tp not in held}, self._commit_timeout)
        self._metrics.drain_seconds.observe(drained - began)
        if partitions:
            log.info(
                f"let go of {len(free)} partitions in {clock.now() - began:.3f} s",
                in_hand=in_hand,
                drained=round(drained - began, 3),
                committed=committed,
                partitions=shown(free),
            )
        if not held:
            return held, None
        log.info(f"{len(held)} more partitions follow: a record is in hand", partitions=shown(tuple(sorted(held))))
        return held, self._follow(drain, {tp: p for tp, p in leaving.items() if tp in held})

    async def lose(self, partitions: Partitions) -> None:
        """Another member may own these by now: stop them at once, commit nothing."""
        self._count_uncommitted(partitions)
        now = clock.now()
        await self._fetchers.lose(partitions, now + self._drain_timeout, now + self._rebalance_timeout)

    async def _drained(
        self, drain: asyncio.Future[None], partitions: Partitions, may_follow: Callable[[], bool]
    ) -> frozenset[TopicPartition]:
        while not (await asyncio.wait({drain}, timeout=_STRAGGLER_AFTER))[0]:
            held = self._fetchers.table.held(partitions)
            if may_follow() and 0 < len(held) < len(partitions):
                return held
        await drain
        return self._fetchers.table.held(partitions) if may_follow() else frozenset()

    async def _follow(self, drain: asyncio.Future[None], leaving: Leaving) -> None:
        """Commit what drained after the others had gone; take it up again if a plan has given it back meanwhile."""
        await drain
        # A join may be out, and be held up by others for so long; nothing can be committed before it is answered.
        await self._settle(leaving, self._rebalance_timeout)

    async def _settle(self, leaving: Leaving, within: float) -> bool:
        committed = await self._commits.settle(self._still(leaving), within)
        left = self._still(leaving)
        self._count_uncommitted(left)
        self._fetchers.forget(left)
        return committed

    def _still(self, leaving: Leaving) -> Partitions:
        """Those that are the ones they were: what was lost meanwhile may be ours again, and go on here."""
        return tuple(tp for tp, partition in leaving.items() if self._fetchers.table.get(tp) is partition)

    def _count_uncommitted(self, partitions: Partitions) -> None:
        consumed = self._fetchers.table.consumed()
        left = [f"{tp}@{consumed[tp].offset}" for tp in partitions if tp in consumed]
        self.uncommitted += len(left)
        if left:
            log.error(
                f"{len(left)} partitions leave with something handled and not committed", positions=" ".join(left[:20])
            )


def shown(partitions: Partitions) -> str:
    """For a log line: the first twenty."""
    listed = " ".join(str(tp) for tp in partitions[:20])
    return listed if len(partitions) <= 20 else f"{listed} …"
