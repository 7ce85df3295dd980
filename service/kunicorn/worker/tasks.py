"""A crew of asyncio tasks, for `async def` handlers: one loop in a thread of its own, which turns as long as the worker
lives, so that the handler's background tasks do, too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Callable
from typing import Any

import uvloop

from kunicorn.decoding.forms import Form, argument_of
from kunicorn.handlers import DrainDeadline, HandlerTimeout
from kunicorn.handling.calls import awaited, uncancel
from kunicorn.handling.interruptions import interrupted
from kunicorn.worker.crew import Poisoned, Take, Work, die, raise_in
from kunicorn.worker.flight import Flight

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
