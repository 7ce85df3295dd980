"""Manual assignment: the partitions that [assign] names, without a group and without commits.

1. No live group is touched: nothing here asks a coordinator for anything.
2. No start offset is guessed (invariant 9): it comes from `assign.start`. A partition that appears later starts at its
   beginning, else the records between its creation and our noticing it would be lost.
3. What is consumed is known by the ledgers alone, so a worker's death repeats nothing but the record in hand, and a
   restart of the service begins at `assign.start` again.
4. A topic that is created anew is consumed from its beginning (`stop = "never"`). With `stop = "end"` the range that
   was to be handled is gone with the old topic: nothing of the new one is handled, and the partition counts as
   unfinished.
5. A partition that has reached its end is taken from its worker for good, without a deadline: the worker's report may
   wait for a hook, and that for the record in hand of another partition, as long as it takes. With `run --until-end` it
   is paused (`kunicorn.supervisor.run_until`): there the group may take it away and bring it back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any

from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.observe import catalogue, logs
from kunicorn.observe.metrics import Metrics
from kunicorn.observe.status import AssignStatus
from kunicorn.positions import EARLIEST, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.settings.assign import existing, shown
from kunicorn.supervisor.connections import Connections
from kunicorn.supervisor.membership.source import Patience, StopMessages, new_topics
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.start_offsets import Starts, find
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.lag import known_ends
from kunicorn.supervisor.partitions.partition import Partition, is_at_its_end
from kunicorn.text import listed

log = logs.get("kunicorn.assign")

_LOOK_INTERVAL = 0.25
_PAUSE = 0.5
_FOR_EVER = 2**63 - 1
"""The workers' lease: there is no membership that could end."""
_POSITIONS_SHOWN = 200
_GONE_PATIENCE = 30.0
"""Seconds without a topic until it counts as deleted: brokers that restart may not know it for a moment."""


