"""Executors: who calls the handler where several records are in hand.

- `ThreadExecutor`, for plain functions. A thread is started only when all others are busy.
- `AsyncioExecutor`, for `async def` handlers: one event loop in a thread of its own, which turns as long as the worker
  lives, so that the handler's background tasks do, too.
- `Executors`: those of all handlers of a worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import inspect
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import uvloop

from kunicorn.errors import ExitCode
from kunicorn.handler.call import OwnLoop, awaited, interrupted, uncancel
from kunicorn.handler.decode.forms import Form, argument_of
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.worker.progress import InFlight, Slots

OnReturn = Callable[[InFlight, Any], None]
"""What is done with what the handler returned for a record. Raises the outcome that it may be, and `NotToBeSent`."""


class Poisoned(Exception):
    """Failure of a record that killed workers and is kept from the handler."""


@dataclass(frozen=True, slots=True)
class Work:
    """Callbacks of an executor to its table; each may be called by any of its threads."""

    start_next: Callable[[], InFlight | None]
    startable: Callable[[], bool]
    finish: Callable[[InFlight], InFlight | None]
    """Done; gives the next one, as `start_next`."""
    fail: Callable[[InFlight, BaseException], None]


class Executor(Protocol):
    """Caller of one handler: `ThreadExecutor` or `AsyncioExecutor`. Called by the runner, unless said otherwise."""

    def begin(self, work: Work) -> None:
        """Begin to call the handler with the table's records."""

    def wake(self) -> None:
        """Look for a record to start."""

    def interrupt(self, flight: InFlight, error: BaseException) -> None:
        """Raise `error` in the handler's call with that record, if it still runs. Caller: any thread."""

    def calling(self) -> InFlight | None:
        """Record in whose call the current thread or task is. Caller: any thread. Looks through all running calls."""

    def run(self, returned: Any) -> Any:
        """See `kunicorn.handler.call.Form`."""

    def close(self) -> None:
        """End the threads. Caller: when nothing is in hand and nothing will be."""


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception of that class in another thread, as soon as it runs Python code again.

    A thread that waits in a system call or in C code is not reached before that returns.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def die() -> NoReturn:
    """End the process: an executor's thread met a bug of ours, and records would stay in hand for ever."""
    print(f"worker {os.getpid()}: {threading.current_thread().name} broke, exiting", file=sys.stderr)
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(ExitCode.BUG)


class ThreadExecutor:
    def __init__(self, handle: Callable[[Any], Any], form: Form, most: int, on_return: OnReturn) -> None:
        self._handle = handle
        self._form = form
        self._most = most
        self._on_return = on_return
        self._work: Work
        self._stirred = threading.Condition()
        self._started = 0
        self._idle = 0
        self._closed = False
        self._calling: dict[InFlight, int] = {}
        """Which thread the handler has a record in."""
        self._interrupting = threading.Lock()
        self._interruptions: dict[InFlight, BaseException] = {}
        self._hooks = OwnLoop()

    def begin(self, work: Work) -> None:
        self._work = work

    def wake(self) -> None:
        with self._stirred:
            if not self._work.startable():
                return
            if self._idle:
                self._stirred.notify()
            elif self._started < self._most:
                self._started += 1
                threading.Thread(target=self._serve, name=f"handler-{self._started}", daemon=True).start()

    def interrupt(self, flight: InFlight, error: BaseException) -> None:
        with self._interrupting:
            if (thread := self._calling.get(flight)) is not None:
                self._interruptions[flight] = error
                raise_in(thread, type(error))

    def calling(self) -> InFlight | None:
        me = threading.get_ident()
        return next((flight for flight, thread in list(self._calling.items()) if thread == me), None)

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
                    flight = self._work.finish(flight) or self._next()
                else:
                    self._work.fail(flight, error)
                    flight = self._next()
        except BaseException:
            die()

    def _next(self) -> InFlight | None:
        """Wait for a record; None at the end."""
        work = self._work
        if (flight := work.start_next()) is None:
            with self._stirred:
                self._idle += 1
                while (flight := work.start_next()) is None:
                    if self._closed:
                        return None
                    self._stirred.wait()
                self._idle -= 1
        if work.startable():
            self.wake()
        return flight

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
                self._on_return(flight, self._handle(argument_of(self._form, flight.message)))
            finally:
                with self._interrupting:
                    self._calling.pop(flight, None)
        except BaseException as error:
            return interrupted(error, self._interruptions.get(flight))
        finally:
            self._interruptions.pop(flight, None)
        return None


class Supply(Protocol):
    """The table of partitions, as executors see it."""

    @property
    def full(self) -> bool: ...
    def start_next(self, slots: Slots) -> InFlight | None: ...
    def startable(self, slots: Slots) -> bool: ...
    def finish(self, flight: InFlight) -> InFlight | None: ...


