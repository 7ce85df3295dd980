"""The stop of the service, and the watchdog that ends a process that does not stop.

`Stopping`: the first signal drains, commits and leaves; a second one, or an orderly stop that takes too long, stops at
once; a third one, or a stop at once that takes too long, leaves it to the watchdog. Jobs that end, people over HTTP and
errors begin an orderly stop, too: a signal behind these is the first one still.

`Watchdog` ends a process whose end takes too long, whatever does not end: a task, a thread, the loop itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from kunicorn.errors import ExitCode, FatalGroupError
from kunicorn.linux import memory_file
from kunicorn.observe import logs
from kunicorn.settings import GroupSettings
from kunicorn.supervisor.membership.source import AssignmentSource

_STDERR = 2
_STACKS = 1.0
"""Seconds for all that the process has to say of its threads."""


class Watchdog:
    """The thread that ends the process at a deadline. Nothing disarms it."""

    def __init__(self, last_words: Callable[[str], None], kill_workers: Callable[[], None]) -> None:
        """`last_words` logs a line and waits until it is written; both run on the thread that ends the process."""
        self._exit_code: ExitCode | None = None
        self._last_words = last_words
        self._kill_workers = kill_workers
        self._deadline: float | None = None
        self._moved = threading.Event()

    def start(self) -> None:
        """Start the thread. Not by the first `arm`: a stop for want of threads would find none. Raises `RuntimeError`
        where none is to be had now."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def arm(self, seconds: float) -> None:
        """End the process in so many seconds, if it is still there then; an earlier deadline stays."""
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        self._moved.set()

    def end_with(self, exit_code: ExitCode) -> None:
        """Set the exit code that the process ends with, whoever ends it."""
        self._exit_code = exit_code

    def bite(self, why: str, otherwise: ExitCode = ExitCode.BUG) -> None:
        """End the process now, its workers killed: as `end_with` has it, else with `otherwise`.

        Waits for nobody who reads the output, beyond a second or two.
        """
        try:
            for step in (
                self._kill_workers,
                partial(self._last_words, f"{why}; what every thread is at follows on stderr"),
                _say_stacks,
            ):
                with contextlib.suppress(Exception):
                    step()
        finally:
            os._exit(otherwise if self._exit_code is None else self._exit_code)

    def _watch(self) -> None:
        while True:
            self._moved.clear()  # before the look at the deadline, which `arm` moves before it sets this
            left = self._left()
            if left is not None and left <= 0:
                break
            self._moved.wait(left)
        self.bite("the service has not stopped in time: killing its workers and ending it")

    def _left(self) -> float | None:
        # By the loop's clock, as the stop's own time is: suspended for a while, neither has been used up.
        return None if self._deadline is None else self._deadline - time.monotonic()


def _say_stacks() -> None:
    """Write to standard error what every thread is at, as much of it as goes there within a second.

    Not by faulthandler itself: where nobody reads, it would stay in write(2) with the GIL, and keep the process alive.
    """
    with os.fdopen(memory_file("stacks"), "w+b") as kept:
        faulthandler.dump_traceback(kept, all_threads=True)
        kept.seek(0)
        stacks = kept.read()
    was, due = os.get_blocking(_STDERR), time.monotonic() + _STACKS
    poll = select.poll()
    poll.register(_STDERR, select.POLLOUT)
    # Whoever else has this pipe or terminal gets it back as it was.
    os.set_blocking(_STDERR, False)
    try:
        while stacks and poll.poll(max(0.0, due - time.monotonic()) * 1000):
            with contextlib.suppress(BlockingIOError):
                stacks = stacks[os.write(_STDERR, stacks) :]
    finally:
        os.set_blocking(_STDERR, was)


log = logs.get("kunicorn")

