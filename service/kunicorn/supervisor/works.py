"""What runs for as long as the service does, and what ends it before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Works:
    """The service's tasks. One that fails ends the service with its error."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[None]] = []
        self._over = asyncio.Event()
        self._error: Exception | None = None

    def start(self, *works: Awaitable[None]) -> None:
        """Have these run until `cancel`."""
        for work in works:
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._done)
            self._tasks.append(task)

    def fatal(self, error: Exception) -> None:
        """End the service with this error; the first one counts, and none once the end was called."""
        if not self._over.is_set():
            self._error = error
            self._over.set()

    def end(self) -> None:
        """End the service now, whatever is still under way."""
        self._over.set()

    async def until_over(self, serving: Awaitable[None]) -> None:
        """Wait for what comes first: `serving` is through, the end was called, or something fatal, which is raised."""
        over = asyncio.ensure_future(self._over.wait())
        task = asyncio.ensure_future(serving)
        self._tasks.append(task)
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if task.done():
            task.result()
        if self._error is not None:
            raise self._error

    async def cancel(self) -> None:
        """Cancel everything, and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal(error if isinstance(error, Exception) else RuntimeError(repr(error)))
