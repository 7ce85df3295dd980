"""Handler calls that take too long, and workers that do not answer: the ladder ends both, and the record is blamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock
from kunicorn.pipes.ledger import SlotReading
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.partition import Partition
from kunicorn.supervisor.pool import PING_INTERVAL, Pool
from kunicorn.supervisor.worker import WorkerProcess
from kunicorn.topics import TopicPartition

_INTERVAL = 0.25
_DYING = 60.0
_ANSWERS_LATE = 4
"""So many questions in a row without an answer: the ledger is looked at in place of the last Pong."""
_SILENT = round(45.0 / PING_INTERVAL)
"""So many: nothing of Python runs in it. Stopped, swapped out, or in C code that holds the GIL. Counted in our own
turns, as after a freeze of this process everybody seems to have been silent."""


@dataclass(frozen=True, slots=True)
class InHand:
    """One record, or batch, in a handler's hands; another try of it is another one."""

    grant: int
    offset: int
    taken_ns: int


def began(reading: SlotReading, seen: float | None, now: float) -> float:
    """When the handler got the record that it has in hand now; seconds of `clock.now`. Pure.

    Fast records are taken in hand many at once: only of the first one the ledger tells when. Later ones began no later
    than they were first `seen`.
    """
    if reading.in_hand == reading.hand_offset:
        return reading.hand_since_ns / clock.NANOSECONDS
    return now if seen is None else seen


class Timeouts:
    """Watches over all workers."""

    def __init__(
        self, pool: Pool, fetchers: Fetchers, metrics: Metrics, timeout_ms: Callable[[str], int | None]
    ) -> None:
        """`timeout_ms`: handler_timeout_ms for a topic's records, as it is now; None is no limit."""
        self._timeout_ms = timeout_ms
        self._pool = pool
        self._fetchers = fetchers
        self._metrics = metrics
        self._seen: dict[int, tuple[InHand, float]] = {}
        """By pid: what it has in hand, and since when."""
        self._on_the_ladder: set[int] = set()

    async def watch(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as ladders:
            while True:
                await asyncio.sleep(_INTERVAL)
                processes = [p for p in self._pool.processes() if p.pid not in self._on_the_ladder]
                for process in processes:
                    if (climb := self._climb(process, clock.now())) is not None:
                        self._on_the_ladder.add(process.pid)
                        ladders.create_task(climb)
                living = {process.pid for process in self._pool.processes()}
                self._seen = {pid: seen for pid, seen in self._seen.items() if pid in living}

    def _climb(self, process: WorkerProcess, now: float) -> Coroutine[None, None, None] | None:
        """The ladder to climb for that worker; None if all is well."""
        if process.unanswered >= _SILENT:
            return self._end_silence(process)
        partition = self._busy_with(process)
        limit = self._timeout_ms(partition.tp.topic) if partition is not None else None
        if partition is None or limit is None:
            return None
        hand, since = self._since(process, partition, now)
        if now - since < limit / 1000:
            return None
        return self._end_call(process, partition, hand, now - since, limit)

    def _busy_with(self, process: WorkerProcess) -> Partition | None:
        if process.unanswered >= _ANSWERS_LATE:
            return self._fetchers.in_hand_of(process)
        if process.pong is None or (hand := process.pong.in_hand) is None:
            return None
        partition = self._fetchers.table.get(TopicPartition(hand.topic, hand.partition))
        return partition if partition is not None and partition.worker is process and partition.busy else None

    def _since(self, process: WorkerProcess, partition: Partition, now: float) -> tuple[InHand, float]:
        reading = partition.reading
        hand = InHand(partition.grant, reading.in_hand, reading.hand_since_ns)
        before, at = self._seen.get(process.pid, (None, None))
        seen = self._seen[process.pid] = hand, began(reading, at if hand == before else None, now)
        return seen

    async def _end_call(
        self, process: WorkerProcess, partition: Partition, hand: InHand, age: float, limit: int
    ) -> None:
        """Interrupt the handler, then end the worker; what the record's try is counted as says who ended it."""
        tp, offset = partition.tp, hand.offset

        def over() -> bool:
            if partition.worker is not process or partition.grant != hand.grant:
                return True
            partition.look()
            reading = partition.reading
            return InHand(partition.grant, reading.in_hand, reading.hand_since_ns) != hand

        self._metrics.handler_timeouts.labels(topic=tp.topic).inc()
        reason = f"has had {tp}@{offset} in hand for {age:.1f} s, handler_timeout_ms is {limit}"
        await self._press(process, tp, reason, over, lambda: process.time_out(hand.grant, offset))

    async def _end_silence(self, process: WorkerProcess) -> None:
        busy = self._fetchers.in_hand_of(process)
        held = f" with {busy.tp}@{busy.reading.in_hand} in hand" if busy is not None else ""
        reason = f"has not answered for {_SILENT * PING_INTERVAL:.0f} s{held}"
        await self._press(process, busy.tp if busy is not None else None, reason, lambda: process.unanswered == 0, None)

    async def _press(
        self,
        process: WorkerProcess,
        blamed: TopicPartition | None,
        reason: str,
        until: Callable[[], bool],
        interrupt: Callable[[], None] | None,
    ) -> None:
        process.blamed = blamed
        await self._pool.press(process, reason, until, interrupt)
        # SIGKILL sent is not death: until then nobody climbs again.
        await self._pool.stirring.until(lambda: process.is_dead() or until(), clock.now() + _DYING)
        if not process.is_dead() and until():
            process.blamed = None
        self._on_the_ladder.discard(process.pid)