EXIT_GRACE = 5.0
"""Seconds that workers have to exit once nothing is in their hands."""
_SHUT_DOWN = 3.0
"""Seconds from then on until everything else must have ended, killed workers included and the last export apart."""
_EXPORT = 5.0
_EXPORT_OF_A_JOB = 30.0
"""Seconds for the last export of metrics: whoever sent a signal waits to kill us, whoever waits for a job does not."""


class Stopping:
    """The stop of the service. Caller: signals, a person over HTTP, and the end of a job; all on the loop."""

    def __init__(
        self, source: AssignmentSource, group: GroupSettings, end: Callable[[], None], watchdog: Watchdog
    ) -> None:
        """`end` ends the service whatever is still under way."""
        self.begun = False
        self.hurried = False
        """What is in hand is not waited for."""
        self.export_within = _EXPORT
        """Seconds that the last export of metrics may take, the loading of its modules included."""
        self.serving = False
        """Partitions are being had, so a stop means to drain."""
        self._signals = 0
        self._source = source
        self._end = end
        self._watchdog = watchdog
        self._budget = (group.drain_timeout_ms + group.commit_timeout_ms) / 1000 + EXIT_GRACE

    def begin_serving(self) -> None:
        """From now on, a stop means to drain. Caller: the service."""
        self.serving = True

    def request(self, why: str) -> None:
        """Drain, commit and leave; the second time, stop at once; the third time, end the process. Caller: signals."""
        self._signals += 1
        if self._signals > 2:
            self._watchdog.bite(f"{why} once more: killing the workers and ending the service", _GIVEN_UP)
        elif self._signals == 2:
            self._stop_at_once(f"{why} again: stopping at once, without waiting for what is in hand")
        elif self.begun:
            log.info(f"{why}: the stop that has begun goes on; once more stops at once")
            self.export_within = _EXPORT
        else:
            self._begin(why)

    def _begin(self, why: str) -> None:
        if not self.serving:
            log.info(f"{why}: stopping before anything was begun")
            self.begun = True
            self._end()
        else:
            log.info(f"{why}: {self._source.stop_messages.leaving}")
            # The group may be in the middle of a rebalance that waits for another member's drain, for minutes.
            self._leave(f"{why} at {socket.gethostname()}", self._budget)

    def finish(self, why: str) -> bool:
        """Stop because the work is done; false if a stop has begun already. Nobody waits to kill us."""
        if self.begun:
            return False
        self.export_within = _EXPORT_OF_A_JOB
        self._begin(why)
        return True

    def drain(self) -> bool:
        """Drain, commit and leave, for a person over HTTP; false if a stop has begun already: only signals hurry it."""
        if self.begun:
            return False
        self._begin("asked for over HTTP")
        return True

    def why_no_reload(self) -> str:
        """Why workers cannot be replaced now, as "stops"; empty where they can."""
        if self.begun:
            return "stops"
        return "" if self.serving else "has not begun yet"

    def wind_up(self, error: Exception, *, in_hand: bool) -> None:
        """Commit and leave after an error that ends the service, where that is possible, so that nothing is repeated
        and no member waits for our session to time out.

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
        """Begin the end of the process: records in hand are done, or not waited for. Returns how many seconds workers
        have to exit."""
        self.begun = True
        grace = 0.0 if self.hurried else EXIT_GRACE
        self._watchdog.arm(grace + _SHUT_DOWN + self.export_within)
        return grace

    def _leave(self, reason: str, budget: float) -> None:
        self.begun = True
        self._source.leave(reason)
        overdue = f"{self._source.stop_messages.overdue} after {budget:.0f} s: stopping nevertheless"
        asyncio.get_running_loop().call_later(budget, self._stop_at_once, overdue)
        self._watchdog.arm(budget + _SHUT_DOWN + self.export_within)

    def _stop_at_once(self, why: str) -> None:
        if self._source.over:
            return
        log.warning(why)
        self.hurried = True
        self.export_within = _EXPORT
        self._source.stop_at_once()
        self._end()


_GIVEN_UP = ExitCode.NOT_ALL_COMMITTED
