"""The executor of a plain function with several calls at a time: threads, of which one is started only when all others
are busy.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from kunicorn.errors import ExitCode
from kunicorn.handler.call import OwnLoop, interrupted
from kunicorn.handler.decode.forms import Form, argument_of
from kunicorn.handler.load import DrainDeadline, clear_frames
from kunicorn.observe import logs
from kunicorn.worker.executors.executor import Poisoned, Returned, Supply, Told
from kunicorn.worker.linux import MORE_THREADS
from kunicorn.worker.progress import InFlight, Slots

log = logging.getLogger("kunicorn.worker")

_LAST_LINES_SECONDS = 1.0


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception of that class in another thread, as soon as it runs Python code again.

    A thread that waits in a system call or in C code is not reached before that returns.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def die() -> NoReturn:
    """End the process: an executor's thread met a bug of ours, and records would stay in hand for ever."""
    log.exception("%s broke, the worker ends", threading.current_thread().name)
    logs.close(_LAST_LINES_SECONDS)
    os._exit(ExitCode.BUG)


class ThreadExecutor:
    def __init__(self, handle: Callable[[Any], Any], form: Form, most: int, on_return: Returned) -> None:
        self._handle = handle
        self._form = form
        self._most = most
        self._on_return = on_return
        self._table: Supply
        self._slots: Slots
        self._loop: Told
        self._stirred = threading.Condition()
        self._started = 0
        self._short = False
        """The last one could not be started, and that was told."""
        self._idle = 0
        self._watched = False
        """One of those that are idle looks when the handler's gate opens: the loop may be in a call for long."""
        self._closed = False
        self._calling: dict[InFlight, int] = {}
        """Which thread the handler has a record in."""
        self._interrupting = threading.Lock()
        self._interruptions: dict[InFlight, BaseException] = {}
        self._hooks = OwnLoop()

    def begin(self, table: Supply, slots: Slots, loop: Told) -> None:
        self._table, self._slots, self._loop = table, slots, loop

    def wake(self) -> None:
        with self._stirred:
            waits = not self._watched and self._table.opens_in(self._slots) is not None
            if not waits and not self._table.startable(self._slots):
                return
            if self._idle:
                self._stirred.notify()
            elif self._started < self._most:
                self._start_another()

    def _start_another(self) -> None:
        """Start a thread; where there are some, and no more can be had, go on with those. Raises `RuntimeError` where
        there are none. Holds the lock.

        It counts once it is started: what ended the worker here would do so in its successors, too, and a record that
        was in hand each time would count as one that kills workers.
        """
        try:
            threading.Thread(target=self._serve, name=f"handler-{self._started + 1}", daemon=True).start()
        except RuntimeError as error:
            if not self._started:
                raise
            if not self._short:
                self._short = True
                log.warning(
                    "only %d of %d handler threads could be started: %s. Records are handled with those until there "
                    "is room for more: %s, or lower the concurrency", self._started, self._most, error, MORE_THREADS,
                )  # fmt: skip
        else:
            self._started += 1
            self._short = False

    def interrupt(self, flight: InFlight, error: BaseException, offset: int) -> None:
        with self._interrupting:
            if (thread := self._calling.get(flight)) is not None:
                self._interruptions[flight] = error
                raise_in(thread, type(error))

    def interrupt_hook(self, error: BaseException) -> None:
        self._hooks.interrupt(error)

    def calling(self) -> tuple[InFlight, int] | None:
        me = threading.get_ident()
        found = (flight for flight, thread in list(self._calling.items()) if thread == me)
        return next(((flight, flight.offset) for flight in found), None)

    def run(self, returned: Any) -> Any:
        return self._hooks.run(returned)

    def close(self) -> None:
        with self._stirred:
            self._closed = True
            self._stirred.notify_all()
        self._hooks.close()

    def _serve(self) -> None:
        """Body of one thread."""
        try:
            flight = self._next()
            while flight is not None:
                error = self._call(flight)
                if error is None:
                    following = self._table.finish(flight)
                    self._loop.finished()
                    flight = following or self._next()
                else:
                    clear_frames(error)
                    self._loop.fail(flight, error)
                    error = None  # Else it would stay in memory until the next one fails.
                    flight = self._next()
        except BaseException:
            die()

    def _next(self) -> InFlight | None:
        """Wait for a record; None at the end. Who has begun with another table meanwhile is served from that."""
        if (flight := self._table.start_next(self._slots)) is None:
            with self._stirred:
                self._idle += 1
                while (flight := self._table.start_next(self._slots)) is None:
                    if self._closed:
                        return None
                    self._wait()
                self._idle -= 1
        if self._slots.gate is not None or self._table.startable(self._slots):
            self.wake()
        return flight

    def _wait(self) -> None:
        """Wait for a record that may begin. Only one thread also looks at the gate: else each opening would wake all of
        them."""
        if self._watched or (seconds := self._table.opens_in(self._slots)) is None:
            self._stirred.wait()
            return
        self._watched = True
        self._stirred.wait(seconds)
        self._watched = False

    def _call(self, flight: InFlight) -> BaseException | None:
        """Failure of one call: the exception of the handler, or the one said in its place; None without.

        An interruption is raised in this thread by another one, which finds it in `_calling`. It may hit the inner
        `finally`, too; that takes the lock, which whoever raises holds, so it can hit nothing beyond the outer `try`.
        """
        if flight.poison:
            return Poisoned()
        try:
            try:
                self._calling[flight] = threading.get_ident()
                if flight.tracker.overdue:
                    raise DrainDeadline  # It was started before that, and whoever interrupts did not find it here.
                self._on_return(flight, self._handle(argument_of(self._form, flight.messages[0])))
            finally:
                with self._interrupting:
                    self._calling.pop(flight, None)
        except BaseException as error:
            return interrupted(error, self._interruptions.get(flight))
        finally:
            self._interruptions.pop(flight, None)
        return None
