"""How a part of the supervisor waits for what another one brings about. Small, as it lies below all parts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from kunicorn.ipc import clock

_FOREVER = float("inf")


class Notifier:
    """A condition variable without a lock: waiters look at their condition again whenever they are notified."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have every waiter look again."""
        self._changed.set()

    async def wait(self, condition: Callable[[], bool], deadline: float = _FOREVER) -> bool:
        """Whether `condition` came true before `deadline` (seconds of `clock.now`)."""
        while not condition():
            left = deadline - clock.now()
            if left <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left == _FOREVER else left):
                    await self._changed.wait()
        return True
