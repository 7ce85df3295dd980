"""The three families of failure, and the exit codes. Small, as it is part of every start.

`ServiceError` and its kinds end the process with their own exit code and a message without a traceback; `PeerError`
means that another process or a broker misbehaved and the caller tries again; anything else is a bug and propagates.
"""

from __future__ import annotations

import contextlib
import signal
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the process; published, so never renumbered."""

    #: Stopped as asked; everything handled is committed. With [assign]: everything in hand is finished. Of a job: its
    #: end, or a limit of its command line, is reached.
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
    #: Of a job: something that was to be handled is not finished.
    NOT_ALL_COMMITTED = 6


FENCED_STATUS = 76
"""Exit status of a worker whose producer the brokers take no more, so that no record is charged with its death. None of
`ExitCode`, which are the service's, and none that handlers are likely to end their process with."""


class ServiceError(Exception):
    """Failure that ends the service with `exit_code`; the message: what happened, to what, and what to do."""

    exit_code = ExitCode.BUG


class ConfigError(ServiceError):
    """Setting that is unknown, of the wrong type or in contradiction to another; or a cluster that does not fit the
    settings.
    """

    exit_code = ExitCode.CONFIGURATION


class HandlerLoadError(ServiceError):
    """Entry point that cannot be imported or is not a usable callable."""

    exit_code = ExitCode.HANDLER


class HandlerSetupError(HandlerLoadError):
    """Handler or middleware that was imported, but whose `__init__` or `setup` raises."""


class FatalGroupError(ServiceError):
    """Refusal by the coordinator that will not pass as long as this member is as it is."""

    exit_code = ExitCode.FATAL_GROUP


class WorkersDyingError(ServiceError):
    """Workers die with nothing in hand: the fault is in the environment, not in a record."""

    exit_code = ExitCode.WORKERS_DYING


class PeerError(Exception):
    """The other side is gone, late or talks nonsense; trying again, perhaps elsewhere, may help."""


def how_it_ended(code: int) -> str:
    """How a process ended, in the words that logs, `/status`, metrics' labels and commands share: `exit 3`, `SIGKILL`,
    `signal 40` for one without a name. `code` as subprocess has it, negative for a signal.
    """
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
