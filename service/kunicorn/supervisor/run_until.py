"""The end of a service that runs as a job: at the logs' ends, after so many records, or at a time.

With `--until-end` a partition is handled up to where its log ended when it was first assigned here (isolation level
respected), and then fetched no more; one that leaves and comes back keeps that end. The service leaves its group when
everything that it has got is handled so far. Members that run as jobs beside it get its partitions then, with ends of
their own: together they end once nobody produces faster than they leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from uuid import UUID

from kunicorn.group.protocol import Offsets
from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.clock import wall_ms
from kunicorn.observe import logs
from kunicorn.positions import TopicPartition
from kunicorn.settings.assign import shown
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.limits import Until
from kunicorn.supervisor.membership.source import Patience
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.lag import known_ends
from kunicorn.supervisor.partitions.partition import Partition, is_at_its_end
from kunicorn.supervisor.partitions.table import Unstarted
from kunicorn.text import utc

log = logs.get("kunicorn.ending")

_LOOK_INTERVAL = 0.25
_PAUSE = 0.5
_HANDLED = ("records", "skipped", "dead_letters", "retry_topics")
"""What `--max-records` counts of the workers' totals: a handler that fails with every record ends, too."""
_FETCHED = frozenset({PartitionState.STARTING, PartitionState.RUNNING})
_Log = tuple[TopicPartition, UUID | None]
"""A partition of one topic, and not of another one that has its name later: that one has an end of its own."""


class RunUntil:
    """Watches for the end that the command line asks for, four times a second. Runs on the loop; nothing blocks."""

    def __init__(
        self, until: Until, member: MemberState, assignment: Assignment, offsets: Offsets, totals: Mapping[str, int]
    ) -> None:
        """`totals`: what workers have reported, `_HANDLED` among it. Its time begins now."""
        self.unfinished = 0
        """Partitions that halted before their end."""
        self.with_end: Unstarted = asyncio.Queue()
        """Partitions whose end is known, and whose start offset is to be looked up."""
        self._until = until
        self._member = member
        self._assignment = assignment
        self._offsets = offsets
        self._totals = totals
        self._ends: dict[_Log, int] = {}
        self._rested: set[Partition] = set()
        self._began = self._without_since = clock.now()

    async def wait(self) -> str:
        """Wait until the service is to end; returns why. Before it serves, too: brokers may be away for long."""
        while True:
            if (why := self._why(clock.now())) is not None:
                return why
            await asyncio.sleep(_LOOK_INTERVAL)

    async def find_ends(self) -> None:
        """Look up the log ends of partitions without a start, before their start offsets are looked up; for ever.

        Caller: the service, once it asks for partitions.
        """
        async with asyncio.TaskGroup() as look_ups:
            while True:
                look_ups.create_task(self.learn(await self._assignment.table.without_start.get()))

    async def learn(self, partitions: Collection[Partition]) -> None:
        """Look up the log ends of these, however long it takes; each that is still ours goes on to `with_end`."""
        left, patience = list(partitions), Patience()
        while left := [p for p in left if self._waits(p)]:
            missing = {p.tp: _log(p) for p in left if _log(p) not in self._ends}
            self._ends |= {missing[tp]: end for tp, end in (await known_ends(self._offsets, [*missing])).items()}
            self._go_on([p for p in left if _log(p) in self._ends and self._waits(p)])
            left = [p for p in left if _log(p) not in self._ends]
            for partition in left:
                partition.wait_for_start("its leader does not tell where its log ends")
            if left and patience.is_over:
                patience.told()
                log.warning(
                    f"{len(left)} partitions do not begin before their leaders have told where their logs end: "
                    f"{shown(frozenset(p.tp for p in left))}; start the brokers that lead them, and see that this user "
                    f"has DESCRIBE on the topics"
                )
            if left:
                await asyncio.sleep(_PAUSE)

    def _go_on(self, known: Collection[Partition]) -> None:
        for partition in known:
            partition.end_at(self._ends[_log(partition)])
        if known:
            self.with_end.put_nowait({partition: partition.starts for partition in known})

    def _waits(self, partition: Partition) -> bool:
        ours = self._assignment.table.get(partition.tp) is partition
        return ours and partition.state is PartitionState.RESOLVING

    def _why(self, now: float) -> str | None:
        until = self._until
        if until.seconds is not None and now - self._began >= until.seconds:
            return f"has run for {until.seconds:.0f} s, as asked"
        if until.stop_at_ms is not None and wall_ms() >= until.stop_at_ms:
            return f"it is {utc(until.stop_at_ms)}, when it is to stop"
        handled = sum(self._totals[total] for total in _HANDLED)
        if until.max_records is not None and handled >= until.max_records:
            return f"{handled} records are handled, {until.max_records} were asked for"
        return self._at_the_ends(now) if until.end else None

    def _at_the_ends(self, now: float) -> str | None:
        self._rest()
        table = self._assignment.table
        settled = self._member.joined and self._member.stable
        if table or not settled:
            # Anew behind each rebalance, however long it took: a member that was cut off has its partitions again only
            # when others have let go of them, or the group has dropped who had them.
            self._without_since = now
        if not settled:
            return None  # Partitions may be coming, or going.
        if not table:
            late = now - self._without_since >= self._until.idle_patience
            return f"this member has got no partition within {self._until.idle_patience:.0f} s" if late else None
        if any(partition.lost for partition in table.values()):
            return None  # What was handled of them is not committed, and they may come back.
        halted = [tp for tp, partition in table.items() if partition.state is PartitionState.HALTED]
        if not all(p.state is PartitionState.HALTED or is_at_its_end(p) for p in table.values()):
            return None
        self.unfinished = len(halted)
        if halted:
            log.error(f"{len(halted)} partitions are halted before their end: {shown(frozenset(halted))}")
            return "everything else that was assigned is handled up to its end"
        return "everything that was assigned is handled up to its end"

    def _rest(self) -> None:
        """Have partitions that are at their end fetched no more; and those again that rest, and are not at it."""
        resting: list[Partition] = []
        again: list[Partition] = []
        for partition in self._assignment.table.values():
            there = is_at_its_end(partition)
            if there and partition.state in _FETCHED:
                partition.advance(PartitionEvent.PAUSE, f"handled up to its end, offset {partition.stop}")
                resting.append(partition)
            elif partition in self._rested and _rests(partition) and not there:
                again.append(partition)
        self._assignment.drain(resting)
        rested = {p for p in self._rested if self._assignment.table.get(p.tp) is p}
        self._rested = (rested | set(resting)) - set(again)
        self._assignment.resume(again, "goes on to its end")
        if again:
            self._assignment.distribute()


def _log(partition: Partition) -> _Log:
    return partition.tp, partition.topic_id


def _rests(partition: Partition) -> bool:
    """Whether no worker has it. Where it is not at its end then, a person has put it back; or its worker died before it
    reported, and only the brokers know whether its last transaction is committed."""
    return partition.state is PartitionState.PAUSED and partition.worker is None
