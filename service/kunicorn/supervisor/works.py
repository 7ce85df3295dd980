"""What runs for as long as the service does, and what ends it before its time."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

from kunicorn.errors import ServiceError
from kunicorn.observe import logs

log = logs.get("kunicorn")

_AGAIN = 0.25
"""Seconds until a task that still goes on is cancelled again: code that it calls may have taken the cancellation for
something of its own."""


class Works:
    """The service's tasks. One that fails ends the service with its error."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[None]] = []
        self._failed = asyncio.Event()
        self._over = asyncio.Event()
        self.error: Exception | None = None
        """What ends the service, once there is something; it is logged."""

    def start(self, *works: Awaitable[None]) -> None:
        """Have these run until `cancel`."""
        for work in works:
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._done)
            self._tasks.append(task)

    def fatal(self, error: Exception) -> None:
        """End the service with this error, which is logged now; the first one counts, and none once the end was
        called."""
        if self.error is None and not self._over.is_set():
            self.error = error
            tell(error)
            self._failed.set()

    def end(self) -> None:
        """End the service now, whatever is still under way."""
        self._over.set()

    async def until_over(self, serving: Awaitable[None], wind_up: Callable[[Exception], None]) -> None:
        """Wait for what comes first: `serving` is through, or the end was called.

        Something fatal is raised. If it comes while `serving` goes on, `wind_up` is called: it brings `serving` to its
        end, or calls ours.
        """
        over, failed = asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(self._failed.wait())
        task = asyncio.ensure_future(serving)
        task.add_done_callback(self._done)
        self._tasks.append(task)
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
        deadline = asyncio.get_running_loop().time() + within
        while left := [task for task in self._tasks if not task.done()]:
            if asyncio.get_running_loop().time() >= deadline:
                return [_named(task) for task in left]
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=_AGAIN)
        return []

    def _done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def tell(error: Exception) -> None:
    """Log what ends the service: an expected failure by its message, a bug with its traceback."""
    if isinstance(error, ServiceError):
        log.error(str(error))
    else:
        text = "".join(traceback.format_exception(error))
        log.error(f"a bug ends the service: {type(error).__name__}: {error}", exception=text)


def _named(task: asyncio.Future[None]) -> str:
    coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
    return getattr(coroutine, "__qualname__", repr(task))
