"""Partitions go from busy workers to idle ones, one at a time: `group.loads` decides, here it is measured and done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from kunicorn.group.loads import Limits, Move, Past, next_move
from kunicorn.observe import logs
from kunicorn.pipes import clock
from kunicorn.settings import WorkerSettings
from kunicorn.supervisor import lag
from kunicorn.supervisor.fetchers import Fetchers
from kunicorn.supervisor.measuring import Measures, settled
from kunicorn.supervisor.pool import Pool
from kunicorn.supervisor.starts import Offsets
from kunicorn.supervisor.worker import WorkerProcess

log = logs.get("kunicorn.sharing")

_LOOKS = 2
"""In an interval."""
_SECONDS_EACH = 0.002
"""Between two looks for each partition, at least: a look at one takes ten microseconds, so that with thousands of
partitions it is half a per cent of a CPU all the same."""
_AT_ONCE = 500
"""Partitions between two turns of the loop."""


class Balancer:
    """Looks at the ledgers; `settings` may be changed at any time."""

    def __init__(
        self,
        fetchers: Fetchers,
        pool: Pool,
        offsets: Offsets,
        settings: WorkerSettings,
        delayed: Collection[str] = (),
    ) -> None:
        """`delayed`: topics whose records wait until they are due."""
        self.steady: Callable[[], bool] = lambda: False
        """Set by the service: no partition is about to come or to go."""
        self.settings = settings
        self._fetchers = fetchers
        self._pool = pool
        self._offsets = offsets
        self._measures = Measures(clock.now(), delayed)
        self._past = Past()
        self._handled = 0

    async def watch(self) -> None:
        """Measure, and move what pays, for ever. Caller: the service, as a task."""
        while True:
            partitions = len(self._fetchers.table)
            await asyncio.sleep(max(self._limits.interval / _LOOKS, _SECONDS_EACH * partitions))
            await self.look(clock.now())

    async def look(self, now: float) -> None:
        """One look at all partitions (microseconds for each), and at most one move.

        Where one seems to pay, the ends of the logs are asked for first: they are known to ten seconds otherwise, in
        which a partition may have been caught up with, or another one may have become the hot one.
        """
        if self.settings.sharing == "count":
            self._fetchers.distribution.share_by_count(self._pool)
        if not self._worked() and self._measures.idle:
            self._measures.begin(self._fetchers.table, now)
            return
        await self._measure(now)
        if self._best(now) is None:
            return
        await lag.ask(self._offsets, self._fetchers)
        move = self._best(now)
        if move is None:
            return
        self._past = self._past.with_move(move.tp, now, self._limits)
        log.info(
            str(move),
            topic=move.tp.topic,
            partition=move.tp.partition,
            reason=move.reason.value,
            load=round(move.demand, 3),
            load_of_giver=round(move.of_giver, 3),
            load_of_receiver=round(move.of_receiver, 3),
        )
        self._fetchers.distribution.move(move)

    async def _measure(self, now: float) -> None:
        table = self._fetchers.table
        self._measures.begin(table, now)
        partitions = list(table.values())
        for first in range(0, len(partitions), _AT_ONCE):
            self._measures.look(partitions[first : first + _AT_ONCE], now)
            await asyncio.sleep(0)

    def _worked(self) -> bool:
        """Whether workers have told of any work since the last look; an idle service is not to be looked through."""
        processes = self._pool.processes()
        before, self._handled = self._handled, sum(process.handled for process in processes)
        in_hand = any(process.pong is not None and process.pong.in_hand is not None for process in processes)
        return in_hand or self._handled != before

    @property
    def _limits(self) -> Limits:
        return Limits(self.settings.sharing_interval_ms / 1000, self.settings.sharing_gap_percent / 100)

    def _best(self, now: float) -> Move | None:
        """What would be moved, as things stand; also tells each partition its demand."""
        processes = self._pool.processes()
        loads = self._measures.loads(self._fetchers.table, _parked(processes), now)
        if self.settings.sharing != "load" or not self._quiet(processes):
            return None
        return next_move(loads, self._pool.expected(), now, self._past, self._limits)

    def _quiet(self, processes: list[WorkerProcess]) -> bool:
        """Neither the group nor the pool is in the middle of something: a move would get in its way."""
        pool = self._pool
        return (
            not pool.stopping
            and self.steady()
            and all(process.takes_partitions for process in processes)
            and all(process.pong is not None and not process.pong.paused_by_lease for process in processes)
            and not any(place.backing_off or place.successor or place.predecessor for place in pool.places)
            and len(processes) >= len(pool.expected())
            and settled(self._fetchers.table.values())
        )


def _parked(processes: list[WorkerProcess]) -> set[int]:
    """Grants of which a record waits for its next try, or for its delivery, as far as workers tell."""
    return {parked.grant for process in processes if process.pong is not None for parked in process.pong.parked}
