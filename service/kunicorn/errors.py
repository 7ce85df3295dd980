"""How things fail and end, and how long to wait before the next try. Light: part of every start.

The three families of failure, and the exit code each ends in.

`ServiceError` and its kinds end the process with their own exit code and a message without a traceback;
`PeerError` means that another process or a broker misbehaved and the caller tries again;
anything else is a bug and propagates.

How a process ended, in the words that logs, `/status`, metrics' labels and commands share. Pure.

Exponential backoff with jitter; pure, the caller waits.
"""

from __future__ import annotations

import contextlib
import signal
from enum import IntEnum
from random import Random


class ExitCode(IntEnum):
    """What the process tells whoever started it; published, so never renumbered."""

    #: Stopped as asked; everything handled is committed. With [assign]: everything in hand is finished.
    CLEAN = 0
    #: A bug of ours; the traceback is in the log.
    BUG = 1
    #: A setting is wrong; nothing was started.
    CONFIGURATION = 2
    #: The handler's entry point cannot be loaded.
    HANDLER = 3
    #: The group refuses this member for good: fenced, not authorised, incompatible.
    FATAL_GROUP = 4
    #: Workers die again and again with nothing in hand.
    WORKERS_DYING = 5
    #: Stopped as asked, but something handled could not be committed: it will be handled again.
    #: With [assign]: something that was to be handled is not finished.
    NOT_ALL_COMMITTED = 6


class ServiceError(Exception):
    """Ends the service with `exit_code` and this message: what happened, to what, and what to do."""

    exit_code = ExitCode.BUG


class ConfigError(ServiceError):
    """A setting is unknown, of the wrong type or in contradiction to another."""

    exit_code = ExitCode.CONFIGURATION


class HandlerLoadError(ServiceError):
    """The handler's entry point cannot be imported or is not a usable callable."""

    exit_code = ExitCode.HANDLER


class FatalGroupError(ServiceError):
    """The coordinator will never accept this member as it is."""

    exit_code = ExitCode.FATAL_GROUP


class WorkersDyingError(ServiceError):
    """Workers die with nothing in hand: the fault is in the environment, not in a record."""

    exit_code = ExitCode.WORKERS_DYING


class PeerError(Exception):
    """The other side is gone, late or talks nonsense; trying again, perhaps elsewhere, may help."""


def how_it_ended(code: int) -> str:
    """`exit 3`, `SIGKILL`, `signal 40` for one without a name; `code` as subprocess has it, negative for a signal."""
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


_FACTOR = 2.0
_JITTER = 0.2
"""Kafka's own (KIP-144, KIP-580): without it, everybody that lost the same broker comes back at the same instant."""


class Backoff:
    """Delays in seconds: `initial`, doubled each time up to `maximum`, each ±20 %."""

    def __init__(self, initial: float, maximum: float, rng: Random) -> None:
        self._initial = initial
        self._maximum = maximum
        self._rng = rng
        self._delay = initial

    def next(self) -> float:
        """The seconds to wait before the next try."""
        delay = self._delay
        self._delay = min(delay * _FACTOR, self._maximum)
        return delay * self._rng.uniform(1 - _JITTER, 1 + _JITTER)

    def reset(self) -> None:
        """Something worked: the next failure starts over with the initial delay."""
        self._delay = self._initial
