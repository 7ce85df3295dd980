"""The poll loop of a worker, in its main thread: fetch, hand on to executors, look after what failed.

1. Only this thread calls the Kafka client.
2. The ledger's consumed offset never passes an unfinished record: it is stored after the handler returned (and what it
   left is delivered), by the call itself where runs are handled, else under the table's lock.
3. No record is started past the lease: the table looks at the clock for each start, and a run shrinks to one record
   when the handler is slow; in between the control thread watches the lease and interrupts.
4. A turn's calls in this thread last a tenth of a second, or one call: so long may wait whoever else is due.

`Executors` are all those of the worker, of which the loop serves the inline ones itself; `Loop` is the loop.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.messages import Run
from kunicorn.handler.outcome import error_type
from kunicorn.handler.retry import timed_out
from kunicorn.handler.rows import before
from kunicorn.ipc.clock import now_ns
from kunicorn.positions import TopicPartition, place_of
from kunicorn.worker.buffering import Delays, HeadOfLine
from kunicorn.worker.executors.executor import Executor, Poisoned
from kunicorn.worker.executors.inline import InlineExecutor
from kunicorn.worker.failures import Failures
from kunicorn.worker.fetching.client import Client
from kunicorn.worker.fetching.fetched import Taken
from kunicorn.worker.hooks import Hooks
from kunicorn.worker.partitions import Partitions
from kunicorn.worker.progress import Attempt, InFlight, Slots

log = logging.getLogger("kunicorn.worker")

_IDLE_SECONDS = 0.03
"""Longest wait for a first record: so long may a partition that was handed out wait to be fetched."""
_TURN_NS = 100_000_000
"""So long a turn's calls in this thread may take, and the one under way then: so long may wait whoever else is due."""


class Failure(NamedTuple):
    """Records whose call has failed, by that error, after so many nanoseconds, at that time; for so many calls."""

    flight: InFlight
    error: BaseException
    took_ns: int
    at_ns: int
    calls: int


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
        self._out_of_turn = False
        """The last call was made before another handler's, whose turn it was."""
        self._failed: deque[Failure] = deque()
        self._stirred = threading.Event()
        """There is room again, or something has failed."""
        self._waits_for_room = False
        self._table: Partitions

    def begin(self, table: Partitions) -> None:
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
            executor = self._following()
            if not executor.serve():
                idle += not self._out_of_turn
                continue
            idle = 0
            # Only behind a call: a handler that is busy all the time would keep the others from theirs.
            if self._table.interrupts or self._failed or now_ns() >= until:
                return

    def _following(self) -> InlineExecutor:
        """The next one. A partition that has just come, or a retry whose wait is over, waits for no other handler's
        call; but not twice in a row: a handler whose records fail all the time would keep the others from theirs."""
        mine = self._inline[self._next]
        first = mine if self._out_of_turn else next((each for each in self._inline if each.hurries), mine)
        self._out_of_turn = first is not mine
        if not self._out_of_turn:
            self._next = (self._next + 1) % len(self._inline)
        return first

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

    def fail(self, flight: InFlight, error: BaseException, calls: int = 1) -> None:
        """Note a record's failure: it is out of hand at once, for the loop may be in a handler's call for long, and
        what becomes of it is the loop's to say. `calls`: see `executor.Told`. Caller: any thread."""
        if isinstance(error, DrainDeadline):
            self._table.put_back(flight)
        else:
            now = now_ns()
            took_ns = max(0, now - flight.since_ns)
            self._table.put_down(flight)
            self._failed.append(Failure(flight, error, took_ns, now, calls))
        self._stirred.set()

    def finished(self) -> None:
        """Note that a record is finished: there may be room again. Caller: any thread."""
        if self._waits_for_room and not self._table.full:
            self._stirred.set()

    @property
    def have_failures(self) -> bool:
        """Whether a record has failed that the loop has not dealt with."""
        return bool(self._failed)

    def failures(self) -> Iterator[Failure]:
        """Records that failed, each once."""
        while self._failed:
            yield self._failed.popleft()

    def wait_for_room(self, seconds: float) -> None:
        """Wait so long for a record that is finished where the table was full, or for a failure."""
        self._waits_for_room = True
        self._wait(self._stirred, seconds)
        self._stirred.clear()
        self._waits_for_room = False


