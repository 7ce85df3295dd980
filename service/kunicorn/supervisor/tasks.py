"""Tasks of the supervisor: `ServiceTasks` owns every one, and the first that raises ends the service. Small, as it lies
below all parts.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from kunicorn.errors import ServiceError
from kunicorn.ipc import clock
from kunicorn.observe import logs

log = logs.get("kunicorn")

_CANCEL_AGAIN = 0.25
"""Seconds until a task that still goes on is cancelled again: code that it calls may have taken the cancellation for
something of its own."""


class ServiceTasks:
    """The service's tasks. The first one that raises ends the service with its error.

    No `asyncio.TaskGroup`: at the first error that cancels every other task, and with them the drain and its commits.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        """What ends the service, once there is something; it is logged."""
        self._running: set[asyncio.Task[Any]] = set()
        self._failed = asyncio.Event()
        self._over = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run `work` as a task until `cancel`; its starter may cancel it before. What it returns counts for nothing."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def end(self) -> None:
        """End the service now, whatever is still under way; no error counts any more."""
        self._over.set()

    async def until_over(self, serving: Coroutine[Any, Any, None], wind_up: Callable[[Exception], None]) -> None:
        """Run `serving` to its end, or until `end`; raise the first error of any task.

        An error that comes while `serving` goes on is told to `wind_up`, which brings `serving` to its end in order, or
        calls `end`.
        """
        task = self.start(serving)
        over, failed = asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({task, over, failed}, return_when=asyncio.FIRST_COMPLETED)
            if self.error is not None and not task.done():
                wind_up(self.error)
                await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            failed.cancel()
        if self.error is not None:
            raise self.error
        if task.done():
            task.result()

    async def cancel(self, within: float) -> list[str]:
        """Cancel everything, again and again, until it has ended; the names of what has not within so many seconds."""
        deadline = clock.now() + within
        while left := list(self._running):
            if clock.now() >= deadline:
                return [getattr(task.get_coro(), "__qualname__", repr(task)) for task in left]
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_CANCEL_AGAIN)
        return []

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _fail(self, error: Exception) -> None:
        if self.error is None and not self._over.is_set():
            self.error = error
            log_failure(error)
            self._failed.set()


def log_failure(error: Exception) -> None:
    """Log what ends the service: an expected failure by its message, a bug with its traceback."""
    if isinstance(error, ServiceError):
        log.error(str(error))
    else:
        text = "".join(traceback.format_exception(error))
        log.error(f"a bug ends the service: {type(error).__name__}: {error}", exception=text)