class Executors:
    """All handlers' executors, and what they and the senders tell the loop: records that failed, and that there is room
    again. Caller: the runner, unless said otherwise.
    """

    def __init__(self, executors: Mapping[Slots, Executor]) -> None:
        """`executors`: each handler's, by its slots."""
        self._executors = executors
        self._failed: deque[tuple[InFlight, BaseException]] = deque()
        self._stirred = threading.Event()
        """There is room again, or something has failed."""
        self._waits_for_room = False

    def begin(self, table: Supply) -> None:
        """Begin to call the handlers with the table's records."""
        for slots, executor in self._executors.items():
            executor.begin(self._work(table, slots))

    def wake(self) -> None:
        """Have every executor look for a record to start. Caller: any thread."""
        for executor in self._executors.values():
            executor.wake()

    def interrupt(self, flight: InFlight, error: BaseException) -> None:
        self._executors[flight.tracker.slots].interrupt(flight, error)

    def calling(self) -> InFlight | None:
        calls = (executor.calling() for executor in self._executors.values())
        return next((flight for flight in calls if flight is not None), None)

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """Note a record's failure for the loop. Caller: any thread."""
        self._failed.append((flight, error))
        self._stirred.set()

    @property
    def have_failures(self) -> bool:
        """Whether a record has failed that the loop has not dealt with."""
        return bool(self._failed)

    def failures(self) -> Iterator[tuple[InFlight, BaseException]]:
        """Records that failed, each once."""
        while self._failed:
            yield self._failed.popleft()

    def wait_for_room(self, seconds: float) -> None:
        """Wait so long for a record that is finished where the table was full, or for a failure."""
        self._waits_for_room = True
        self._stirred.wait(seconds)
        self._stirred.clear()
        self._waits_for_room = False

    def _work(self, table: Supply, slots: Slots) -> Work:
        """Callbacks for the executor of these slots."""

        def finish(flight: InFlight) -> InFlight | None:
            following = table.finish(flight)
            if self._waits_for_room and not table.full:
                self._stirred.set()
            return following

        return Work(partial(table.start_next, slots), partial(table.startable, slots), finish, self.fail)


_CLOSING_SECONDS = 1.0
_IN_A_ROW = 50
"""So many records may a handler that never waits keep the loop from everything else."""


class AsyncioExecutor:
    def __init__(self, handle: Callable[[Any], Any], form: Form, on_return: OnReturn) -> None:
        self._handle = handle
        self._form = form
        self._on_return = on_return
        self._work: Work
        self._loop = uvloop.new_event_loop()
        self._tasks: dict[InFlight, asyncio.Task[None]] = {}
        self._interruptions: dict[InFlight, BaseException] = {}
        self._raised_for: InFlight | None = None
        """For whose sake an interruption was raised in the loop's thread last, where it has not come out of a call."""
        self._filling = False
        self._thread = threading.Thread(target=self._turn, name="handlers", daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> None:
        self._work = work

    def wake(self) -> None:
        if not self._filling and self._work.startable():
            self._filling = True
            self._loop.call_soon_threadsafe(self._fill)

    def interrupt(self, flight: InFlight, error: BaseException) -> None:
        """See `Executor`. A handler that waits is cancelled; one that computes holds up the loop, and meets the error
        where it is."""
        task = self._tasks.get(flight)
        if task is None:
            return
        self._interruptions[flight] = error
        if asyncio.current_task(self._loop) is task and self._thread.ident is not None:
            self._raised_for = flight
            raise_in(self._thread.ident, type(error))
        else:
            self._loop.call_soon_threadsafe(self._cancel, flight)

    def calling(self) -> InFlight | None:
        if threading.current_thread() is not self._thread or (me := asyncio.current_task(self._loop)) is None:
            return None
        return next((flight for flight, task in self._tasks.items() if task is me), None)

    def run(self, returned: Any) -> Any:
        if not inspect.isawaitable(returned):
            return returned
        return asyncio.run_coroutine_threadsafe(awaited(returned), self._loop).result()

    def close(self) -> None:
        """See `Executor`. The handler's remaining tasks see their cancellation."""
        done: concurrent.futures.Future[None] = asyncio.run_coroutine_threadsafe(self._cancel_rest(), self._loop)
        done.result(2 * _CLOSING_SECONDS)

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLOSING_SECONDS)

    def _turn(self) -> None:
        """Body of the loop's thread. What a background task raises that is no `Exception` (SystemExit) stops the
        loop.
        """
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue

    def _fill(self) -> None:
        """Start records while there are free slots. Caller: the loop."""
        self._filling = False
        try:
            while (flight := self._work.start_next()) is not None:
                self._loop.create_task(self._serve(flight))
        except BaseException:
            die()

    def _cancel(self, flight: InFlight) -> None:
        """Caller: the loop, so that the task has this record and not the next one."""
        if (task := self._tasks.get(flight)) is not None:
            task.cancel("the handler is interrupted by kunicorn")

    async def _serve(self, flight: InFlight | None) -> None:
        """Body of one task: a record after the other, until there is none. A new task for each costs a third more."""
        task = asyncio.current_task()
        assert task is not None
        served = 0
        while flight is not None:
            served += 1
            if served % _IN_A_ROW == 0:
                await asyncio.sleep(0)
            self._tasks[flight] = task
            error = await self._call(flight, task)
            try:
                del self._tasks[flight]
                if error is None:
                    flight = self._work.finish(flight)
                else:
                    self._work.fail(flight, error)
                    flight = self._work.start_next()
                if self._work.startable():
                    self._fill()
            except BaseException:
                die()

    async def _call(self, flight: InFlight, task: asyncio.Task[None]) -> BaseException | None:
        """Failure of one call: the exception of the handler, or the one said in its place; None without."""
        if flight.poison:
            return Poisoned()
        try:
            self._on_return(flight, await self._handle(argument_of(self._form, flight.message)))
        except BaseException as error:
            return self._met(flight, error)
        finally:
            self._interruptions.pop(flight, None)
            uncancel(task)
        return None

    def _met(self, flight: InFlight, error: BaseException) -> BaseException:
        """Failure of a call that raised this. Caller: the loop.

        Between the look at whose turn it is and the interruption the loop may have gone on to another record, which is
        hit then: that is no failed try, it is handled again, as at a drain deadline.
        """
        meant = self._interruptions.get(flight)
        if isinstance(error, DrainDeadline | HandlerTimeout):
            raised_for, self._raised_for = self._raised_for, None
            if meant is None and raised_for is not None:
                return DrainDeadline()
        return interrupted(error, meant)
