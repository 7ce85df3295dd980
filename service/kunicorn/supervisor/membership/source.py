"""Where our partitions come from: the group assigns them, or the settings name them (`Source`). And how they get their
start offsets: `Resolver` looks these up until every partition has one, was halted, or has left us again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from kunicorn.errors import PeerError
from kunicorn.group.protocol import Offsets
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.observe import logs
from kunicorn.observe.status import AssignStatus, CommitStatus, GroupStatus
from kunicorn.positions import NO_OFFSET, Position, TopicPartition
from kunicorn.supervisor.offsets.commits import Commits
from kunicorn.supervisor.offsets.start_offsets import Starts, begin, in_stretches, recover
from kunicorn.supervisor.partitions.assignment import Fetchers
from kunicorn.supervisor.partitions.partition import Partition


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


log = logs.get("kunicorn.starts")

_T = TypeVar("_T")
_Asked = dict[Partition, int]
"""Those of one look-up, and how many starts each had been given when it began."""

_PAUSE, _PAUSE_MAX = 0.1, 2.0
_COMMIT_PATIENCE = 1.0
"""Seconds that partitions without a start wait for the commits of those that have one, before both are tried again."""


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
        task = asyncio.create_task(self._resolve({partition: partition.starts for partition in partitions}))
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

    async def _resolve(self, partitions: _Asked) -> None:
        pause = _PAUSE
        chosen: dict[TopicPartition, Position] = {}
        """Kept until they are committed: the log's end of a later time would skip what was written since."""
        while left := {p: number for p, number in partitions.items() if self._waits(p, number)}:
            asked = {p: number for p, number in left.items() if p.tp not in chosen}
            try:
                starts = await self._ask(asked) if asked else Starts()
            except PeerError as error:
                log.info(f"start offsets of {len(asked)} partitions are not known yet: {error}")
                starts = Starts()
            kept = {tp for tp in starts.open if self._fetchers.table.kept_elsewhere(tp.topic)}
            self._fetchers.resolved(dict.fromkeys(kept, Position(NO_OFFSET)), {})
            await self._halt(starts.refused | starts.open, left)
            denied = self._of_those_waiting(starts.denied, left)
            self._fetchers.deny({p: denied[p.tp] for p in left if p.tp in denied})
            self._fetchers.resolved(starts.given, {})
            self._fetchers.resolved(starts.committed, {tp: start.offset for tp, start in starts.committed.items()})
            chosen |= starts.chosen
            await self._choose(chosen, left)
            if any(self._waits(p, number) for p, number in partitions.items()):
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PAUSE_MAX)

    async def _halt(self, reasons: Mapping[TopicPartition, str], left: _Asked) -> None:
        asked = {p.tp: p for p in left}
        async for tp, reason in in_stretches(reasons.items()):
            if tp in asked and self._waits(asked[tp], left[asked[tp]]):
                self._fetchers.halt(tp, reason)

    async def _choose(self, chosen: dict[TopicPartition, Position], left: _Asked) -> None:
        """Commit what was chosen, and hand out each as it is taken: one that is refused holds up no other."""
        commits, waiting = self._source.commits, {p.tp: p for p in left}
        ours = self._of_those_waiting(chosen, left)

        def settled(tps: Collection[TopicPartition]) -> None:
            started = self._of_those_waiting({tp: ours[tp] for tp in tps}, left)
            self._fetchers.resolved(started, {tp: start.offset for tp, start in started.items()})

        if commits is None:
            self._fetchers.resolved(ours, {})
        else:
            deadline = clock.now() + _COMMIT_PATIENCE
            await commits.starts(ours, lambda tp: self._waits(waiting[tp], left[waiting[tp]]), deadline, settled)

    async def _ask(self, left: _Asked) -> Starts:
        lost = {p.tp: p.position for p in left if p.position is not None}
        fresh = [p.tp for p in left if p.fresh and p.position is None]
        if fresh:
            starts = await begin(self._offsets, fresh)
        elif lost:
            starts = await recover(self._offsets, lost, self._policy, self._from_earliest)
        else:
            starts = await self._source.look_up([p.tp for p in left])
        starts.chosen = self._of_those_waiting(starts.chosen, left)
        starts.committed = self._of_those_waiting(starts.committed, left)
        starts.given = self._of_those_waiting(starts.given, left)
        starts.open = self._of_those_waiting(starts.open, left)
        return starts

    def _of_those_waiting(self, found: dict[TopicPartition, _T], asked: _Asked) -> dict[TopicPartition, _T]:
        """Not those of a partition that left us since it was asked for, even if it came back: the start of that time
        was not committed, or others have committed since. It has a look-up of its own."""
        waiting = {p.tp for p, number in asked.items() if self._waits(p, number)}
        return {tp: each for tp, each in found.items() if tp in waiting}

    def _waits(self, partition: Partition, starts: int) -> bool:
        """For a look-up that began when it had been given so many. One that began and has its position looked up again
        waits for a newer one: the older one may go on for others, and what it chose is behind what is committed."""
        ours = self._fetchers.table.get(partition.tp) is partition and partition.state is PartitionState.RESOLVING
        return ours and partition.starts == starts
