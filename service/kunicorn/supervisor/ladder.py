"""The ladder for a worker that does not do what it has to: interrupt its handler, abort it, kill it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from kunicorn.observe import logs
from kunicorn.pipes import clock
from kunicorn.supervisor.worker import WorkerProcess

log = logs.get("kunicorn.pool")

_PATIENCE = 1.0
"""Seconds on each rung but the last."""


class Stirring:
    """Tells waiters to look again, whenever a worker has let go of something or died."""

    def __init__(self) -> None:
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """Something has changed."""
        self._stirred.set()

    async def until(self, condition: Callable[[], bool], deadline: float) -> None:
        """Until the condition holds or `deadline` (seconds of `clock.now`)."""
        while not condition() and (left := deadline - clock.now()) > 0:
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stirred.wait()


async def press(
    process: WorkerProcess,
    reason: str,
    until: Callable[[], bool],
    stirring: Stirring,
    interrupt: Callable[[], None] | None = None,
) -> None:
    """Climb until `until` holds. Returns once it does or the kill was sent; SIGKILL sent is not death, that is told by
    the pidfd. `interrupt`: the first rung, if it is not the end of the drain budget."""
    rungs = (
        ("interrupting its handler", interrupt or process.interrupt_handler, _PATIENCE),
        ("aborting it, its stacks follow on stderr", process.abort, _PATIENCE),
        ("killing it and what it started", process.kill, 0.0),
    )
    for what, climb, patience in rungs:
        if until() or process.is_dead():
            break
        log.warning(f"{process} {reason}: {what}", worker=process.number, worker_pid=process.pid)
        process.killed_by_us = reason
        climb()
        await stirring.until(lambda: until() or process.is_dead(), clock.now() + patience)
    if until() and not process.is_dead():
        process.killed_by_us = None
