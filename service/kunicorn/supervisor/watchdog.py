"""Ends a process whose end takes too long, whatever it is that does not end: a task, a thread, the loop itself."""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable

from kunicorn.errors import ExitCode
from kunicorn.pipes import clock

_STDERR = 2


class Watchdog:
    """A thread of its own from the first `arm` on. Nothing disarms it but the end of the process."""

    def __init__(self, last_words: Callable[[str], None], kill_workers: Callable[[], None]) -> None:
        """`last_words` logs a line and waits until it is written; both run on the thread that ends the process."""
        self.exit_code: ExitCode | None = None
        """What the process ends with, once something is known to end it."""
        self._last_words = last_words
        self._kill_workers = kill_workers
        self._deadline = float("inf")
        self._moved = threading.Event()
        self._thread: threading.Thread | None = None

    def arm(self, seconds: float) -> None:
        """End the process in so many seconds, if it is still there then; an earlier deadline stays."""
        self._deadline = min(self._deadline, clock.now() + seconds)
        self._moved.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def bite(self, why: str, otherwise: ExitCode = ExitCode.BUG) -> None:
        """End the process now, its workers killed: with `exit_code` if that is known, else with `otherwise`."""
        try:
            self._last_words(f"{why}; what every thread is at follows on stderr")
            faulthandler.dump_traceback(file=_STDERR, all_threads=True)
            self._kill_workers()
        finally:
            os._exit(otherwise if self.exit_code is None else self.exit_code)

    def _watch(self) -> None:
        while True:
            self._moved.clear()  # before the look at the deadline, which `arm` moves before it sets this
            left = self._deadline - clock.now()
            if left <= 0:
                break
            self._moved.wait(left)
        self.bite("the service has not stopped in time: killing its workers and ending it")
