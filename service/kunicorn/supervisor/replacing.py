"""A worker hands over to its successor inside the pod: no rebalance, nothing handled twice (invariant 6)."""

from __future__ import annotations

import asyncio

from kunicorn.observe import logs
from kunicorn.observe.metrics import Metrics
from kunicorn.pipes import clock
from kunicorn.pipes.messages import Drain
from kunicorn.supervisor.listener import PoolListener
from kunicorn.supervisor.place import Place
from kunicorn.supervisor.pool import Blueprint, Pool
from kunicorn.supervisor.template import TemplateDied
from kunicorn.supervisor.worker import WorkerProcess, WorkerState

log = logs.get("kunicorn.pool")

_REAPING = 2.0


class ReplacementFailed(Exception):
    """The successor did not get ready; the worker that was to be replaced goes on."""


class Replacer:
    """Replaces workers in order, one at a time."""

    def __init__(self, pool: Pool, listener: PoolListener, metrics: Metrics, drain_seconds: float) -> None:
        """`drain_seconds`: how long a worker that is replaced may finish what it has in hand."""
        self.pool = pool
        self._listener = listener
        self._metrics = metrics
        self._drain_seconds = drain_seconds
        self._one_at_a_time = asyncio.Lock()

    async def replace(self, place: Place, why: str, reason: str, blueprint: Blueprint | None = None) -> None:
        """Start a successor; once it is ready, let the place's worker hand over to it and exit. Raises
        `ReplacementFailed`.

        The successor comes first, although it needs memory for two: its handler is set up and its client connected
        when it gets the partitions, so that each pauses for no longer than its record in hand. Were they given to the
        other workers meanwhile, each would move twice. One at a time: whoever comes second waits here. `reason` is
        the metric's label.
        """
        async with self._one_at_a_time:
            if place.process is None or self.pool.stopping:
                return
            successor = await self._start_successor(place, blueprint or self.pool.blueprint)
            predecessor = place.promote() if place.successor is successor else None
            self._listener.worker_ready(successor)
            if predecessor is None:
                return
            self._metrics.worker_recycles.labels(reason=reason).inc()
            await self._retire(predecessor, why)

    async def _start_successor(self, place: Place, blueprint: Blueprint) -> WorkerProcess:
        try:
            successor = await self.pool.spawn(place, blueprint, on_trial=True)
        except (TemplateDied, OSError) as error:
            raise ReplacementFailed(f"its successor could not be forked: {error}") from error
        await self.pool.stirring.until(successor.settled.is_set, clock.now() + blueprint.start_seconds)
        if not successor.settled.is_set():
            successor.killed_by_us = f"was not ready within {blueprint.start_seconds:.0f} s"
            successor.kill()
            raise ReplacementFailed(f"{successor} {successor.killed_by_us}")
        if successor.is_dead():
            raise ReplacementFailed(successor.refusal or f"{successor} died before it was ready")
        return successor

    async def _retire(self, process: WorkerProcess, why: str) -> None:
        log.info(f"{process} hands over to its successor, {why}", worker=process.number, worker_pid=process.pid)
        process.retired, process.state = why, WorkerState.DRAINING
        self._listener.worker_retires(process)
        deadline = clock.now() + self._drain_seconds
        process.send(Drain(deadline))
        await self.pool.stirring.until(process.is_dead, deadline)
        await self.pool.press(process, "did not drain within drain_timeout_ms to be replaced", process.is_dead)
        await self.pool.stirring.until(process.is_dead, clock.now() + _REAPING)
