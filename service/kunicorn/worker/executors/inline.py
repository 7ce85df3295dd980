"""The executor of a handler with one call at a time: the loop's own thread calls it, with runs of records."""

from __future__ import annotations

import signal
import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from kunicorn.handler.call import Calls, Interruption, OfSome, OfUncalled, met
from kunicorn.handler.decode import NotDecodableYet
from kunicorn.handler.encode import NotEncodableYet
from kunicorn.handler.load import DrainDeadline, HandlerTimeout, clear_frames
from kunicorn.handler.rows import following_offsets
from kunicorn.ipc.clock import now_ns
from kunicorn.worker.executors.executor import Poisoned, Supply, Told
from kunicorn.worker.progress import InFlight, Slots


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the handler."""

    flights: Sequence[InFlight]
    """What it has, of one partition or of several."""
    messages: Sequence[Message]
    """All their records."""
    following: Sequence[int]
    """For each record, what is stored once it is done."""
    cells: memoryview
    cell: int
    """Where that is stored."""


class InlineExecutor:
    """Caller of a handler in the loop's own thread, with one run of records after the other. A class of its own for the
    hot path: a record costs a fraction of what it does in a thread or a task.
    """

    def __init__(self, calls: Calls, cells: memoryview) -> None:
        """`cells`: the ledger's words, into which a call stores how far it is."""
        self.calls = 0
        """How often the handler was called with a run: evidence that this thread is alive."""
        self._calls = calls
        self._cells = cells
        self._table: Supply
        self._slots: Slots
        self._loop: Told
        self._thread = threading.get_ident()
        self._interruptible: Call | None = None
        """The call that goes on."""
        self._overdue: tuple[InFlight, int] | None = None
        """What was in hand for too long, and at which offset."""
        self._interruption: Interruption | None = None
        """What was raised in the call that goes on."""
        self._raised: BaseException | None = None
        """What the call has raised."""

    def begin(self, table: Supply, slots: Slots, loop: Told) -> None:
        self._table, self._slots, self._loop = table, slots, loop

    @property
    def startable(self) -> bool:
        """Whether there is something to call the handler with."""
        return self._table.startable(self._slots)

    @property
    def hurries(self) -> bool:
        """Whether that is before its turn: of a partition that has just come, or one whose wait is over."""
        return self._slots.ready.hurries and self.startable

    def serve(self) -> bool:
        """Call the handler with the next run; False if there is none. Blocks as long as the handler does."""
        if (flight := self._table.start_next(self._slots)) is None:
            return False
        self._handle(flight)
        if self._raised is not None:
            self._let_go(self._raised)
        return True

    def _let_go(self, raised: BaseException) -> None:
        """Keep nothing of a call that has failed."""
        self._raised = self._interruption = None
        clear_frames(raised)

    def _handle(self, flight: InFlight) -> None:
        self.calls += 1
        if flight.poison:
            self._loop.fail(flight, Poisoned())
            return
        if flight.decided is not None:
            self._loop.fail(flight, flight.decided)
            return
        following = following_offsets(flight.messages)
        started = now_ns()
        cell = flight.tracker.cell
        error = self._call(Call((flight,), flight.messages, following, self._cells, cell))
        took = now_ns() - started
        finished = bisect_right(following, self._cells[cell])
        batches = self._slots.bounds is not None
        if not batches:
            self._slots.pace.took(finished, took)
        else:
            self._tell_if_uncalled(finished, error)
        if error is None or isinstance(error, DrainDeadline) or finished == len(following):
            self._table.returned(flight, finished, took, min(finished, 1) if batches else finished)
            return
        some = error if isinstance(error, OfSome) else OfSome(error, count=len(following) - finished if batches else 1)
        error = some.error
        failed = self._table.failed(flight, finished, took, some)
        if failed is not None:
            self._loop.fail(failed, error)

    def _tell_if_uncalled(self, finished: int, error: BaseException | None) -> None:
        """Tell the gate if no record of a batch has come to the handler: the loop was to look around first, or the
        first one cannot be decoded, or not yet."""
        if finished or (gate := self._slots.gate) is None:
            return
        not_yet = isinstance(error, NotDecodableYet) and not isinstance(error, NotEncodableYet)
        if error is None or not_yet or isinstance(error, OfUncalled):
            gate.saved(now_ns())

    def wake(self) -> None:
        """Does nothing: the loop asks."""

    def interrupt(self, flight: InFlight, error: BaseException, offset: int) -> None:
        """See `Executor`. By a signal to this thread alone, so that a system call in which the handler waits gives
        way."""
        self._overdue = flight, offset
        signal.pthread_kill(self._thread, signal.SIGUSR1)

    def on_signal(self) -> None:
        """Raise `HandlerTimeout` or `DrainDeadline` in the handler, if its record is the one that was meant. Caller:
        the signal handler.

        The supervisor decides from outside; by the time the signal arrives another record may be in hand.
        """
        overdue, self._overdue = self._overdue, None
        if (call := self._interruptible) is None:
            return
        error: BaseException
        if any(flight.tracker.overdue for flight in call.flights):
            error = DrainDeadline()
        elif overdue is not None and overdue[0] in call.flights and overdue[1] == self._at(overdue[0]):
            error = HandlerTimeout()
        else:
            return
        self._interruptible = None  # Once: a second signal must not hit the code that deals with the first.
        self._interruption = Interruption(error, call.cells[call.cell])
        self._calls.interrupt(error)

    def interrupt_hook(self, error: BaseException) -> None:
        self._calls.interrupt(error)

    def calling(self) -> tuple[InFlight, int] | None:
        call = self._interruptible
        if call is None or threading.get_ident() != self._thread or not self._calls.calling():
            return None
        return call.flights[0], self._at(call.flights[0])

    def run(self, returned: Any) -> Any:
        return self._calls.run(returned)

    def close(self) -> None:
        self._calls.close()

    def _at(self, flight: InFlight) -> int:
        """First unfinished offset of what the handler has."""
        return max(flight.offset, self._cells[flight.tracker.cell])

    def _call(self, call: Call) -> BaseException | None:
        """Call the handler; whatever it raises is a failure of its record and nothing else.

        `DrainDeadline` may come out of the inner `finally`, too: the outer `try` holds whatever the signal hits.
        """
        # The record's try before this one may have been in hand for too long: that is no reason to end this one.
        self._overdue = self._interruption = None
        cells, cell, origin = call.cells, call.cell, call.flights[0]
        try:
            try:
                self._interruptible = call
                self._calls(call.messages, call.following, cells, cell, self._table.interrupts, origin)
            finally:
                self._interruptible = None
        except BaseException as error:
            self._raised = error
            return met(error, self._interruption, cells[cell])
        return None
