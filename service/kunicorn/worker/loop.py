"""The poll loop of a worker, in its main thread: fetch, handle, store. Everything that is slow here is the handler's.

`Runner` has one record or batch in hand. 1. The ledger's consumed offset never passes an unfinished record: it is
stored after the handler returned, record by record, and by nobody else while records are in hand. 2. No record is
started past the lease: the clock is read once a chunk, and chunks shrink to one record when the handler is slow; in
between the control thread watches the lease and interrupts.

`ConcurrentRunner` has several: it fetches and deals with what failed; executors handle. 1. Only this thread calls the
Kafka client; executors start and finish records without waiting for it. 2. No record is started past the lease:
`Flights.start_next` looks at the clock for each.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any

from confluent_kafka import Message

from kunicorn.handler.call import Calls, Interruption, OfOne, fitting, following_offsets, met
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.registry import HandlerRegistry, Handling
from kunicorn.handler.retry import timed_out
from kunicorn.ipc.clock import now_ns
from kunicorn.librdkafka.errors import parted
from kunicorn.positions import NO_OFFSET, TopicPartition, place_of
from kunicorn.worker.buffering import BatchBuffer, Bounds, Delays, HeadOfLine, TurnBuffer, bounds_of
from kunicorn.worker.client import Client
from kunicorn.worker.executors import Executors
from kunicorn.worker.failures import Failures
from kunicorn.worker.fetch import ChunkPace, Run, ends_grant, gathered_runs, meet_errors, runs
from kunicorn.worker.hooks import Hooks
from kunicorn.worker.in_flight import Flights
from kunicorn.worker.partitions import UNLIMITED, SequentialTable
from kunicorn.worker.progress import Attempt, Grant, GrantState, InFlight

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
    """Poll loop with one record or batch in hand. `progress` grows with every turn: the evidence that it is alive."""

    def __init__(
        self,
        client: Client,
        table: SequentialTable,
        handlings: HandlerRegistry[Calls],
        hooks: Hooks,
        failures: Failures[Grant],
    ) -> None:
        """Caller: the main thread, as `run`."""
        self.progress = 0
        self.paused_by_lease = False
        self._client, self._consumer = client, client.consumer
        self._table = table
        self._ledger = table.ledger
        self._handlings = handlings
        self._hooks = hooks
        self._failures = failures
        self._bounds = {each: bounds_of(each) for each in handlings.every}
        batches = [bounds for bounds in self._bounds.values() if bounds is not None]
        self._batches = bool(batches)
        """Some handler takes batches."""
        self._batch_buffers = {
            each: BatchBuffer(bounds, table)
            for each, bounds in self._bounds.items()
            if bounds is not None and bounds.wait_ns
        }
        self._fetch_records = max([FETCH_RECORDS, *(batch.records for batch in batches)])
        self._turn_buffer = TurnBuffer(table)
        self._line = HeadOfLine(table, self._turn_buffer)
        self._turn_ends = 0
        self._delays = Delays(table)
        self._progress_cell = table.progress_cell
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
        """Run turns until everything is drained. Caller: the main thread; blocks."""
        while not self._table.drained:
            self.progress += 1
            self._turn_ends = self._now + _TURN_NS
            self._client.log_in()
            self._failures.look_after_letters(self._now)
            self._try_again()
            self._hooks.call_due(self._now)
            self._delays.end_due(self._now)
            self._table.begin_turn(self._now)
            self._handle_gathered(self._now)
            batch = self._fetch()
            self._now = now_ns()
            if batch or self._turn_buffer:
                self._turn_ends = self._now + _TURN_NS
                self._handle(batch)
            if self._turn_buffer.errors:
                self._meet_errors()

    def time_out(self, grant: int, offset: int, overdue_ns: int = 0) -> None:
        """Interrupt the handler, if it still has that record in hand. Caller: the control thread."""
        self._timed_out = (grant, offset)
        # To the main thread alone, so that a system call in which the handler waits gives way.
        signal.pthread_kill(self._thread, signal.SIGUSR1)

    def on_interruption(self) -> None:
        """Raise `HandlerTimeout` or `DrainDeadline` in the handler, if its record is the one that was meant. Caller:
        the signal handler.

        The supervisor decides from outside; by the time the signal arrives another record may be in hand.
        """
        grant = self._interruptible
        if grant is None:
            self._hooks.interrupt()
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
        """Place of the record that the handler has in hand (of a batch, the first): `topic`, `partition`, `offset`.
        Empty in other threads and tasks than the call's own. Caller: whatever logs.
        """
        grant = self._interruptible
        if grant is None or threading.get_ident() != self._thread:
            return {}
        if not self._handlings.of(grant.tp.topic).calls.calling():
            return {}
        return place_of(grant.tp, grant.in_hand(self._ledger.cells))

    # -- fetching --------------------------------------------------------------------------------------------------

    def _fetch(self) -> list[Message]:
        """Fetched messages to be handled; none where something is left over, behind which they come. `consume(n, t)`
        alone would wait the whole `t` unless `n` records come.
        """
        if self._turn_buffer or any(buffer.puts_back for buffer in self._batch_buffers.values()):
            self._fetch_behind()
            return []
        self._line.resume()
        patience = self._failures.patience(self._now, _IDLE_SECONDS)
        for buffer in self._batch_buffers.values():
            patience = buffer.patience(self._now, patience)
        first = self._consumer.poll(patience)
        if first is None:
            return []
        return [first, *self._consumer.consume(self._fetch_records - 1, 0)]

    def _fetch_behind(self) -> None:
        """Buffer all that the client has, as far as there is room."""
        until = self._now + _TURN_NS
        while self._now < until and (room := self._line.room(self._now)):
            batch = self._consumer.consume(min(self._fetch_records, room), 0)
            if not batch:
                return
            self._line.took(batch)
            fetched, errors = self._parted(batch)
            self._turn_buffer.arrived(fetched)
            for error in errors:
                self._note_error(error)
            self._now = now_ns()

    def _parted(self, batch: list[Message]) -> tuple[Iterator[Run], list[Message]]:
        """Runs of a batch, and the client's errors, which come behind these."""
        batch, errors = parted(batch, ends_grant)
        fetched = (gathered_runs if self._batches else runs)(batch, self._table.several_topics)
        if self._turn_buffer.errors:
            fetched = (run for run in fetched if not self._turn_buffer.ends(run.tp))
        return fetched, errors

    def _handle(self, batch: list[Message]) -> None:
        turn_buffer = self._turn_buffer
        fetched, errors = self._parted(batch)
        for run in turn_buffer.runs() if turn_buffer else fetched:
            self._handle_or_gather(run)
            if self._now >= self._turn_ends:
                turn_buffer.served(run.tp)
                turn_buffer.arrived(fetched)
                break
        for error in errors:
            self._note_error(error)

    def _note_error(self, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is None or topic is None or partition is None or not ends_grant(error):
            meet_errors([message], self._table.broken)
        else:
            self._turn_buffer.end(TopicPartition(topic, partition), message)

    def _meet_errors(self) -> None:
        """React to errors of partitions whose records before them are handled: the next one comes only after the
        partition was assigned again.
        """
        for tp in self._turn_buffer.ending():
            for buffer in self._batch_buffers.values():
                for run in buffer.rest_of(tp):
                    self._handle_full(buffer, run)
            grant = self._table.fetching(tp)
            if grant is None or not grant.waits_for_batch:
                meet_errors([self._turn_buffer.take_error(tp)], self._table.broken)

    # -- handling --------------------------------------------------------------------------------------------------

    def _handle_or_gather(self, run: Run) -> None:
        messages = self._table.unhandled(run.tp, run.messages)
        if (stop := self._table.stops.get(run.tp)) is not None:
            # What is dropped here moves the position on, which tells the supervisor that the end is reached.
            messages = messages[: bisect_left([message.offset() or 0 for message in messages], stop)]
        messages, wait, late = self._delays.split(run.tp, messages)
        if messages:
            wanted = Run(run.tp, run.leader_epoch, messages)
            buffer = self._batch_buffers.get(self._handlings.of(run.tp.topic))
            if run.tp.topic in self._table.settings.delays:
                # What has waited in a retry topic waits for no fuller batch: putting the rest off would let go of it.
                buffer = None
            if buffer is None:
                if left := self._handle_run(*wanted):
                    # What has to wait for its time comes behind it.
                    self._turn_buffer.put_back(Run(run.tp, run.leader_epoch, left + late))
                    return
            else:
                for full in buffer.add(wanted, self._now):
                    self._handle_full(buffer, full)
        if wait is not None:
            self._delays.delay(run.tp, wait, self._now)

    def _handle_gathered(self, now: int) -> None:
        """Handle the records that have waited long enough for a fuller batch."""
        for buffer in self._batch_buffers.values():
            for run in buffer.due(now):
                self._handle_full(buffer, run)
                if self._now >= self._turn_ends:
                    return

    def _handle_full(self, buffer: BatchBuffer, run: Run) -> None:
        """Handle a run that does not wait for a fuller batch any more."""
        if left := self._handle_run(*run):
            buffer.put_back(Run(run.tp, run.leader_epoch, left))

    def _handle_run(self, tp: TopicPartition, epoch: int, messages: list[Message]) -> list[Message]:
        """Handle the messages; the rest where the turn is over. At least one call is made."""
        handling = self._handlings.of(tp.topic)
        bounds = self._bounds[handling]
        following = following_offsets(messages)
        done = 0
        while done < len(messages):
            # Before it looks around: what comes up from here on stops the handler before its next record.
            self._table.interrupts.clear()
            if self._hooks.waiting:
                self._hooks.call_due(self._now)
                self._now = now_ns()
            # The lease comes last: hooks, and the wait for room, may outlast it.
            if not (room := self._room(tp, following[done])) or not self._within_lease():
                return []
            end = done + min(self._chunk(bounds, tp, following[done], messages, done), room)
            timestamp = messages[done].timestamp()[1]
            grant = self._table.begin(tp, following[done:end], epoch, self._now, timestamp)
            if grant is None:
                return []
            finished = self._handle_chunk(handling, grant, messages[done:end], following[done:end])
            if finished is None:
                return []
            done += finished
            if grant.ahead:
                messages, done = self._table.unhandled(tp, messages[done:]), 0
                following = following_offsets(messages) if messages else ()
            if self._now >= self._turn_ends:
                return messages[done:]
        return []

    def _chunk(
        self, bounds: Bounds | None, tp: TopicPartition, following: int, messages: list[Message], done: int
    ) -> int:
        """Number of records for the next call, which may return before the last of them."""
        if self._table.singly and following <= self._table.singly.get(tp, NO_OFFSET):
            return 1
        if bounds is None:
            return min(self._pace.size, len(messages) - done)
        return fitting(messages[done : done + bounds.records], bounds.bytes)

    def _handle_chunk(
        self, handling: Handling[Calls], grant: Grant, messages: Sequence[Message], following: Sequence[int]
    ) -> int | None:
        """Handle one chunk; the number of finished records, None where the grant has ended or waits."""
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
            return finished if self._table.release(grant, finished, duration, calls) else None
        count = 1 if handling.batch_max_records is None else len(messages) - finished
        if isinstance(error, OfOne):
            self._table.note_done_ahead(grant, error.ahead)
            count, error = 1, error.error
        end = finished + count
        failed = Attempt(grant, messages[finished:end], following[end - 1], finished, duration, finished + 1)
        return end if self._failures.meet(failed, error, self._now) else None

    def _call(
        self, calls: Calls, grant: Grant, messages: Sequence[Message], following: Sequence[int]
    ) -> BaseException | None:
        """Call the handler; whatever it raises is a failure of its record and nothing else.

        `DrainDeadline` may come out of the inner `finally`, too: the outer `try` holds whatever the signal hits.
        """
        # The record's try before this one may have been in hand for too long: that is no reason to end this one.
        self._timed_out = self._interruption = None
        progress = grant.at + self._progress_cell
        try:
            try:
                self._interruptible = grant
                calls(messages, following, self._ledger.cells, progress, self._table.interrupts, grant)
            finally:
                self._interruptible = None
        except BaseException as error:
            return met(error, self._interruption, self._ledger.cells[progress])
        return None

    def _try_again(self) -> None:
        """Call the handler again with every parked record whose wait is over."""
        for grant, messages in self._failures.due(self._now):
            following = following_offsets(messages)
            self._table.interrupts.clear()
            may = self._room(grant.tp, following[0]) and self._within_lease()
            if may and self._table.begin_again(grant, self._now):
                self._handle_chunk(self._handlings.of(grant.tp.topic), grant, messages, following)
            if self._now >= self._turn_ends:
                return

    def _room(self, tp: TopicPartition, following: int) -> int:
        """Number of records that may be handled now, the first before `following`; waits while too much is not
        delivered. 0: everything was drained.
        """
        room = self._table.room(tp, following, _ROOM_CHECK_SECONDS)
        if room == UNLIMITED:
            return room
        while not room and not self._table.drained:
            self.progress += 1
            self._now = now_ns()
            # A lost partition would be let go of only when the brokers take outputs again.
            self._hooks.call_due(self._now)
            room = self._table.room(tp, following, _ROOM_CHECK_SECONDS)
        self._now = now_ns()
        return room

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _within_lease(self) -> bool:
        """Wait, if need be, until membership is certain; False if everything was drained meanwhile."""
        if self._now <= self._ledger.lease_ns:
            return True
        self.paused_by_lease = True
        log.warning("membership is not certain any more: no further record is started until a heartbeat is answered")
        while self._now > self._ledger.lease_ns and not self._table.drained:
            time.sleep(_LEASE_CHECK_SECONDS)
            self.progress += 1
            self._now = now_ns()
            # Membership comes back only when lost partitions are reported, which their on_lost goes before.
            self._hooks.call_due(self._now)
        self.paused_by_lease = False
        if self._table.drained:
            return False
        log.info("membership is certain again: going on")
        return True


_FETCH_RECORDS = 500


class ConcurrentRunner:
    """Poll loop with several records in hand. `progress` grows with every turn: the evidence that it is alive."""

    def __init__(
        self,
        client: Client,
        flights: Flights,
        executors: Executors,
        hooks: Hooks,
        failures: Failures[InFlight],
    ) -> None:
        """Caller: the main thread, as `run`."""
        self.progress = 0
        self.paused_by_lease = False
        self._client, self._consumer = client, client.consumer
        self._flights = flights
        self._ledger = flights.ledger
        self._executors = executors
        self._hooks = hooks
        self._failures = failures
        self._delays = Delays(flights)
        self._line = HeadOfLine(flights, flights)
        self._deadline = False
        """The drain budget is over."""

    def run(self) -> None:
        """Run turns until everything is drained. Caller: the main thread; blocks."""
        self._executors.begin(self._flights)
        while not self._flights.drained:
            self.progress += 1
            now = now_ns()
            self._client.log_in()
            self._interrupt_what_is_to_end()
            self._failures.look_after_letters(now)
            self._meet_failures(now)
            for flight, _ in self._failures.due(now):
                self._flights.try_again(flight)
            self._watch_lease(now)
            self._hooks.call_due(now)
            self._delays.end_due(now)
            self._flights.balance()
            self._flights.begin_turn(now)
            self._fetch(now)
            self._executors.wake()

    def time_out(self, grant: int, offset: int, overdue_ns: int = 0) -> None:
        """Interrupt the handler, if it still has that record in hand, and all records that it got of the grant by
        `overdue_ns`. Caller: the control thread.
        """
        for flight in self._flights.overdue(grant, offset, overdue_ns):
            self._executors.interrupt(flight, HandlerTimeout())

    def on_interruption(self) -> None:
        """Have `DrainDeadline` raised in the calls whose partition is to be given up. Caller: the signal handler, which
        may run while this thread holds the table's lock: the next turn does it."""
        self._deadline = True

    def place(self) -> Mapping[str, Any]:
        flight = self._executors.calling()
        return {} if flight is None else place_of(flight.tp, flight.offset)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, now: int) -> None:
        patience = self._failures.patience(now, _IDLE_SECONDS)
        if not (room := self._line.room(now)):
            self._executors.wait_for_room(patience)
            return
        first = self._consumer.poll(0 if self._executors.have_failures else patience)
        if first is None:
            return
        batch = [first, *self._consumer.consume(min(_FETCH_RECORDS, room) - 1, 0)]
        self._line.took(batch)
        batch, errors = parted(batch, ends_grant)
        for tp, epoch, messages in runs(batch, self._flights.several_topics):
            ready, wait, _ = self._delays.split(tp, self._before_end(tp, messages))
            self._flights.feed(tp, epoch, ready)
            if wait is not None:
                self._delays.delay(tp, wait, now)
        # A partition's error comes after its records, and the next comes only after it was assigned again.
        meet_errors(errors, self._flights.broken)

    def _before_end(self, tp: TopicPartition, messages: list[Message]) -> list[Message]:
        """Messages before the partition's stop. The dropped ones move the position on, which tells the supervisor that
        the end is reached.
        """
        stop = self._flights.stops.get(tp)
        return messages if stop is None else messages[: bisect_left(messages, stop, key=methodcaller("offset"))]

    # -- what failed -------------------------------------------------------------------------------------------------

    def _meet_failures(self, now: int) -> None:
        for flight, error in self._executors.failures():
            # What its handler returned is none: something behind that has failed.
            flight.withdraw()
            if isinstance(error, DrainDeadline) or self._flights.overtaken(flight):
                self._flights.put_back(flight)
            elif flight.poison:
                self._failures.meet_poison(flight, [flight.message], now)
            else:
                failure = timed_out(error) if isinstance(error, HandlerTimeout) else error
                # One that is refused has failed without a call: its handler returned, and was counted then.
                calls, took = (0, 0) if error is flight.refusal else (1, now - flight.since_ns)
                attempt = Attempt(flight, [flight.message], flight.offset + 1, 0, took, calls)
                self._failures.meet(attempt, failure, now)

    def _interrupt_what_is_to_end(self) -> None:
        if self._deadline:
            self._deadline = False
            for flight in self._flights.to_be_given_up():
                self._executors.interrupt(flight, DrainDeadline())

    # -- the lease ---------------------------------------------------------------------------------------------------

    def _watch_lease(self, now: int) -> None:
        """Log when records are not started any more, and when they are again."""
        past = now > self._ledger.lease_ns
        if past and not self.paused_by_lease:
            log.warning(
                "membership is not certain any more: no further record is started until a heartbeat is answered"
            )
        elif self.paused_by_lease and not past:
            log.info("membership is certain again: going on")
        self.paused_by_lease = past
