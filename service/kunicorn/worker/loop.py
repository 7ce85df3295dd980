"""The worker's main thread: fetch, handle, store. Everything that is slow here is the handler's.

`Runner` has one record or batch in hand.
1. The ledger's consumed offset never passes an unfinished record: it is stored after the handler returned, record by
   record, and by nobody else while records are in hand.
2. No record is started past the lease: the clock is read once a chunk, and chunks shrink to one record when the handler
   is slow; in between the control thread watches the lease and interrupts.

`ConcurrentRunner` has several: it fetches and deals with what failed; a crew handles.
1. Only this thread calls the Kafka client; the crew starts and finishes records by itself, without waiting for it.
2. No record is started past the lease: `Flights.start_next` looks at the clock for each.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, Message

from kunicorn.handler.call import Calls, Interruption, OfOne, fitting, following_offsets, met
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.registry import Handling, Handlings
from kunicorn.handler.retry import timed_out
from kunicorn.ipc.clock import now_ns
from kunicorn.ipc.ledger import CONSUMED, HAND_OFFSET, Ledger
from kunicorn.librdkafka.errors import parted
from kunicorn.positions import NO_OFFSET, TopicPartition, place_of
from kunicorn.worker.buffering import Bounds, Delays, Gathering, HeadOfLine, LeftOver, bounds_of
from kunicorn.worker.client import Login
from kunicorn.worker.delivery import DeliveringFlights
from kunicorn.worker.executors import Crew, Work
from kunicorn.worker.failures import Failures
from kunicorn.worker.fetch import ChunkPace, Run, ends_grant, gathered_runs, meet_errors, runs
from kunicorn.worker.hooks import Lifecycle
from kunicorn.worker.in_flight import Flights
from kunicorn.worker.partitions import Fetcher
from kunicorn.worker.produce.sender import Outputs
from kunicorn.worker.progress import Attempt, Flight, Grant, GrantState, Hands

log = logging.getLogger("kunicorn.worker")

FETCH_RECORDS = 1000
"""Records asked for at once: larger batches fall out of the processor's cache."""
_IDLE_SECONDS = 0.03
"""Longest wait for a first record: so long may a partition that was handed out wait to be fetched."""
_TURN_NS = 100_000_000
"""So long a turn's calls may take, and the one under way then: so long may wait whoever else is due."""
_LEASE_CHECK_SECONDS = 0.02
_ROOM_CHECK_SECONDS = 0.5


