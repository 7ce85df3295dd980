"""Who calls the handler where several records are in hand.

- `Threads`, for plain functions. A thread is started only when all others are busy.
- `Tasks`, for `async def` handlers: one event loop in a thread of its own, which turns as long as the worker lives, so
  that the handler's background tasks do, too.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import uvloop

from kunicorn.errors import ExitCode
from kunicorn.handler.call import OwnLoop, awaited, interrupted, uncancel
from kunicorn.handler.decode.forms import Form, argument_of
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.worker.progress import Flight

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
        """See `kunicorn.handler.call.Form`."""

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


class Threads:
    """See `Crew`."""

    def __init__(self, handle: Callable[[Any], Any], form: Form, most: int, take: Take) -> None:
        self._handle = handle
        self._form = form
        self._most = most
        self._take = take
        self._work: Work
        self._stirred = threading.Condition()
        self._started = 0
        self._idle = 0
        self._closed = False
        self._calling: dict[Flight, int] = {}
        """Which thread the handler has a record in."""
        self._interrupting = threading.Lock()
        self._interruptions: dict[Flight, BaseException] = {}
        self._hooks = OwnLoop()

    def begin(self, work: Work) -> None:
        """See `Crew`."""
        self._work = work

    def wake(self) -> None:
        """See `Crew`."""
        with self._stirred:
            if not self._work.startable():
                return
            if self._idle:
                self._stirred.notify()
            elif self._started < self._most:
                self._started += 1
                threading.Thread(target=self._serve, name=f"handler-{self._started}", daemon=True).start()

    def interrupt(self, flight: Flight, error: BaseException) -> None:
        """See `Crew`."""
        with self._interrupting:
            if (thread := self._calling.get(flight)) is not None:
                self._interruptions[flight] = error
                raise_in(thread, type(error))

    def calling(self) -> Flight | None:
        """See `Crew`."""
        me = threading.get_ident()
        return next((flight for flight, thread in list(self._calling.items()) if thread == me), None)

    def run(self, returned: Any) -> Any:
        """See `Crew`."""
        return self._hooks.run(returned)

    def close(self) -> None:
        """See `Crew`."""
        with self._stirred:
            self._closed = True
            self._stirred.notify_all()
        self._hooks.close()

    def _serve(self) -> None:
        """One thread's life."""
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

    def _next(self) -> Flight | None:
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

    def _call(self, flight: Flight) -> BaseException | None:
        """What the handler raised, or was said in its place.

        An interruption is raised in this thread by another one, which finds it in `_calling`. It may hit the inner
        `finally`, too; that takes the lock, which whoever raises holds, so it can hit nothing beyond the outer `try`.
        """
        if flight.poison:
            return Poisoned()
        try:
            try:
                self._calling[flight] = threading.get_ident()
                self._take(flight, self._handle(argument_of(self._form, flight.message)))
            finally:
                with self._interrupting:
                    self._calling.pop(flight, None)
        except BaseException as error:
            return interrupted(error, self._interruptions.get(flight))
        finally:
            self._interruptions.pop(flight, None)
        return None


_CLOSING_SECONDS = 1.0
_IN_A_ROW = 50
"""So many records may a handler that never waits keep the loop from everything else."""


class Tasks:
    """See `Crew`."""

    def __init__(self, handle: Callable[[Any], Any], form: Form, take: Take) -> None:
        self._handle = handle
        self._form = form
        self._take = take
        self._work: Work
        self._loop = uvloop.new_event_loop()
        self._tasks: dict[Flight, asyncio.Task[None]] = {}
        self._interruptions: dict[Flight, BaseException] = {}
        self._raised_for: Flight | None = None
        """For whose sake an interruption was raised in the loop's thread last, where it has not come out of a call."""
        self._filling = False
        self._thread = threading.Thread(target=self._turn, name="handlers", daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> None:
        """See `Crew`."""
        self._work = work

    def wake(self) -> None:
        """See `Crew`."""
        if not self._filling and self._work.startable():
            self._filling = True
            self._loop.call_soon_threadsafe(self._fill)

    def interrupt(self, flight: Flight, error: BaseException) -> None:
        """See `Crew`. A handler that waits is cancelled; one that computes holds up the loop, and meets the error where
        it is."""
        task = self._tasks.get(flight)
        if task is None:
            return
        self._interruptions[flight] = error
        if asyncio.current_task(self._loop) is task and self._thread.ident is not None:
            self._raised_for = flight
            raise_in(self._thread.ident, type(error))
        else:
            self._loop.call_soon_threadsafe(self._cancel, flight)

    def calling(self) -> Flight | None:
        """See `Crew`."""
        if threading.current_thread() is not self._thread or (me := asyncio.current_task(self._loop)) is None:
            return None
        return next((flight for flight, task in self._tasks.items() if task is me), None)

    def run(self, returned: Any) -> Any:
        """See `Crew`."""
        if not inspect.isawaitable(returned):
            return returned
        return asyncio.run_coroutine_threadsafe(awaited(returned), self._loop).result()

    def close(self) -> None:
        """See `Crew`. The handler's remaining tasks see their cancellation."""
        done: concurrent.futures.Future[None] = asyncio.run_coroutine_threadsafe(self._cancel_rest(), self._loop)
        done.result(2 * _CLOSING_SECONDS)

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLOSING_SECONDS)

    def _turn(self) -> None:
        """The thread's life. What a background task raises that is no `Exception` (SystemExit) stops the loop."""
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue

    def _fill(self) -> None:
        """Start what there is. Caller: the loop."""
        self._filling = False
        try:
            while (flight := self._work.start_next()) is not None:
                self._loop.create_task(self._serve(flight))
        except BaseException:
            die()

    def _cancel(self, flight: Flight) -> None:
        """Caller: the loop, so that the task has this record and not the next one."""
        if (task := self._tasks.get(flight)) is not None:
            task.cancel("the handler is interrupted by kunicorn")

    async def _serve(self, flight: Flight | None) -> None:
        """One task's life: a record after the other, until there is none. A new task for each costs a third more."""
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

    async def _call(self, flight: Flight, task: asyncio.Task[None]) -> BaseException | None:
        """What the handler raised, or was said in its place."""
        if flight.poison:
            return Poisoned()
        try:
            self._take(flight, await self._handle(argument_of(self._form, flight.message)))
        except BaseException as error:
            return self._met(flight, error)
        finally:
            self._interruptions.pop(flight, None)
            uncancel(task)
        return None

    def _met(self, flight: Flight, error: BaseException) -> BaseException:
        """What a call has failed with that raised this. Caller: the loop.

        Between the look at whose turn it is and the interruption the loop may have gone on to another record, which is
        hit then: that is no failed try, it is handled again, as at a drain deadline.
        """
        meant = self._interruptions.get(flight)
        if isinstance(error, DrainDeadline | HandlerTimeout):
            raised_for, self._raised_for = self._raised_for, None
            if meant is None and raised_for is not None:
                return DrainDeadline()
        return interrupted(error, meant)
