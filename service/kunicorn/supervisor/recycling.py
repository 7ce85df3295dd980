"""Workers that have worked for long enough are replaced, one at a time: handlers leak, and caches grow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kunicorn.observe import logs
from kunicorn.pipes import clock
from kunicorn.settings import WorkerSettings
from kunicorn.supervisor.pool import PING_INTERVAL, Pool
from kunicorn.supervisor.replacing import ReplacementFailed, Replacer
from kunicorn.supervisor.worker import WorkerProcess, WorkerState

log = logs.get("kunicorn.recycling")

_JITTER = 0.1
"""Workers that were started together do not reach their age together: each a little before, up to this share."""
_YOUNG = 5.0
"""Seconds without recycling by memory: where a fresh worker is above max_rss_mb already, the next one will be, too."""
_AFTER_FAILURE = 10.0
_BYTES_PER_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Due:
    """Why a worker is to be replaced: the metric's label, and words."""

    reason: str
    words: str


def due(limits: WorkerSettings, *, handled: int, age: float, rss_bytes: int, jitter: float) -> Due | None:
    """Whether a worker has worked for long enough. Pure.

    `age`: seconds since its start. `jitter`: from [0, 1), drawn once for each worker.
    """
    if limits.max_records is not None and handled >= limits.max_records:
        return Due("records", f"{handled} records (max_records = {limits.max_records})")
    if limits.max_age_s is not None and age >= limits.max_age_s * (1 - _JITTER * jitter):
        return Due("age", f"{age:.0f} s old (max_age_s = {limits.max_age_s})")
    if limits.max_rss_mb is not None and age >= _YOUNG and rss_bytes > limits.max_rss_mb * _BYTES_PER_MB:
        return Due("rss", f"{rss_bytes // _BYTES_PER_MB} MB resident (max_rss_mb = {limits.max_rss_mb})")
    return None


class Recycler:
    """Looks at the workers' evidence; `limits` may be changed at any time."""

    def __init__(self, pool: Pool, replacer: Replacer, limits: WorkerSettings) -> None:
        self.limits = limits
        self._pool = pool
        self._replacer = replacer

    async def watch(self) -> None:
        """Replace whoever is due, one at a time, for ever. Where no successor starts, the worker goes on."""
        while True:
            await asyncio.sleep(PING_INTERVAL)
            for place in self._pool.places:
                if place.process is None or (found := self._due(place.process)) is None:
                    continue
                try:
                    await self._replacer.replace(place, f"recycled: {found.words}", found.reason)
                except ReplacementFailed as error:
                    log.error(f"{place.process} goes on although it is due to be recycled: {error}")
                    await asyncio.sleep(_AFTER_FAILURE)

    def _due(self, process: WorkerProcess) -> Due | None:
        if process.state is not WorkerState.READY or process.pong is None:
            return None
        return due(
            self.limits,
            handled=process.handled,
            age=clock.now() - process.started_at,
            rss_bytes=process.pong.rss_bytes,
            jitter=process.jitter,
        )
