"""Who calls the handler where several records are in hand: threads for a plain function, tasks for an async one."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from kunicorn.errors import ExitCode
from kunicorn.worker.flight import Flight

Take = Callable[[Flight, Any], None]
"""What is done with what the handler returned for a record. Raises the outcome that it may be, and `NotToBeSent`."""


class Poisoned(Exception):
    """The record killed workers and is kept from the handler."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a crew asks and tells; every part may be called by any of its threads."""

    start_next: Callable[[], Flight | None]
    startable: Callable[[], bool]
    finish: Callable[[Flight], Flight | None]
    """Done; gives the next one, as `start_next`."""
    fail: Callable[[Flight, BaseException], None]


class Crew(Protocol):
    """One of `threads.Threads` and `tasks.Tasks`. Caller: the runner, if nothing else is said."""

    def begin(self, work: Work) -> None:
        """Call the handler with what there is from here on."""

    def wake(self) -> None:
        """There may be something to start."""

    def interrupt(self, flight: Flight, error: BaseException) -> None:
        """Raise `error` in the handler's call with that record, if it goes on. Caller: any thread."""

    def calling(self) -> Flight | None:
        """The record in whose call the code is that asks: in that thread, or that task. Caller: anybody. Looks through
        all calls that go on."""

    def run(self, returned: Any) -> Any:
        """See `kunicorn.handling.calls.Form`."""

    def close(self) -> None:
        """Nothing is in hand and nothing will be."""


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception of that class in another thread, as soon as it runs Python code again.

    A thread that waits in a system call or in C code is not reached before that returns.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def die() -> NoReturn:
    """A crew's thread met a bug of ours: without it records would stay in hand for ever."""
    print(f"worker {os.getpid()}: {threading.current_thread().name} broke, exiting", file=sys.stderr)
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(ExitCode.BUG)
