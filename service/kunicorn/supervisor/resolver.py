"""Looks start offsets up until every partition has one, was halted, or has left us again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from kunicorn.errors import PeerError
from kunicorn.group.partitions import PartitionState
from kunicorn.observe import logs
from kunicorn.pipes import clock
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.partition import Partition
from kunicorn.supervisor.source import Source
from kunicorn.supervisor.starts import Offsets, Starts, begin, recover
from kunicorn.topics import NO_OFFSET, Position, TopicPartition

log = logs.get("kunicorn.starts")

_PAUSE, _PAUSE_MAX = 0.1, 2.0
_COMMIT_PATIENCE = 10.0


class Resolver:
    """One task a look-up. A rebalance in between loses no partition: the task goes on with what is still ours."""

    def __init__(
        self,
        source: Source,
        offsets: Offsets,
        fetchers: Fetchers,
        policy: str,
        from_earliest: Collection[str],
        fatal: Callable[[Exception], None],
    ) -> None:
        """`policy`: auto_offset_reset, for positions that the log does not hold any more; not for topics
        `from_earliest`."""
        self._source = source
        self._offsets = offsets
        self._fetchers = fetchers
        self._policy = policy
        self._from_earliest = from_earliest
        self._fatal = fatal
        self._tasks: set[asyncio.Task[None]] = set()

    def resolve(self, partitions: Collection[Partition]) -> None:
        """Start looking; returns at once."""
        task = asyncio.create_task(self._resolve(list(partitions)))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def stop(self) -> None:
        """Drop what is under way."""
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    async def _resolve(self, partitions: list[Partition]) -> None:
        pause = _PAUSE
        while left := [p for p in partitions if self._waits(p)]:
            try:
                starts = await self._ask(left)
            except PeerError as error:
                log.info(f"start offsets of {len(left)} partitions are not known yet: {error}")
                starts = Starts()
            kept = {tp for tp in starts.open if self._fetchers.table.kept_elsewhere(tp.topic)}
            self._fetchers.resolved(dict.fromkeys(kept, Position(NO_OFFSET)), {})
            for tp, reason in (starts.refused | starts.open).items():
                if any(p.tp == tp and self._waits(p) for p in left):
                    self._fetchers.halt(tp, reason)
            self._fetchers.resolved(starts.given, {})
            self._fetchers.resolved(starts.committed, {tp: start.offset for tp, start in starts.committed.items()})
            await self._choose(starts.chosen, left)
            if any(self._waits(p) for p in partitions):
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)

    async def _choose(self, chosen: dict[TopicPartition, Position], left: list[Partition]) -> None:
        commits = self._source.commits
        if commits is None:
            self._fetchers.resolved(chosen, {})
            return
        waiting = {p.tp: p for p in left}
        deadline = clock.now() + _COMMIT_PATIENCE
        if chosen and await commits.starts(chosen, lambda tp: self._waits(waiting[tp]), deadline):
            self._fetchers.resolved(chosen, {tp: start.offset for tp, start in chosen.items()})

    async def _ask(self, left: list[Partition]) -> Starts:
        lost = {p.tp: p.position for p in left if p.position is not None}
        fresh = [p.tp for p in left if p.fresh and p.position is None]
        if fresh:
            starts = await begin(self._offsets, fresh)
        elif lost:
            starts = await recover(self._offsets, lost, self._policy, self._from_earliest)
        else:
            starts = await self._source.look_up([p.tp for p in left])
        ours = {p.tp for p in left if self._waits(p)}
        starts.chosen = {tp: start for tp, start in starts.chosen.items() if tp in ours}
        return starts

    def _waits(self, partition: Partition) -> bool:
        return self._fetchers.table.get(partition.tp) is partition and partition.state is PartitionState.RESOLVING