class Runner:
    """The loop. `progress` grows with every turn: the evidence that it is alive."""

    def __init__(
        self,
        consumer: Consumer,
        fetcher: Fetcher,
        ledger: Ledger,
        handlings: Handlings[Calls],
        lifecycle: Lifecycle,
        failures: Failures[Grant],
        login: Login,
        outputs: Outputs | None = None,
    ) -> None:
        """`outputs`: what handlers return is sent; the ledger's consumed offset then follows the delivery.

        Caller: the main thread, as `run`.
        """
        self.progress = 0
        self.paused_by_lease = False
        self._consumer = consumer
        self._fetcher = fetcher
        self._ledger = ledger
        self._handlings = handlings
        self._lifecycle = lifecycle
        self._failures = failures
        self._bounds = {each: bounds_of(each) for each in handlings.every}
        batches = [bounds for bounds in self._bounds.values() if bounds is not None]
        self._batches = bool(batches)
        """Some handler takes batches."""
        self._gatherings = {
            each: Gathering(bounds, fetcher)
            for each, bounds in self._bounds.items()
            if bounds is not None and bounds.wait_ns
        }
        self._fetch_records = max([FETCH_RECORDS, *(batch.records for batch in batches)])
        self._login = login
        self._left_over = LeftOver(fetcher)
        self._line = HeadOfLine(fetcher, self._left_over)
        self._turn_ends = 0
        self._delays = Delays(fetcher)
        self._outputs = outputs
        self._progress_cell = CONSUMED if outputs is None else HAND_OFFSET
        """Where it shows how far the handler has come."""
        self._pace = ChunkPace()
        self._interruptible: Grant | None = None
        """The grant whose records the handler has right now."""
        self._timed_out: tuple[int, int] | None = None
        """Grant and offset of the record that was in hand for too long."""
        self._interruption: Interruption | None = None
        """What was raised in the call that goes on."""
        self._thread = threading.get_ident()
        self._now = now_ns()

    def run(self) -> None:
        """Go on until everything is drained. Caller: the main thread; blocks."""
        while not self._fetcher.drained:
            self.progress += 1
            self._turn_ends = self._now + _TURN_NS
            self._login.apply(self._consumer)
            self._failures.look_after_letters(self._now)
            self._try_again()
            self._lifecycle.attend(self._now)
            self._delays.take_up(self._now)
            self._fetcher.begin_turn(self._now)
            self._handle_gathered(self._now)
            batch = self._fetch()
            self._now = now_ns()
            if batch or self._left_over:
                self._turn_ends = self._now + _TURN_NS
                self._handle(batch)
            if self._left_over.errors:
                self._meet_errors()

    def time_out(self, grant: int, offset: int, overdue_ns: int = 0) -> None:
        """Interrupt the handler if it still has that record in hand; nothing else is. Caller: the control thread."""
        self._timed_out = (grant, offset)
        # To the main thread alone, so that a system call in which the handler waits gives way.
        signal.pthread_kill(self._thread, signal.SIGUSR1)

    def on_interruption(self) -> None:
        """Raise `HandlerTimeout` or `DrainDeadline` in the handler, if what it has in hand is meant. Caller: the signal
        handler.

        The supervisor decides from outside; by the time the signal arrives another record may be in hand.
        """
        grant = self._interruptible
        if grant is None:
            self._lifecycle.interrupt()
            return
        if grant.handled_to > grant.in_hand(self._ledger.cells):
            return  # The handler has returned, its outputs are on their way.
        error: BaseException
        if self._timed_out == (grant.number, grant.in_hand(self._ledger.cells)):
            error = HandlerTimeout()
        elif grant.state is GrantState.STOPPING:
            error = DrainDeadline()
        else:
            return
        self._interruptible = None  # Once: a second signal must not hit the code that deals with the first.
        self._interruption = Interruption(error, self._ledger.cells[grant.at + self._progress_cell])
        self._handlings.of(grant.tp.topic).calls.interrupt(error)

    def place(self) -> Mapping[str, Any]:
        """Of the record that the handler has in hand (of a batch, the first): `topic`, `partition`, `offset`. Caller:
        whatever logs; nothing is told to another thread or task than the call's own."""
        grant = self._interruptible
        if grant is None or threading.get_ident() != self._thread:
            return {}
        if not self._handlings.of(grant.tp.topic).calls.calling():
            return {}
        return place_of(grant.tp, grant.in_hand(self._ledger.cells))

    # -- fetching --------------------------------------------------------------------------------------------------

    def _fetch(self) -> list[Message]:
        """What there is, to be handled; nothing where something is left over, behind which it comes. `consume(n, t)`
        alone would wait the whole `t` unless `n` records come."""
        if self._left_over or any(gathering.puts_back for gathering in self._gatherings.values()):
            self._fetch_behind()
            return []
        self._line.let_on()
        patience = self._failures.patience(self._now, _IDLE_SECONDS)
        for gathering in self._gatherings.values():
            patience = gathering.patience(self._now, patience)
        first = self._consumer.poll(patience)
        if first is None:
            return []
        return [first, *self._consumer.consume(self._fetch_records - 1, 0)]

    def _fetch_behind(self) -> None:
        """Keep all that the client has, as far as there is room."""
        until = self._now + _TURN_NS
        while self._now < until and (room := self._line.room(self._now)):
            batch = self._consumer.consume(min(self._fetch_records, room), 0)
            if not batch:
                return
            self._line.took(batch)
            fetched, errors = self._parted(batch)
            self._left_over.arrived(fetched)
            for error in errors:
                self._note_error(error)
            self._now = now_ns()

    def _parted(self, batch: list[Message]) -> tuple[Iterator[Run], list[Message]]:
        """What is to be handled of it, and the client's errors, which come behind that."""
        batch, errors = parted(batch, ends_grant)
        fetched = (gathered_runs if self._batches else runs)(batch, self._fetcher.several_topics)
        if self._left_over.errors:
            fetched = (run for run in fetched if not self._left_over.ends(run.tp))
        return fetched, errors

    def _handle(self, batch: list[Message]) -> None:
        left_over = self._left_over
        fetched, errors = self._parted(batch)
        for run in left_over.runs() if left_over else fetched:
            self._handle_or_gather(run)
            if self._now >= self._turn_ends:
                left_over.served(run.tp)
                left_over.arrived(fetched)
                break
        for error in errors:
            self._note_error(error)

    def _note_error(self, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is None or topic is None or partition is None or not ends_grant(error):
            meet_errors([message], self._fetcher.broken)
        else:
            self._left_over.end(TopicPartition(topic, partition), message)

    def _meet_errors(self) -> None:
        """A partition's error comes after its records, and the next comes only after it was assigned again."""
        for tp in self._left_over.ending():
            for gathering in self._gatherings.values():
                for run in gathering.rest_of(tp):
                    self._handle_full(gathering, run)
            grant = self._fetcher.fetching(tp)
            if grant is None or not grant.gathering:
                meet_errors([self._left_over.take_error(tp)], self._fetcher.broken)

    # -- handling --------------------------------------------------------------------------------------------------

    def _handle_or_gather(self, run: Run) -> None:
        messages = self._fetcher.unhandled(run.tp, run.messages)
        if (stop := self._fetcher.stops.get(run.tp)) is not None:
            # What is dropped here moves the position on, which tells the supervisor that the end is reached.
            messages = messages[: bisect_left([message.offset() or 0 for message in messages], stop)]
        messages, wait, late = self._delays.split(run.tp, messages)
        if messages:
            wanted = Run(run.tp, run.leader_epoch, messages)
            gathering = self._gatherings.get(self._handlings.of(run.tp.topic))
            if run.tp.topic in self._fetcher.delays:
                # What has waited in a retry topic waits for no fuller batch: putting the rest off would let go of it.
                gathering = None
            if gathering is None:
                if left := self._handle_run(*wanted):
                    # What has to wait for its time comes behind it.
                    self._left_over.put_back(Run(run.tp, run.leader_epoch, left + late))
                    return
            else:
                for full in gathering.add(wanted, self._now):
                    self._handle_full(gathering, full)
        if wait is not None:
            self._delays.put_off(run.tp, wait, self._now)

    def _handle_gathered(self, now: int) -> None:
        """What has waited for a fuller batch for long enough, as of then."""
        for gathering in self._gatherings.values():
            for run in gathering.due(now):
                self._handle_full(gathering, run)
                if self._now >= self._turn_ends:
                    return

    def _handle_full(self, gathering: Gathering, run: Run) -> None:
        """It does not wait for a fuller batch any more."""
        if left := self._handle_run(*run):
            gathering.put_back(Run(run.tp, run.leader_epoch, left))

    def _handle_run(self, tp: TopicPartition, epoch: int, messages: list[Message]) -> list[Message]:
        """What is left of them when the turn is over: at least one call was made."""
        handling = self._handlings.of(tp.topic)
        bounds = self._bounds[handling]
        following = following_offsets(messages)
        done = 0
        while done < len(messages):
            # Before it looks around: what comes up from here on stops the handler before its next record.
            self._fetcher.interrupts.clear()
            if self._lifecycle.waiting:
                self._lifecycle.attend(self._now)
                self._now = now_ns()
            # The lease comes last: hooks, and the wait for room, may outlast it.
            if not (room := self._room(tp, following[done])) or not self._within_lease():
                return []
            end = done + min(self._chunk(bounds, tp, following[done], messages, done), room)
            timestamp = messages[done].timestamp()[1]
            grant = self._fetcher.take(tp, following[done:end], epoch, self._now, timestamp)
            if grant is None:
                return []
            finished = self._handle_chunk(handling, grant, messages[done:end], following[done:end])
            if finished is None:
                return []
            done += finished
            if grant.ahead:
                messages, done = self._fetcher.unhandled(tp, messages[done:]), 0
                following = following_offsets(messages) if messages else ()
            if self._now >= self._turn_ends:
                return messages[done:]
        return []

    def _chunk(
        self, bounds: Bounds | None, tp: TopicPartition, following: int, messages: list[Message], done: int
    ) -> int:
        """How many records the handler gets at once; it may return earlier than from the last of them."""
        if self._fetcher.singly and following <= self._fetcher.singly.get(tp, NO_OFFSET):
            return 1
        if bounds is None:
            return min(self._pace.size, len(messages) - done)
        return fitting(messages[done : done + bounds.records], bounds.bytes)

    def _handle_chunk(
        self, handling: Handling[Calls], grant: Grant, messages: Sequence[Message], following: Sequence[int]
    ) -> int | None:
        """How many records are done with; None if no more of this run are to be: the grant has ended, or waits."""
        if self._outputs is not None:
            self._outputs.grant = grant
        if grant.poison and following[0] > grant.poison_at:
            return 1 if self._failures.meet_poison(grant, messages, self._now) else None
        if grant.refusal is not None and following[0] > grant.refused_before:
            refusal, grant.refusal = grant.refusal, None
            # Else it was compacted away meanwhile, and this is another one, which the handler has not had yet.
            if following[0] == grant.refused_before + 1:
                refused = Attempt(grant, messages[:1], following[0], calls=0)
                return 1 if self._failures.meet_refusal(refused, refusal, grant.refusals, self._now) else None
        started = self._now
        error = self._call(handling.calls, grant, messages, following)
        self._now = now_ns()
        self.progress += 1
        duration = self._now - started
        finished = bisect_right(following, self._ledger.cells[grant.at + self._progress_cell])
        self._pace.took(finished, duration)
        if finished:
            grant.failures = 0
        if error is None or isinstance(error, DrainDeadline) or finished == len(messages):
            calls = finished if handling.batch_max_records is None else min(finished, 1)
            return finished if self._fetcher.release(grant, finished, duration, calls) else None
        count = 1 if handling.batch_max_records is None else len(messages) - finished
        if isinstance(error, OfOne):
            self._fetcher.spare(grant, error.ahead)
            count, error = 1, error.error
        end = finished + count
        failed = Attempt(grant, messages[finished:end], following[end - 1], finished, duration, finished + 1)
        return end if self._failures.meet(failed, error, self._now) else None

    def _call(
        self, calls: Calls, grant: Grant, messages: Sequence[Message], following: Sequence[int]
    ) -> BaseException | None:
        """Let the handler handle; what it raises is a failure of its record and nothing else.

        `DrainDeadline` may come out of the inner `finally`, too: the outer `try` holds whatever the signal hits.
        """
        # The record's try before this one may have been in hand for too long: that is no reason to end this one.
        self._timed_out = self._interruption = None
        progress = grant.at + self._progress_cell
        try:
            try:
                self._interruptible = grant
                calls(messages, following, self._ledger.cells, progress, self._fetcher.interrupts)
            finally:
                self._interruptible = None
        except BaseException as error:
            return met(error, self._interruption, self._ledger.cells[progress])
        return None

    def _try_again(self) -> None:
        """Ask the handler once more for every parked record whose wait is over."""
        for grant, messages in self._failures.due(self._now):
            following = following_offsets(messages)
            self._fetcher.interrupts.clear()
            may = self._room(grant.tp, following[0]) and self._within_lease()
            if may and self._fetcher.retake(grant, self._now):
                self._handle_chunk(self._handlings.of(grant.tp.topic), grant, messages, following)
            if self._now >= self._turn_ends:
                return

    def _room(self, tp: TopicPartition, following: int) -> int:
        """So many records may be handled now, the first before `following`; waits while too much is not delivered.
        0: everything was drained."""
        if self._outputs is None:
            return self._fetch_records
        alone = following <= self._fetcher.alone.get(tp, NO_OFFSET)
        while not (room := self._outputs.room(_ROOM_CHECK_SECONDS, alone=alone)) and not self._fetcher.drained:
            self.progress += 1
            self._now = now_ns()
            # A lost partition would be let go of only when the brokers take outputs again.
            self._lifecycle.attend(self._now)
        self._now = now_ns()
        return room

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _within_lease(self) -> bool:
        """Wait, if need be, until membership is certain; False if everything was drained meanwhile."""
        if self._now <= self._ledger.lease_ns:
            return True
        self.paused_by_lease = True
        log.warning("membership is not certain any more: no further record is started until a heartbeat is answered")
        while self._now > self._ledger.lease_ns and not self._fetcher.drained:
            time.sleep(_LEASE_CHECK_SECONDS)
            self.progress += 1
            self._now = now_ns()
            # Membership comes back only when lost partitions are reported, which their on_lost goes before.
            self._lifecycle.attend(self._now)
        self.paused_by_lease = False
        if self._fetcher.drained:
            return False
        log.info("membership is certain again: going on")
        return True


_FETCH_RECORDS = 500


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
