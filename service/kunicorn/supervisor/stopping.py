"""How the service is stopped: in order, when told once; at once, when told again or when the order takes too long; and
by the watchdog, when told a third time or when that takes too long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from kunicorn.errors import ExitCode, FatalGroupError
from kunicorn.observe import logs
from kunicorn.settings import GroupSettings
from kunicorn.supervisor.source import Source
from kunicorn.supervisor.watchdog import Watchdog

log = logs.get("kunicorn")

EXIT_GRACE = 5.0
"""Seconds that workers have to exit once nothing is in their hands."""
_SHUT_DOWN = 8.0
"""Seconds from then on until everything else must have ended, killed workers included."""


class Stopping:
    """Caller: signals, a person over HTTP, and the end of a job; all on the loop."""

    def __init__(self, source: Source, group: GroupSettings, end: Callable[[], None], watchdog: Watchdog) -> None:
        """`end` ends the service whatever is still under way."""
        self.begun = False
        self.hurried = False
        """What is in hand is not waited for."""
        self.serving = False
        """Set by the service: partitions are being had, so from now on a stop means to drain."""
        self._asked = 0
        self._source = source
        self._end = end
        self._watchdog = watchdog
        self._budget = (group.drain_timeout_ms + group.commit_timeout_ms) / 1000 + EXIT_GRACE

    def ask(self, why: str) -> None:
        """Drain, commit and leave; the second time, stop at once; the third time, end the process."""
        self._asked += 1
        if self._asked > 2:
            self._watchdog.bite(f"{why} once more: killing the workers and ending the service", _GIVEN_UP)
        elif self.begun:
            self._stop_at_once(f"{why} again: stopping at once, without waiting for what is in hand")
        elif not self.serving:
            log.info(f"{why}: stopping before anything was begun")
            self.begun = True
            self._end()
        else:
            log.info(f"{why}: {self._source.words.leaving}")
            # The group may be in the middle of a rebalance that waits for another member's drain, for minutes.
            self._leave(f"{why} at {socket.gethostname()}", self._budget)

    def ask_once(self, why: str) -> bool:
        """As `ask` the first time; false if a stop has begun already, which is not hurried by this."""
        if self.begun:
            return False
        self.ask(why)
        return True

    def wind_up(self, error: Exception, *, in_hand: bool) -> None:
        """What is fatal has happened: commit and leave, where that can be, so that nothing is repeated and nobody
        waits for our session to time out.

        `in_hand`: whether there is anything to drain or to commit; where there is not, only leaving is waited for.
        """
        if self.begun:
            return  # Its own order goes on, within its own budget.
        if isinstance(error, FatalGroupError) or not self.serving:
            self.begun = True
            self._end()
        else:
            self._leave(f"{type(error).__name__} at {socket.gethostname()}", self._budget if in_hand else EXIT_GRACE)

    def shut_down(self) -> float:
        """Nothing is in hand any more, or is not waited for; returns how many seconds workers have to exit."""
        self.begun = True
        grace = 0.0 if self.hurried else EXIT_GRACE
        self._watchdog.arm(grace + _SHUT_DOWN)
        return grace

    def _leave(self, reason: str, budget: float) -> None:
        self.begun = True
        self._source.leave(reason)
        overdue = f"{self._source.words.overdue} after {budget:.0f} s: stopping nevertheless"
        asyncio.get_running_loop().call_later(budget, self._stop_at_once, overdue)
        self._watchdog.arm(budget + _SHUT_DOWN)

    def _stop_at_once(self, why: str) -> None:
        if self._source.over:
            return
        log.warning(why)
        self.hurried = True
        self._source.hurry()
        self._end()


_GIVEN_UP = ExitCode.NOT_ALL_COMMITTED
