"""A crew of threads, for handlers that are plain functions. A thread is started only when all others are busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kunicorn.decoding.forms import Form, argument_of
from kunicorn.handling.calls import OwnLoop
from kunicorn.handling.interruptions import interrupted
from kunicorn.worker.crew import Poisoned, Take, Work, die, raise_in
from kunicorn.worker.flight import Flight


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
