"""The executor of an `async def` handler with several calls at a time: one event loop in a thread of its own, which
turns as long as the worker lives, so that the handler's background tasks do, too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

import uvloop

from kunicorn.handler.call import awaited, interrupted
from kunicorn.handler.cancellation import CLOSING_SECONDS, step_aside, wind_up
from kunicorn.handler.decode.forms import Form, argument_of
from kunicorn.handler.load import DrainDeadline, clear_frames
from kunicorn.worker.executors.executor import Poisoned, Returned, Supply, Told
from kunicorn.worker.executors.threads import die, raise_in
from kunicorn.worker.progress import InFlight, Slots

_IN_A_ROW = 50
"""So many records may a handler that never waits keep the loop from everything else."""


class AsyncioExecutor:
    def __init__(self, handle: Callable[[Any], Any], form: Form, on_return: Returned) -> None:
        self._handle = handle
        self._form = form
        self._on_return = on_return
        self._table: Supply
        self._slots: Slots
        self._told: Told
        self._loop = uvloop.new_event_loop()
        self._tasks: dict[InFlight, asyncio.Task[None]] = {}
        """Which task the handler has a record in."""
        self._interrupting = threading.Lock()
        self._interruptions: dict[InFlight, BaseException] = {}
        self._computing: InFlight | None = None
        """In whose handler the loop is, be it that it has just returned. Only there is an interruption raised."""
        self._aimed = False
        """Somebody has looked since, or looks now, whether there is something to interrupt."""
        self._filling = False
        """The loop is to look for a record to start."""
        self._unbegun: asyncio.Task[None] | None = None
        """The task that was made last, until it begins: it starts a record then, and has the next task made."""
        self._watch: asyncio.TimerHandle | None = None
        """Looks when the handler's gate opens: the worker's main thread may be in a call for long."""
        self._hook: concurrent.futures.Future[Any] | None = None
        """The one that runs."""
        self._ended = False
        self._thread = threading.Thread(target=self._turn, name="handlers", daemon=True)
        self._thread.start()

    def begin(self, table: Supply, slots: Slots, loop: Told) -> None:
        self._table, self._slots, self._told = table, slots, loop

    def wake(self) -> None:
        waits = self._watch is None and self._table.opens_in(self._slots) is not None
        if not self._filling and (waits or self._table.startable(self._slots)):
            self._filling = True
            self._loop.call_soon_threadsafe(self._fill)

    def interrupt(self, flight: InFlight, error: BaseException, offset: int) -> None:
        """See `Executor`. A handler that waits is cancelled; one that computes holds up the loop, and meets the error
        where it is."""
        with self._interrupting:
            self._aimed = True  # Before it looks: so the loop has left the call before that, or waits for the lock.
            if flight not in self._tasks:
                return
            self._interruptions[flight] = error
            if self._computing is flight and self._thread.ident is not None:
                raise_in(self._thread.ident, type(error))
            else:
                self._loop.call_soon_threadsafe(self._cancel, flight, error)

    def interrupt_hook(self, error: BaseException) -> None:
        if self._hook is not None:
            self._hook.cancel()
        raise error

    def calling(self) -> tuple[InFlight, int] | None:
        if threading.current_thread() is not self._thread or (me := asyncio.current_task(self._loop)) is None:
            return None
        return next(((flight, flight.offset) for flight, task in self._tasks.items() if task is me), None)

    def run(self, returned: Any) -> Any:
        if not inspect.isawaitable(returned):
            return returned
        self._hook = asyncio.run_coroutine_threadsafe(awaited(returned), self._loop)
        try:
            return self._hook.result()
        finally:
            self._hook = None

    def close(self) -> None:
        """See `Executor`. The handler's remaining tasks see their cancellation."""
        asyncio.run_coroutine_threadsafe(wind_up(), self._loop).result(3 * CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        """Caller: the loop."""
        self._ended = True
        self._loop.stop()

    def _turn(self) -> None:
        """Body of the loop's thread. What a background task raises that is no `Exception` (SystemExit) stops the
        loop, and so does a handler by `loop.stop()`.
        """
        asyncio.set_event_loop(self._loop)
        while not self._ended:
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.close()

    def _fill(self) -> None:
        """Make a task if there is a record for a free slot. It starts the record itself, in the step that calls the
        handler: one that waited in hand for its task would be called behind its partition's drain deadline, be charged
        with the time that others compute, and stay in hand for ever where a handler cancels all tasks. Caller: the
        loop.
        """
        self._filling = False
        try:
            if self._unbegun is not None:
                return
            if self._table.startable(self._slots):
                # Not by `create_task`: a factory that the handler has set may begin it at once, within this one's step.
                self._unbegun = asyncio.Task(self._serve(), loop=self._loop)
                self._unbegun.add_done_callback(self._over)
            else:
                self._watch_gate()
        except BaseException:
            die()

    def _over(self, task: asyncio.Task[None]) -> None:
        """Caller: the loop. Another task takes the place of one that was cancelled before it began."""
        if task is self._unbegun:
            self._unbegun = None
            self._fill()

    def _watch_gate(self) -> None:
        """Caller: the loop."""
        if self._watch is None and (seconds := self._table.opens_in(self._slots)) is not None:
            self._watch = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Caller: the loop."""
        self._watch = None
        self._fill()

    def _cancel(self, flight: InFlight, error: BaseException) -> None:
        """Caller: the loop, so that the task has this record and not the next one. Does nothing if the interrupted try
        is over."""
        if self._interruptions.get(flight) is error:
            self._tasks[flight].cancel("the handler is interrupted by kunicorn")

    def _first(self) -> InFlight | None:
        """Start a task's first record. Caller: that task."""
        self._unbegun = None
        try:
            if (flight := self._table.start_next(self._slots)) is not None:
                self._fill()
            else:
                self._watch_gate()
        except BaseException:
            die()
        return flight

    async def _serve(self) -> None:
        """Body of one task: a record after the other, until there is none. A new task for each costs a third more."""
        task = asyncio.current_task()
        assert task is not None
        served = 0
        flight = self._first()
        while flight is not None:
            served += 1
            error = await self._call(flight, task)
            if served % _IN_A_ROW == 0:
                await step_aside(task)
            try:
                if error is None:
                    flight = self._table.finish(flight)
                    self._told.finished()
                else:
                    clear_frames(error)
                    self._told.fail(flight, error)
                    error = None  # Else it would stay in memory until the next one fails.
                    flight = self._table.start_next(self._slots)
                if self._table.startable(self._slots):
                    self._fill()
                elif flight is None:
                    self._watch_gate()
            except BaseException:
                die()

    async def _call(self, flight: InFlight, task: asyncio.Task[None]) -> BaseException | None:
        """Failure of one call: the exception of the handler, or the one said in its place; None without.

        An interruption may hit the inner `finally`, too, and nothing beyond the outer `try`: there it would end the
        task with the record in hand, or the worker.
        """
        if flight.poison:
            return Poisoned()
        try:
            try:
                self._tasks[flight] = task
                if flight.tracker.overdue:
                    raise DrainDeadline  # It was started before that, and whoever interrupts did not find it here.
                self._computing = flight
                returned = self._handle(argument_of(self._form, flight.messages[0]))
                steps = returned if inspect.iscoroutine(returned) else awaited(returned)
                self._on_return(flight, await self._step_by_step(flight, steps))
            finally:
                self._computing = None
                if self._aimed:
                    self._be_hit()
        except BaseException as error:
            return interrupted(error, self._interruptions.get(flight))
        finally:
            self._tasks.pop(flight, None)
            if self._aimed:
                self._be_hit()
            self._interruptions.pop(flight, None)
            if task.cancelling():
                await step_aside(task)
        return None

    @coroutine
    def _step_by_step(self, flight: InFlight, steps: Coroutine[Any, Any, Any]) -> Generator[Any, None, Any]:
        """As `await steps`; but an interruption that was raised in one of its steps comes up in it, and never in what
        has the loop while it waits: another record's handler, a task in the background, this executor.
        """
        error: BaseException | None = None
        while True:
            self._computing = flight
            try:
                waits_for = steps.send(None) if error is None else steps.throw(error)
                error = self._computing = None
                if self._aimed:
                    self._be_hit()
                yield waits_for
            except StopIteration as returned:
                return returned.value
            except BaseException as raised:
                if steps.cr_frame is None:  # type: ignore[attr-defined]
                    error = None  # Else the two would keep each other in memory.
                    raise
                error = raised  # It waits, and meets the error where it does.

    def _be_hit(self) -> None:
        """Wait for whoever may be about to raise an interruption in this thread: it comes up in here at the latest."""
        with self._interrupting:
            self._aimed = False
