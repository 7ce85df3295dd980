"""The watchdog of workers: handler calls that take too long and workers that do not answer meet the escalation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kunicorn.ipc import clock
from kunicorn.ipc.ledger import SlotReading
from kunicorn.observe import catalogue
from kunicorn.observe.metrics import Metrics
from kunicorn.supervisor.facts import SettingsInForce
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.pool import PING_INTERVAL, Pool
from kunicorn.supervisor.workers.process import WorkerProcess

_INTERVAL = 0.25
_DYING = 60.0
_ANSWERS_LATE = 4
"""So many questions in a row without an answer: a last Pong that had nothing in hand says nothing any more."""
_SILENT = round(45.0 / PING_INTERVAL)
"""So many: nothing of Python runs in it. Stopped, swapped out, or in C code that holds the GIL. Counted in our own
turns, as after a freeze of this process everybody seems to have been silent."""


@dataclass(frozen=True, slots=True)
class InHand:
    """One try of a record, or batch, that a handler has in hand."""

    grant: int
    offset: int
    taken_ns: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The record of one partition that a handler has had for the longest, and for longer than `limit` ms."""

    partition: Partition
    hand: InHand
    age: float
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.partition.tp}@{self.hand.offset} in hand for {self.age:.1f} s, handler_timeout_ms is {self.limit}"
        )

    def time_out(self, process: WorkerProcess) -> None:
        """Have the handler interrupted in it, and in whatever else of the partition is overdue."""
        overdue_ns = clock.now_ns() - self.limit * clock.NANOSECONDS // 1000
        process.time_out(self.hand.grant, self.hand.offset, overdue_ns)

    def is_over(self, process: WorkerProcess) -> bool:
        """Whether the handler has let go of it. Looks into the ledger."""
        if self.partition.worker is not process or self.partition.grant != self.hand.grant:
            return True
        self.partition.read_ledger()
        return _in_hand(self.partition) != self.hand


def _in_hand(partition: Partition) -> InHand:
    reading = partition.reading
    return InHand(partition.grant, reading.in_hand, reading.hand_since_ns)


def began(reading: SlotReading, seen: float | None, now: float) -> float:
    """When the handler got the record that it has in hand now; seconds of `clock.now`. Pure.

    Fast records are taken in hand many at once: only of the first one the ledger tells when. Later ones began no later
    than they were first `seen`.
    """
    if reading.in_hand == reading.hand_offset:
        return reading.hand_since_ns / clock.NANOSECONDS
    return now if seen is None else seen


class Timeouts:
    """Watches all workers for handler time-outs and silence."""

    def __init__(self, pool: Pool, assignment: Assignment, in_force: SettingsInForce, metrics: Metrics) -> None:
        self._in_force = in_force
        self._pool = pool
        self._assignment = assignment
        self._metrics = metrics
        self._seen: dict[int, tuple[InHand, float]] = {}
        """By grant: what is in hand of it, and since when."""
        self._escalating: set[int] = set()

    async def watch(self) -> None:
        """Look at all workers four times a second, for ever."""
        async with asyncio.TaskGroup() as ladders:
            while True:
                await asyncio.sleep(_INTERVAL)
                now = clock.now()
                before, self._seen = self._seen, {}
                for process in self._pool.processes():
                    overdue = self._overdue(process, before, now)
                    if process.pid in self._escalating:
                        continue
                    if (climb := self._escalation(process, overdue)) is not None:
                        self._escalating.add(process.pid)
                        ladders.create_task(climb)

    def _escalation(self, process: WorkerProcess, overdue: Sequence[Overdue]) -> Coroutine[None, None, None] | None:
        """The escalation that the worker needs; None if all is well."""
        if process.unanswered >= _SILENT:
            return self._end_silence(process)
        return self._end_calls(process, overdue) if overdue else None

    def _overdue(self, process: WorkerProcess, before: Mapping[int, tuple[InHand, float]], now: float) -> list[Overdue]:
        """All of a worker's calls that take too long, the oldest first. `before`: what was seen the last time."""
        # One that has never answered may be held up by its first record.
        idle = process.pong is None or process.pong.in_hand is None
        if idle and process.unanswered < _ANSWERS_LATE:
            return []
        found = []
        for partition, limit in self._limited(process):
            hand = _in_hand(partition)
            seen, at = before.get(hand.grant, (None, None))
            _, since = self._seen[hand.grant] = hand, began(partition.reading, at if hand == seen else None, now)
            if now - since >= limit / 1000:
                found.append(Overdue(partition, hand, now - since, limit))
        return sorted(found, key=lambda each: -each.age)

    def _limited(self, process: WorkerProcess) -> Iterator[tuple[Partition, int]]:
        """Its partitions of which something is in hand that may take only so long."""
        limits: dict[str, int | None] = {}
        for partition in self._assignment.held_by(process):
            topic = partition.tp.topic
            if topic not in limits:
                limits[topic] = self._in_force.handling(topic).timeout_ms
            limit = limits[topic]
            if limit is not None and process.ledger.is_in_hand(partition.slot) and partition.busy:
                yield partition, limit

    async def _end_calls(self, process: WorkerProcess, overdue: Sequence[Overdue]) -> None:
        """Interrupt the handler in all of them, then end the worker; what a record's try is counted as says who ended
        it."""

        def over() -> bool:
            left = [each for each in overdue if not each.is_over(process)]
            process.blame(each.partition.tp for each in left)
            return not left

        def interrupt() -> None:
            for each in overdue:
                each.time_out(process)

        for each in overdue:
            self._metrics.count(catalogue.HANDLER_TIMEOUTS, topic=each.partition.tp.topic)
        beside = f", and records of {len(overdue) - 1} more partitions for too long" if len(overdue) > 1 else ""
        await self._escalate(process, f"has had {overdue[0]}{beside}", over, interrupt)

    async def _end_silence(self, process: WorkerProcess) -> None:
        busy = self._assignment.in_hand_of(process)
        held = f" with {busy.tp}@{busy.reading.in_hand} in hand" if busy is not None else ""
        reason = f"has not answered for {_SILENT * PING_INTERVAL:.0f} s{held}"
        process.blame([busy.tp] if busy is not None else [])
        await self._escalate(process, reason, lambda: process.unanswered == 0, None)

    async def _escalate(
        self,
        process: WorkerProcess,
        reason: str,
        until: Callable[[], bool],
        interrupt: Callable[[], None] | None,
    ) -> None:
        await self._pool.escalate(process, reason, until, interrupt)
        # SIGKILL sent is not death: until then nobody climbs again.
        await self._pool.changed.wait(lambda: process.is_dead() or until(), clock.now() + _DYING)
        if not process.is_dead() and until():
            process.blame(())
        self._escalating.discard(process.pid)
