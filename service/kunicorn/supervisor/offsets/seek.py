"""Seek: a partition of the running service goes on at another offset, because a person asks for it.

The one place where a committed offset goes back while the group runs. In order: its fetcher stops and what is in hand
is finished; the new position is the consumed one; it is committed under the generation of now; fetching goes on there.
A revoke in between takes over whatever is true at that moment: before the new position is set, the old one leaves with
the partition, and afterwards the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from kunicorn.errors import PeerError
from kunicorn.group.protocol import LogOffset, Offsets
from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.ipc import clock
from kunicorn.kafka.stored_positions import resolve
from kunicorn.observe.requests import Done, Goal, SeekMove
from kunicorn.positions import EARLIEST, LATEST, NO_OFFSET, Edges, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition

_SEEKABLE = frozenset({PartitionState.STARTING, PartitionState.RUNNING, PartitionState.PAUSED, PartitionState.HALTED})
_FETCHED = frozenset({PartitionState.STARTING, PartitionState.RUNNING})
_REASON = "drains, to go on at another offset: asked for by a person"

Ends = Mapping[TopicPartition, LogOffset]


class Seeker:
    """Carries out seeks, on the loop. `seek` takes as long as the records in hand do, up to `drain_timeout_ms`."""

    def __init__(
        self, settings: Settings, assignment: Assignment, commits: OffsetCommitter | None, offsets: Offsets
    ) -> None:
        """`commits`: None where no offsets are kept."""
        self._drain_timeout = settings.group.drain_timeout_ms / 1000
        self._commit_timeout = settings.group.commit_timeout_ms / 1000
        self._assignment = assignment
        self._commits = commits
        self._offsets = offsets
        self._under_way: set[TopicPartition] = set()

    async def seek(self, partitions: Sequence[Partition], goal: Goal, *, execute: bool) -> Done:
        """The move of each partition; with `execute` they are made, unless one of them is impossible."""
        if refusal := self._refusal(partitions):
            return Done(ok=False, said=refusal)
        try:
            moves = await self._planned(partitions, goal)
        except PeerError as error:
            return Done(ok=False, said=f"where the logs begin and end is not known: {error}; try again")
        if impossible := [move for move in moves if move.problem]:
            named = "; ".join(f"{move.topic}-{move.partition}: {move.problem}" for move in impossible[:5])
            return Done(ok=False, said=f"nothing was changed: {named}", moves=moves)
        if not execute:
            return Done(ok=True, said="nothing was changed", moves=moves)
        # While the brokers were asked, another seek may have begun, and be told that it decides.
        if refusal := self._refusal(partitions):
            return Done(ok=False, said=refusal)
        self._under_way.update(partition.tp for partition in partitions)
        try:
            failed = await self._move(dict(zip(partitions, moves, strict=True)))
        finally:
            self._under_way.difference_update(partition.tp for partition in partitions)
        done = f"{len(partitions) - len(failed)} of {len(partitions)} partitions go on where they were put"
        return Done(ok=not failed, said="; ".join([done, *failed]), moves=moves)

    def _refusal(self, partitions: Sequence[Partition]) -> str:
        """Why these cannot be put elsewhere now; empty: they can."""
        for partition in partitions:
            if (why := self._assignment.table.not_committed_here(partition.tp.topic)) is not None:
                return f"{partition.tp} stays where it is: {why}"
            if partition.state not in _SEEKABLE or partition.tp in self._under_way:
                return f"{partition.tp} is {self._being(partition)} now: try again"
        return ""

    def _being(self, partition: Partition) -> str:
        return "being put elsewhere" if partition.tp in self._under_way else partition.state.value

    # -- the plan ------------------------------------------------------------------------------------------------

    async def _planned(self, partitions: Collection[Partition], goal: Goal) -> list[SeekMove]:
        tps = [partition.tp for partition in partitions]
        firsts, ends, found = await asyncio.gather(
            self._offsets.list_offsets(dict.fromkeys(tps, EARLIEST)),
            self._offsets.list_offsets(dict.fromkeys(tps, LATEST)),
            self._offsets.list_offsets(dict.fromkeys(tps, goal.time_ms)) if goal.time_ms is not None else _nothing(),
        )
        return [_planned(partition, goal, firsts, ends, found) for partition in partitions]

    # -- the act -------------------------------------------------------------------------------------------------

    async def _move(self, moves: Mapping[Partition, SeekMove]) -> list[str]:
        """Move partitions; returns why some were not moved. Those that have drained in the same moment are committed
        and shared out together: each by itself would look at all others, and a thousand took minutes."""
        paused = frozenset(partition for partition in moves if partition.state is PartitionState.PAUSED)
        fetched = [partition for partition in moves if partition.state in _FETCHED]
        for partition in fetched:
            partition.read_ledger()
            partition.advance(PartitionEvent.PAUSE, _REASON)
        self._assignment.drain(fetched)
        left, said, until = dict.fromkeys(moves), list[str](), clock.now() + self._drain_timeout
        while left:
            await self._assignment.table.changed.wait(lambda: any(map(self._has_drained, left)), until)
            if not (drained := [partition for partition in left if self._has_drained(partition)]):
                break
            for partition in drained:
                del left[partition]
            said += await self._put(drained, moves, paused)
        self._resume(left, paused, "goes on where it was: it did not drain in time")
        late = "has had its record in hand for longer than drain_timeout_ms: it goes on where it was"
        return said + [f"{partition.tp} {late}" for partition in left]

    async def _put(
        self, drained: Collection[Partition], moves: Mapping[Partition, SeekMove], paused: Collection[Partition]
    ) -> list[str]:
        if self._commits is not None:
            # One that is out says the old positions, and what it is answered would count for the new ones.
            await self._commits.wait_answered()
        here = dict.fromkeys(partition for partition in drained if self._waits(partition))
        for partition in here:
            partition.put_at(moves[partition].then)
        unsaid = await self._commit(here)
        self._resume(here, paused, "put here by a person")
        left = "has left this member, or was resumed, meanwhile: it was not put elsewhere"
        later = "is there, and not committed yet; the next commit repeats it"
        return [f"{partition.tp} {left}" for partition in drained if partition not in here] + [
            f"{partition.tp} {later}" for partition in here if partition.tp in unsaid
        ]

    async def _commit(self, put: Collection[Partition]) -> Collection[TopicPartition]:
        """Commit where these were put; what is not committed in time."""
        if self._commits is None or await self._commits.commit_all([each.tp for each in put], self._commit_timeout):
            return ()
        return self._assignment.table.consumed()

    def _resume(self, partitions: Collection[Partition], paused: Collection[Partition], reason: str) -> None:
        """Have them fetched, but for those that were paused when the seek came."""
        resumed = [partition for partition in partitions if self._waits(partition) and partition not in paused]
        for partition in resumed:
            partition.advance(PartitionEvent.RESUME, reason)
        if resumed:
            self._assignment.distribute()

    def _has_drained(self, partition: Partition) -> bool:
        """Whether no worker has it any more, or it is not this seek's any more."""
        return partition.worker is None or not self._waits(partition)

    def _waits(self, partition: Partition) -> bool:
        ours = self._assignment.table.get(partition.tp) is partition
        return ours and partition.state in (PartitionState.PAUSED, PartitionState.HALTED)


async def _nothing() -> Ends:
    return {}


def _planned(partition: Partition, goal: Goal, firsts: Ends, ends: Ends, found: Ends) -> SeekMove:
    tp = partition.tp
    partition.read_ledger()
    now = partition.position.offset if partition.position is not None else None
    first, end = firsts[tp], ends[tp]
    unknown = next((each.error for each in (first, end, found.get(tp)) if each is not None and each.error), 0)
    if unknown:
        problem = f"its leader does not say where the log begins and ends (error {unknown}); try again"
        return SeekMove(tp.topic, tp.partition, now, partition.committed, -1, -1, -1, problem)
    edges = Edges(first.offset, end.offset if partition.stop == NO_OFFSET else min(end.offset, partition.stop))
    if goal.time_ms is not None:
        wanted = found[tp].offset
    elif goal.offset is not None:
        wanted = goal.offset
    else:
        wanted = EARLIEST if goal.edge == "earliest" else LATEST
    then = edges.placed(wanted)
    problem = ""
    if resolve(tp, Position(then), edges).loss is not None:
        problem = f"offset {then} is not in the log ({edges.first} to {edges.end})"
    return SeekMove(tp.topic, tp.partition, now, partition.committed, then, edges.first, edges.end, problem)
