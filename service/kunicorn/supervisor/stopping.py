"""How the service is stopped: in order, when told once; at once, when told again or when the order takes too long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from kunicorn.observe import logs
from kunicorn.settings import GroupSettings
from kunicorn.supervisor.source import Source

log = logs.get("kunicorn")

EXIT_GRACE = 5.0
"""Seconds that workers have to exit once nothing is in their hands."""


class Stopping:
    """Caller: signals, a person over HTTP, and the end of a job; all on the loop."""

    def __init__(self, source: Source, group: GroupSettings, end: Callable[[], None]) -> None:
        """`end` ends the service whatever is still under way."""
        self.begun = False
        self.hurried = False
        """What is in hand is not waited for."""
        self.serving = False
        """Set by the service: partitions are being had, so from now on a stop means to drain."""
        self._source = source
        self._end = end
        self._budget = (group.drain_timeout_ms + group.commit_timeout_ms) / 1000 + EXIT_GRACE

    def ask(self, why: str) -> None:
        """Drain, commit and leave; the second time, stop at once."""
        if self.begun:
            self._stop_at_once(f"{why} again: stopping at once, without waiting for what is in hand")
        elif not self.serving:
            log.info(f"{why}: stopping before anything was begun")
            self.begun = True
            self._end()
        else:
            log.info(f"{why}: {self._source.words.leaving}")
            self.begun = True
            self._source.leave(f"{why} at {socket.gethostname()}")
            # The group may be in the middle of a rebalance that waits for another member's drain, for minutes.
            overdue = f"{self._source.words.overdue} after {self._budget:.0f} s: stopping nevertheless"
            asyncio.get_running_loop().call_later(self._budget, self._stop_at_once, overdue)

    def ask_once(self, why: str) -> bool:
        """As `ask` the first time; false if a stop has begun already, which is not hurried by this."""
        if self.begun:
            return False
        self.ask(why)
        return True

    def _stop_at_once(self, why: str) -> None:
        if self._source.over:
            return
        log.warning(why)
        self.hurried = True
        self._source.hurry()
        self._end()
