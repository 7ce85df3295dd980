"""The executors of a worker: each handler has one, and all take records from one table."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from kunicorn.ipc.clock import now_ns
from kunicorn.worker.executors.executor import Executor, Supply
from kunicorn.worker.executors.inline import InlineExecutor
from kunicorn.worker.progress import InFlight, Slots


class Executors:
    """All handlers' executors, and what they and the senders tell the loop: records that failed, and that there is room
    again. Caller: the loop, unless said otherwise.
    """

    def __init__(self, executors: Mapping[Slots, Executor], wait: Callable[[threading.Event, float], object]) -> None:
        """`executors`: each handler's, by its slots. `wait`: for the event, so many seconds."""
        self._executors = executors
        self._wait = wait
        self._inline = [each for each in executors.values() if isinstance(each, InlineExecutor)]
        self._next = 0
        """Which of these has its turn next."""
        self._failed: deque[tuple[InFlight, BaseException]] = deque()
        self._stirred = threading.Event()
        """There is room again, or something has failed."""
        self._waits_for_room = False
        self._table: Supply

    def begin(self, table: Supply) -> None:
        """Begin to call the handlers with the table's records."""
        self._table = table
        for slots, executor in self._executors.items():
            executor.begin(table, slots, self)

    # -- the loop's own thread ---------------------------------------------------------------------------------------

    @property
    def inline(self) -> bool:
        """Whether a handler is called in the loop's own thread."""
        return bool(self._inline)

    @property
    def calls(self) -> int:
        """How often handlers were called in the loop's own thread."""
        return sum(executor.calls for executor in self._inline)

    @property
    def startable(self) -> bool:
        """Whether a handler may be called in the loop's own thread."""
        return any(executor.startable for executor in self._inline)

    def serve(self, until: int) -> None:
        """Call handlers in this thread, one run of each in turn, until there is nothing to handle, something else is to
        be looked after, or the time is over (nanoseconds). Blocks as long as they do."""
        idle = 0
        while idle < len(self._inline):
            executor = self._inline[self._next]
            self._next = (self._next + 1) % len(self._inline)
            if not executor.serve():
                idle += 1
                continue
            idle = 0
            # Only behind a call: a handler that is busy all the time would keep the others from theirs.
            if self._table.interrupts or self._failed or now_ns() >= until:
                return

    @property
    def overdue(self) -> bool:
        """Whether a call in this thread was interrupted by a signal, which is yet to come."""
        return any(executor.is_overdue for executor in self._inline)

    def on_signal(self) -> None:
        """See `InlineExecutor.on_signal`. Raises what interrupts."""
        for executor in self._inline:
            executor.on_signal()

    # -- others' threads ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have every executor look for a record to start. Caller: any thread."""
        for executor in self._executors.values():
            executor.wake()
        if self._waits_for_room:
            self._stirred.set()

    def interrupt(self, flight: InFlight, error: BaseException, offset: int) -> None:
        """See `Executor.interrupt`."""
        self._executors[flight.tracker.slots].interrupt(flight, error, offset)

    def calling(self) -> tuple[InFlight, int] | None:
        """See `Executor.calling`."""
        calls = (executor.calling() for executor in self._executors.values())
        return next((found for found in calls if found is not None), None)

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """Note a record's failure for the loop. Caller: any thread."""
        self._failed.append((flight, error))
        self._stirred.set()

    def finished(self) -> None:
        """Note that a record is finished: there may be room again. Caller: any thread."""
        if self._waits_for_room and not self._table.full:
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
        self._wait(self._stirred, seconds)
        self._stirred.clear()
        self._waits_for_room = False