class ManualAssignment:
    """Implements `AssignmentSource`."""

    stop_messages = StopMessages(
        leaving="draining",
        clean="everything that was in hand is finished; with [assign] no offsets are committed",
        unclean="not everything that was to be handled is finished",
        overdue="not drained",
    )
    commits = None

    def __init__(self, settings: Settings, connections: Connections, assignment: Assignment, metrics: Metrics) -> None:
        """Sends nothing before `run`."""
        self.requested = asyncio.Event()
        self.over = False
        self.steady = True
        self.unfinished = 0
        self.through = False
        self._settings = settings
        self._assign = settings.assign
        self._wanted = settings.assign.wanted
        self._offsets = connections.brokers
        self._topics = connections.topics
        self._assignment = assignment
        self._metrics = metrics
        self._known: frozenset[TopicPartition] = frozenset()
        self._newcomers: set[TopicPartition] = set()
        """Not there at the start: they begin at their beginning."""
        self._ending: set[TopicPartition] = set()
        """Handled up to their end, and taken from their workers."""
        self._finished: set[TopicPartition] = set()
        """Of these, those that the workers have let go of."""
        self._cut_short: set[TopicPartition] = set()
        """Their topic was created anew before their end was reached."""
        self._gone: frozenset[TopicPartition] = frozenset()
        self._gone_since = 0.0
        self._fetched = False
        self._leaves = False
        self._told = Notifier()

    @property
    def goes_by_ids(self) -> bool:
        """See `AssignmentSource`."""
        return self._assign.stop == "never"

    async def run(self) -> None:
        """See `AssignmentSource`. Raises `ConfigError` for partitions that do not exist or have no start."""
        self._topics.subscribe()
        self._topics.watch_counts(self._wanted.topics)
        self._known = existing(self._assign, self._topics.partitions_of(self._wanted.topics))
        self._assignment.pool.extend_lease(_FOR_EVER)
        stops = await self._ends() if self._assign.stop == "end" else {}
        self._take_up(self._known, stops)
        self.requested.set()
        while not self._leaves:
            if self._nothing_left():
                self.through = True
                break
            await self._wait(_LOOK_INTERVAL)
        await self._drain()
        self.over = True

    def works(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._watch_topics(), self._watch_topic_ids()]

    def leave(self, reason: str) -> None:
        self._leaves = True
        self._told.notify()

    def stop_at_once(self) -> None:
        self.unfinished += max(1, len(self._assignment.table.held(self._known)))

    def group(self, now: float) -> None:
        """See `AssignmentSource`."""

    def assign(self) -> AssignStatus:
        return AssignStatus(
            stop=self._assign.stop, partitions=len(self._known), finished=len(self._finished), fetched=self._fetched
        )

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        table = self._assign.offsets
        if table is None:
            at = self._assign.timestamp
            return await find(self._offsets, {tp: EARLIEST if tp in self._newcomers else at for tp in partitions})
        starts = await find(self._offsets, {tp: EARLIEST for tp in partitions if tp in self._newcomers})
        starts.given |= {tp: Position(table[tp]) for tp in partitions if tp not in self._newcomers}
        return starts

    # -- up to the end -------------------------------------------------------------------------------------------

    async def _ends(self) -> Mapping[TopicPartition, int]:
        """The logs' ends of now; waits until every leader has answered, however long that takes, and says so."""
        ends: dict[TopicPartition, int] = {}
        patience = Patience()
        while (missing := self._known.difference(ends)) and not self._leaves:
            ends |= await known_ends(self._offsets, missing)
            missing = missing.difference(ends)
            if missing and patience.is_over:
                patience.told()
                log.warning(
                    f"no partition begins before all leaders have told where their logs end, and {len(missing)} have "
                    f"not: {shown(missing)}; start the brokers that lead them, see that this user has DESCRIBE on the "
                    f"topics, or leave these partitions out of assign.partitions"
                )
            if missing:
                await self._wait(_PAUSE)
        return ends

    def _take_up(self, partitions: Collection[TopicPartition], stops: Mapping[TopicPartition, int]) -> None:
        log.info(
            f"assigned {len(partitions)} partitions: {shown(frozenset(partitions))}", start=str(self._assign.start)
        )
        self._assignment.assign(partitions)
        for tp, stop in stops.items():
            self._assignment.table[tp].stop = stop

    def _nothing_left(self) -> bool:
        """Whether nothing is left to do. Notes partitions that were fetched, and those that have reached their end."""
        table = self._assignment.table
        if not self._fetched:
            self._fetched = all(_is_fetched(partition) for partition in table.values())
        if self._assign.stop == "never":
            return False
        self._finish()
        left = [table[tp] for tp in self._known.difference(self._finished)]
        gone = self._gone if clock.now() - self._gone_since >= _GONE_PATIENCE else frozenset()
        over = (p.tp for p in left if p.state is PartitionState.HALTED or p.tp in gone or p.tp in self._cut_short)
        ending = frozenset(over) - self._ending
        if len(ending) < len(left):
            return False
        if ending:
            log.error(
                f"{len(ending)} partitions are halted, or their topic is deleted, before their end: {shown(ending)}; "
                f"the others are finished"
            )
            self.unfinished = len(ending)
        return True

    def _finish(self) -> None:
        """Take partitions that have reached their end from their workers; note those that have been let go of."""
        table = self._assignment.table
        reached = [tp for tp in self._known.difference(self._ending, self._cut_short) if is_at_its_end(table[tp])]
        self._ending.update(reached)
        self._assignment.let_go(reached)
        ended = [tp for tp in self._ending.difference(self._finished) if table[tp].state is PartitionState.RELEASED]
        for tp in ended:
            table[tp].finish()
        self._finished.update(ended)
        if ended:
            log.info(f"{len(self._finished)} of {len(self._known)} partitions are handled up to their end")

    # -- leaving -------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        began = clock.now()
        everything = list(self._assignment.table)
        drain = asyncio.ensure_future(self._assignment.revoke(everything, *self._deadlines()))
        await asyncio.wait({drain}, timeout=self._drain_timeout)
        self.unfinished += len(self._assignment.table.held(everything))
        await drain
        self._metrics.observe(catalogue.DRAIN_SECONDS, clock.now() - began)
        self._tell_positions()

    def _tell_positions(self) -> None:
        """Log all positions in the form of `assign.start`: they are stored nowhere."""
        table = self._assignment.table
        positions = [f'"{tp.topic}:{tp.partition}" = {p.position.offset}' for tp, p in table.items() if p.position]
        named = listed(sorted(positions), _POSITIONS_SHOWN, ", ")
        log.info(f"to go on from here: [assign] start = {{{named}}}")

    @property
    def _drain_timeout(self) -> float:
        return self._settings.group.drain_timeout_ms / 1000

    def _deadlines(self) -> tuple[float, float]:
        """When a drain that begins now is to be over, and when it is given up."""
        now = clock.now()
        return now + self._drain_timeout, now + self._settings.group.max_poll_interval_ms / 1000

    async def _wait(self, seconds: float) -> None:
        """Sleep; `leave` ends it early."""
        await self._told.wait(lambda: self._leaves, clock.now() + seconds)

    # -- topics that change --------------------------------------------------------------------------------------

    async def _watch_topics(self) -> None:
        await self.requested.wait()
        while True:
            change = await self._topics.changes(self._settings.kafka.metadata_max_age_ms / 1000)
            if self.over:
                return
            log.info(change)
            now = frozenset(self._topics.partitions_of(self._wanted.topics))
            gone = self._known.difference(now)
            if gone.difference(self._gone):
                log.warning(f"{shown(gone)} cannot be found any more; fetched again if they come back")
                self._gone_since = clock.now()
            self._gone = gone
            fresh = frozenset(tp for tp in now.difference(self._known) if tp.topic in self._wanted.whole)
            if fresh and self._assign.stop == "never":
                self._newcomers |= fresh
                self._known |= fresh
                self._take_up(fresh, {})

    async def _watch_topic_ids(self) -> None:
        await self.requested.wait()
        while True:
            await self._topics.recreated.wait()
            self._topics.recreated.clear()
            if (gone := self._assignment.table.of_gone_topics()) and not self.over:
                await (self._renew(gone) if self.goes_by_ids else self._cut(gone))

    async def _renew(self, gone: Collection[TopicPartition]) -> None:
        log.warning(new_topics(gone), partitions=listed(gone))
        self._newcomers.update(gone)
        await self._assignment.renew(gone, *self._deadlines())

    async def _cut(self, gone: Collection[TopicPartition]) -> None:
        table = self._assignment.table
        cut = [tp for tp in gone if tp not in self._ending and not is_at_its_end(table[tp])]
        if not cut:
            return
        log.error(
            f"{len(cut)} partitions belong to a topic that was deleted and created anew: what was to be handled is "
            f"gone with the old one, and nothing of the new one is handled; start the job again for that",
            partitions=listed(cut),
        )
        self._cut_short.update(cut)
        await self._assignment.revoke(cut, *self._deadlines())


def _is_fetched(partition: Partition) -> bool:
    partition.read_ledger()
    return partition.state in (PartitionState.RUNNING, PartitionState.MOVING, PartitionState.RELEASED)