class Loop:
    """Poll loop of a worker, whatever its handlers are called by."""

    def __init__(
        self, client: Client, table: Partitions, executors: Executors, hooks: Hooks, failures: Failures
    ) -> None:
        """Caller: the main thread, as `run`."""
        self.paused_by_lease = False
        self._client = client
        self._table = table
        self._executors = executors
        self._hooks = hooks
        self._failures = failures
        settings = table.settings
        self._delays = Delays(table, settings.delays)
        self._line = HeadOfLine(table, settings.ahead_bytes, settings.delays)
        self._turns = 0
        self._ended = 0
        """Grants that had ended when it looked last."""
        executors.begin(table)

    @property
    def progress(self) -> int:
        """Number that grows with every turn, and every call in this thread: the evidence that it is alive."""
        return self._turns + self._executors.calls

    def run(self) -> None:
        """Run turns until everything is drained. Caller: the main thread; blocks."""
        table, executors = self._table, self._executors
        while not table.drained:
            self._turns += 1
            # Before it looks around: what comes up from here on stops a call before its next record.
            table.interrupts.clear()
            now = now_ns()
            self._client.log_in()
            self._meet_failures(now)
            self._failures.try_again(now)
            self._forget_ended()
            self._watch_lease(now)
            self._hooks.call_due(now)
            self._delays.end_due(now)
            table.balance(now)
            table.begin_turn(now)
            self._fetch(now)
            executors.wake()
            executors.serve(now_ns() + _TURN_NS)

    def _forget_ended(self) -> None:
        """Have nothing wait any more of grants that have ended."""
        if (ended := self._table.ended) != self._ended:
            self._ended = ended
            self._failures.forget_ended()
            self._delays.forget_ended()

    def wake(self) -> None:
        """Have the handlers go on that are called in threads and tasks: the lease is there again. Caller: the control
        thread, as the loop's may be in a call."""
        self._executors.wake()

    def time_out(self, grant: int, offset: int, overdue_ns: int = 0) -> None:
        """Interrupt the handler, if it still has that record in hand, and all records that it got of the grant by
        `overdue_ns`. Caller: the control thread.
        """
        for flight in self._table.overdue(grant, offset, overdue_ns):
            self._executors.interrupt(flight, HandlerTimeout(), offset)

    def end_drain(self, grants: Collection[int] | None) -> None:
        """Have `DrainDeadline` raised in what the partitions of these grants wait for, calls and hooks; None: of all
        that are to be given up. Caller: the control thread, as the loop's may be in a call."""
        for flight in self._table.let_go(grants):
            self._executors.interrupt(flight, DrainDeadline(), flight.offset)
        self._hooks.end_drain(grants)

    def on_interruption(self) -> None:
        """Raise `HandlerTimeout` or `DrainDeadline` in the call, or the hook, that is under way in this thread, where
        that is meant. Caller: the signal handler, which may run while this thread holds the table's lock."""
        self._hooks.on_signal()
        self._executors.on_signal()

    def place(self) -> Mapping[str, Any]:
        """Place of the record that the handler has in hand (of a batch, the first): `topic`, `partition`, `offset`.
        Empty in other threads and tasks than the call's own. Caller: whatever logs.
        """
        found = self._executors.calling()
        return {} if found is None else place_of(found[0].tp, found[1])

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, now: int) -> None:
        """Take in what was fetched: all that the client has where something is to be handled already, else what comes
        within a moment.
        """
        patience = self._table.patience(now, self._failures.patience(now, _IDLE_SECONDS))
        if self._executors.startable or self._executors.have_failures:
            self._take_in_all(now)
        elif not (room := self._line.room(now)):
            self._executors.wait_for_room(patience)
        elif self._executors.inline and self._table.held_up:
            # What is queued waits for what is on its way, and nobody but this thread goes on with it then.
            self._take_in(self._taken(room, 0), now)
            self._executors.wake()
            if not self._executors.startable:
                self._executors.wait_for_room(patience)
        elif (taken := self._taken(room, patience)) is not None:
            self._take_in(taken, now_ns())

    def _take_in_all(self, now: int) -> None:
        """Take in all that the client has, as far as there is room."""
        until = now + _TURN_NS
        while now < until and (room := self._line.room(now)):
            if not self._take_in(self._taken(room, 0), now):
                return
            now = now_ns()

    def _taken(self, room: int, seconds: float) -> Taken | None:
        """What the client gives out; waits so long for the first record."""
        settings, several_topics = self._table.settings, self._table.several_topics
        most = min(settings.most_at_once, room)
        return self._client.take(most, seconds, gathers=settings.gathers, several_topics=several_topics)

    def _take_in(self, taken: Taken | None, now: int) -> bool:
        """Hand records on to the table; False if there are none."""
        if taken is None:
            return False
        records = nbytes = 0
        for tp, epoch, messages in taken.runs:
            ready, wait = self._delays.split(tp, self._before_end(tp, messages))
            # Of a partition that was stopped meanwhile nothing is kept, and its records say nothing about their size.
            if kept := self._table.feed(tp, epoch, ready, now):
                records, nbytes = records + len(ready), nbytes + kept
            if wait is not None:
                self._delays.delay(tp, wait, now)
        self._line.took(records, nbytes)
        # A partition's error comes after its records, and the next comes only after it was assigned again.
        for tp, kind, error in taken.faults:
            self._table.broken(tp, kind, error)
        return True

    def _before_end(self, tp: TopicPartition, messages: Run) -> Run:
        """Messages before the partition's stop. The dropped ones move the position on, which tells the supervisor that
        the end is reached.
        """
        stop = self._table.stops.get(tp)
        return messages if stop is None else before(messages, stop)

    # -- what failed -------------------------------------------------------------------------------------------------

    def _meet_failures(self, now: int) -> None:
        for flight, error, took_ns, at_ns, counted in self._executors.failures():
            if not self._table.take_up(flight, now):
                continue
            if isinstance(error, Poisoned):
                self._failures.meet_poison(flight, now)
            else:
                failure = timed_out(error) if isinstance(error, HandlerTimeout) else error
                # One that is refused, or decided, has failed without a call: its handler returned, and was counted
                # then.
                uncalled = error is flight.refusal or error is flight.decided
                calls, took = (0, 0) if uncalled else (counted, took_ns)
                if error is flight.decided and (gate := flight.tracker.slots.gate) is not None:
                    gate.uncalled(flight, now)
                flight.decided = None
                late, beside = max(0, now - at_ns), not (uncalled or counted)
                attempt = Attempt(flight, took, calls, error_type(failure), met_after_ns=late, beside=beside)
                self._failures.meet(attempt, failure, now)

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _watch_lease(self, now: int) -> None:
        """Log when records are not started any more, and when they are again. Before its first lease a worker has
        nothing to start: that is no news, however long the group takes to take the member in."""
        lease_ns = self._table.ledger.lease_ns
        past = 0 < lease_ns < now
        if past and not self.paused_by_lease:
            log.warning(
                "membership is not certain any more: no further record is started until a heartbeat is answered"
            )
        elif self.paused_by_lease and not past:
            log.info("membership is certain again: going on")
        self.paused_by_lease = past
