"""The worker's main thread where several records are in hand: it fetches and deals with what failed; a crew handles.

1. Only this thread calls the Kafka client; the crew starts and finishes records by itself, without waiting for it.
2. No record is started past the lease: `Flights.start_next` looks at the clock for each.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, Message

from kunicorn.complaints import parted
from kunicorn.handlers import DrainDeadline, HandlerTimeout
from kunicorn.handling.reasons import timed_out
from kunicorn.pipes.clock import now_ns
from kunicorn.pipes.ledger import Ledger
from kunicorn.topics import TopicPartition, place_of
from kunicorn.worker.batches import runs
from kunicorn.worker.crew import Crew, Work
from kunicorn.worker.delays import Delays
from kunicorn.worker.delivering import DeliveringFlights
from kunicorn.worker.failures import Failures
from kunicorn.worker.faults import ends_grant, meet_errors
from kunicorn.worker.flight import Flight
from kunicorn.worker.flights import Flights
from kunicorn.worker.grants import Attempt
from kunicorn.worker.hands import Hands
from kunicorn.worker.head_of_line import HeadOfLine
from kunicorn.worker.lifecycle import Lifecycle
from kunicorn.worker.login import Login

log = logging.getLogger("kunicorn.worker")

_FETCH_RECORDS = 500
_IDLE_SECONDS = 0.03
"""Longest wait for a first record: so long may a partition that was handed out wait to be fetched, and a record that
failed for what becomes of it."""


class ConcurrentRunner:
    """The loop. `progress` grows with every turn: the evidence that it is alive."""

    def __init__(
        self,
        consumer: Consumer,
        flights: Flights,
        ledger: Ledger,
        crews: Mapping[Hands, Crew],
        lifecycle: Lifecycle,
        failures: Failures[Flight],
        login: Login,
    ) -> None:
        """`crews`: who calls each handler, by its hands.

        Caller: the main thread, as `run`.
        """
        self.progress = 0
        self.paused_by_lease = False
        self._consumer = consumer
        self._flights = flights
        self._ledger = ledger
        self._crews = crews
        self._lifecycle = lifecycle
        self._failures = failures
        self._login = login
        self._delays = Delays(flights)
        self._line = HeadOfLine(flights, flights)
        self._failed: deque[tuple[Flight, BaseException]] = deque()
        self._stirred = threading.Event()
        """There is room again, or something has failed."""
        self._waits_for_room = False
        self._deadline = False
        """The drain budget is over."""

    def run(self) -> None:
        """Go on until everything is drained. Caller: the main thread; blocks."""
        for hands, crew in self._crews.items():
            crew.begin(self._work(hands))
        if isinstance(self._flights, DeliveringFlights):
            self._flights.delivered, self._flights.refused = self._wake, self._fail
        while not self._flights.drained:
            self.progress += 1
            now = now_ns()
            self._login.apply(self._consumer)
            self._interrupt_what_is_to_end()
            self._failures.look_after_letters(now)
            self._meet_failures(now)
            for flight, _ in self._failures.due(now):
                self._flights.try_again(flight)
            self._watch_lease(now)
            self._lifecycle.attend(now)
            self._delays.take_up(now)
            self._flights.balance()
            self._flights.begin_turn(now)
            self._fetch(now)
            self._wake()

    def time_out(self, grant: int, offset: int, overdue_ns: int = 0) -> None:
        """Interrupt the handler if it still has that record in hand, and in all it got of the grant by `overdue_ns`.
        Caller: the control thread."""
        for flight in self._flights.overdue(grant, offset, overdue_ns):
            self._crews[flight.track.hands].interrupt(flight, HandlerTimeout())

    def on_interruption(self) -> None:
        """Have `DrainDeadline` raised in the calls whose partition is to be given up. Caller: the signal handler, which
        may run while this thread holds the table's lock: the next turn does it."""
        self._deadline = True

    def place(self) -> Mapping[str, Any]:
        """See `Runner.place`."""
        for crew in self._crews.values():
            if (flight := crew.calling()) is not None:
                return place_of(flight.tp, flight.offset)
        return {}

    # -- crew --------------------------------------------------------------------------------------------------------

    def _work(self, hands: Hands) -> Work:
        """What the crew of these hands asks and tells."""
        table = self._flights

        def finish(flight: Flight) -> Flight | None:
            following = table.finish(flight)
            if self._waits_for_room and not table.full:
                self._stirred.set()
            return following

        return Work(partial(table.start_next, hands), partial(table.startable, hands), finish, self._fail)

    def _wake(self) -> None:
        for crew in self._crews.values():
            crew.wake()

    def _fail(self, flight: Flight, error: BaseException) -> None:
        self._failed.append((flight, error))
        self._stirred.set()

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, now: int) -> None:
        patience = self._failures.patience(now, _IDLE_SECONDS)
        if not (room := self._line.room(now)):
            self._waits_for_room = True
            self._stirred.wait(patience)
            self._stirred.clear()
            self._waits_for_room = False
            return
        first = self._consumer.poll(0 if self._failed else patience)
        if first is None:
            return
        batch = [first, *self._consumer.consume(min(_FETCH_RECORDS, room) - 1, 0)]
        self._line.took(batch)
        batch, errors = parted(batch, ends_grant)
        for tp, epoch, messages in runs(batch, self._flights.several_topics):
            ready, wait, _ = self._delays.split(tp, self._before_end(tp, messages))
            self._flights.feed(tp, epoch, ready)
            if wait is not None:
                self._delays.put_off(tp, wait, now)
        # A partition's error comes after its records, and the next comes only after it was assigned again.
        meet_errors(errors, self._flights.broken)

    def _before_end(self, tp: TopicPartition, messages: list[Message]) -> list[Message]:
        """What is dropped here moves the position on, which tells the supervisor that the end is reached."""
        stop = self._flights.stops.get(tp)
        return messages if stop is None else messages[: bisect_left(messages, stop, key=methodcaller("offset"))]

    # -- what failed -------------------------------------------------------------------------------------------------

    def _meet_failures(self, now: int) -> None:
        while self._failed:
            flight, error = self._failed.popleft()
            # What its handler returned is none: something behind that has failed.
            flight.withdraw()
            if isinstance(error, DrainDeadline) or self._flights.overtaken(flight):
                self._flights.put_back(flight)
            elif flight.poison:
                self._failures.meet_poison(flight, [flight.message], now)
            else:
                if isinstance(error, HandlerTimeout):
                    error = timed_out(error)
                # One that is refused has failed without a call: its handler returned, and was counted then.
                calls, took = (0, 0) if error is flight.refusal else (1, now - flight.since_ns)
                attempt = Attempt(flight, [flight.message], flight.offset + 1, 0, took, calls)
                self._failures.meet(attempt, error, now)

    def _interrupt_what_is_to_end(self) -> None:
        if self._deadline:
            self._deadline = False
            for flight in self._flights.to_be_given_up():
                self._crews[flight.track.hands].interrupt(flight, DrainDeadline())

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _watch_lease(self, now: int) -> None:
        """Tell when records are not started any more, and when they are again."""
        past = now > self._ledger.lease_ns
        if past and not self.paused_by_lease:
            log.warning(
                "membership is not certain any more: no further record is started until a heartbeat is answered"
            )
        elif self.paused_by_lease and not past:
            log.info("membership is certain again: going on")
        self.paused_by_lease = past
