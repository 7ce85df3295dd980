"""When a service that runs as a job ends by itself: at the logs' ends, after so many records, or at a time.

With `--until-end` a partition is handled up to where its log ended when it was first assigned here (isolation level
respected), and then fetched no more; one that leaves and comes back keeps that end. The service leaves its group when
everything that it has got is handled so far. Members that run as jobs beside it get its partitions then, with ends of
their own: together they end once nobody produces faster than they leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from kunicorn.errors import PeerError
from kunicorn.group.protocol import LATEST, Offsets
from kunicorn.group.states import PartitionEvent, PartitionState, State
from kunicorn.ipc import clock
from kunicorn.observe import logs
from kunicorn.positions import TopicPartition
from kunicorn.settings.assign import shown
from kunicorn.supervisor.limits import Until
from kunicorn.supervisor.membership.source import Source
from kunicorn.supervisor.partitions.assignment import Fetchers
from kunicorn.supervisor.partitions.partition import Partition, is_at_its_end

log = logs.get("kunicorn.ending")

_LOOK_INTERVAL = 0.25
_PAUSE = 0.5
_FETCHED = frozenset({PartitionState.STARTING, PartitionState.RUNNING})


class Ending:
    """Looks four times a second. Caller: the loop; nothing blocks."""

    def __init__(
        self,
        until: Until,
        source: Source,
        fetchers: Fetchers,
        offsets: Offsets,
        handled: Callable[[], int],
        idle_patience: float,
    ) -> None:
        """`handled`: records that workers have reported. `idle_patience`: seconds that a member waits for a first
        partition; those of a dead member come when its session is over."""
        self.unfinished = 0
        """Partitions that halted before their end."""
        self.resolve: Callable[[Collection[Partition]], None]
        """Set by the service: goes on with partitions whose end is known."""
        self._until = until
        self._source = source
        self._fetchers = fetchers
        self._offsets = offsets
        self._handled = handled
        self._idle_patience = idle_patience
        self._ends: dict[TopicPartition, int] = {}
        self._rested: set[Partition] = set()
        self._began = clock.now()

    async def wait(self) -> str:
        """Return why the service is to end, as soon as it is."""
        self._began = clock.now()
        while True:
            if (why := self._why(clock.now())) is not None:
                return why
            await asyncio.sleep(_LOOK_INTERVAL)

    async def learn(self, partitions: Collection[Partition]) -> None:
        """Find out where these end, however long it takes, and go on with each that is still ours."""
        left = list(partitions)
        for partition in left:
            if partition.fresh:
                # Its topic was created anew: the end that is known was the old one's.
                self._ends.pop(partition.tp, None)
        while left := [p for p in left if self._waits(p)]:
            missing = [p.tp for p in left if p.tp not in self._ends]
            try:
                found = await self._offsets.list_offsets(dict.fromkeys(missing, LATEST)) if missing else {}
            except PeerError as error:
                log.info(f"the ends of {len(missing)} logs are not known yet: {error}")
                found = {}
            self._ends |= {tp: each.offset for tp, each in found.items() if not each.error}
            self._go_on([p for p in left if p.tp in self._ends and self._waits(p)])
            left = [p for p in left if p.tp not in self._ends]
            if left:
                await asyncio.sleep(_PAUSE)

    def _go_on(self, known: Collection[Partition]) -> None:
        for partition in known:
            partition.stop = self._ends[partition.tp]
        if known:
            self.resolve(known)

    def _waits(self, partition: Partition) -> bool:
        ours = self._fetchers.table.get(partition.tp) is partition
        return ours and partition.state is PartitionState.RESOLVING

    def _why(self, now: float) -> str | None:
        until = self._until
        if until.seconds is not None and now - self._began >= until.seconds:
            return f"has run for {until.seconds:.0f} s, as asked"
        if until.max_records is not None and self._handled() >= until.max_records:
            return f"{self._handled()} records are handled, {until.max_records} were asked for"
        return self._at_the_ends(now) if until.end else None

    def _at_the_ends(self, now: float) -> str | None:
        table = self._fetchers.table
        halted: list[TopicPartition] = []
        resting: list[Partition] = []
        unsure: list[Partition] = []
        all_are_there = True
        for tp, partition in table.items():
            there = is_at_its_end(partition)
            if there and partition.state in _FETCHED:
                partition.meet(PartitionEvent.PAUSE, f"handled up to its end, offset {partition.stop}")
                resting.append(partition)
            elif partition in self._rested and _is_lost(partition):
                unsure.append(partition)
            if partition.state is PartitionState.HALTED:
                halted.append(tp)
            elif not there:
                all_are_there = False
        self._fetchers.drain(resting)
        self._rested = (self._rested | set(resting)) - set(unsure)
        self._fetchers.resume(unsure, "")
        group = self._source.group(now)
        if group is None or not group.joined or group.state != State.STABLE.value:
            return None  # Partitions may be coming, or going.
        if not table:
            late = now - self._began >= self._idle_patience
            return f"this member has got no partition within {self._idle_patience:.0f} s" if late else None
        if not all_are_there:
            return None
        self.unfinished = len(halted)
        if halted:
            log.error(f"{len(halted)} partitions are halted before their end: {shown(frozenset(halted))}")
            return "everything else that was assigned is handled up to its end"
        return "everything that was assigned is handled up to its end"


def _is_lost(partition: Partition) -> bool:
    """Its worker died before it reported: only the brokers know whether its last transaction is committed."""
    return partition.state is PartitionState.PAUSED and partition.worker is None and partition.position is None
