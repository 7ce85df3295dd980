"""How late the event loop is: whoever blocks it shows here, before heartbeats are missed."""

from __future__ import annotations

import asyncio

_BEAT = 0.1
_FADING = 0.95
"""Of a delay, at each beat without a longer one: a scrape that comes half a minute later still sees some of it."""


class LoopLag:
    """`seconds`: the worst delay of late."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_BEAT)
            late = loop.time() - began - _BEAT
            self.seconds = max(late, self.seconds * _FADING)
