"""SIGINT and SIGTERM: the first ends a job after the round it is in, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kunicorn.errors import ExitCode, ServiceError


class StoppedAtOnce(ServiceError):
    """The second signal: the round underway does not count."""

    exit_code = ExitCode.NOT_ALL_COMMITTED


class Stop:
    """Whether somebody asked for it."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        if self.asked:
            raise StoppedAtOnce("stopped at once: the round underway does not count, its records are handled again")
        self.asked = True


@contextmanager
def stopping() -> Iterator[Stop]:
    """Signals ask for a stop while the block runs. Caller: the driver's main thread."""
    stop = Stop()
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
