"""One worker's life on records in memory, in the test's thread, with the parts that `kunicorn.worker.assembly` makes.

What the supervisor and the control thread would say is said from inside the runner's own thread: at the moment that a
test stages (a revoke, a lost session, a kill while the handler has a certain record), or when the client has nothing
more to give. The worker's clock stands still while the handler works, and is turned on for a retry, so that nobody
waits. Outputs are delivered by the runner's thread, at moments that are the same in every run.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import cycle
from typing import Any

import msgspec
from confluent_kafka import Message

from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handler.encode.readers import OutputReaders
from kunicorn.handler.load import Handler, find, handler_of
from kunicorn.handler.outcome import Wait
from kunicorn.handler.outputs import refuse_two_committers
from kunicorn.handler.record import Batch, Record
from kunicorn.handler.registry import check_offsets
from kunicorn.handler.retry import End
from kunicorn.handler.rows import Rows
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    CommitAs,
    CommitWanted,
    Configure,
    Drain,
    Failed,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    StartFetcher,
    StopFetcher,
    TimedOut,
)
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.workers.config import configure
from kunicorn.testing.memory import GivenRecord, MemoryConsumer, MemoryLog, MemoryProducer, SentRecord, message_of
from kunicorn.testing.outcome import Fate, Notes, Run, outcome_of, then_killed
from kunicorn.testing.registry import with_registry
from kunicorn.worker.assembly import Assembled, CannotServe, Makers, assemble, concurrency
from kunicorn.worker.control import Said, apply
from kunicorn.worker.failures import Observer
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import Sender


@dataclass(frozen=True, slots=True)
class Revoke:
    """The record's partition is taken away, in order: drained, committed, given to another member."""

    at: int
    """Index of the record among those given."""
    drain_timeout_ms: int | None = None
    """After so long (real time) the handler is interrupted by `DrainDeadline`; None: it may take its time."""


@dataclass(frozen=True, slots=True)
class LoseSession:
    """The member was fenced: its lease is over, other members have its partitions, nothing is committed."""

    at: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the worker when its handler is through with the record, and its offset does not count yet."""

    at: int


Stage = Revoke | LoseSession | Kill


def stage_of(
    count: int, revoke_at: int | None, drain_timeout_ms: int | None, lose_session_at: int | None, kill_at: int | None
) -> Stage | None:
    """Stage that the arguments of `HandlerTest.run` ask for; None without any. Raises `ValueError`."""
    found: list[Stage] = []
    if revoke_at is not None:
        found.append(Revoke(revoke_at, drain_timeout_ms))
    elif drain_timeout_ms is not None:
        raise ValueError("drain_timeout_ms belongs to revoke_at: say at which record the partition is taken away")
    if lose_session_at is not None:
        found.append(LoseSession(lose_session_at))
    if kill_at is not None:
        found.append(Kill(kill_at))
    if len(found) > 1:
        raise ValueError("a run has one of revoke_at, lose_session_at and kill_at: what comes after one is another run")
    if found and not 0 <= found[0].at < count:
        raise ValueError(f"there is no record {found[0].at}: {count} are given, counted from 0")
    return found[0] if found else None


class HandedOut:
    """The partitions of the records that are given, each handed out to the worker under a grant, and its ledger."""

    def __init__(self, records: Sequence[GivenRecord]) -> None:
        self.starts = {each.tp: each.at for each in reversed(records)}
        self.grants = {tp: number for number, tp in enumerate(self.starts, 1)}
        """By partition: number of its grant, which is that of its slot, too."""
        self.ledger = Ledger.create(len(self.starts) + 1)
        self.ledger.lease_ns = _FOR_EVER
        self._records = records
        self._places = {(each.tp, each.at): index for index, each in enumerate(records)}

    def indices(self, argument: Any) -> list[int]:
        """Indices of the records that the handler gets; where it gets models, of those that the ledger has in hand."""
        if hasattr(argument, "to_pylist"):  # A RecordBatch, without loading Arrow for all others.
            argument = list(map(Record.of, Rows(argument)))
        if isinstance(argument, Record):
            argument = [argument]
        if isinstance(argument, Batch) or (isinstance(argument, list) and isinstance(argument[0], Record)):
            return [self._places[TopicPartition(each.topic, each.partition), each.offset] for each in argument]
        count = len(argument) if isinstance(argument, list) else 1
        for tp, number in self.grants.items():
            if (reading := self.ledger.read(number, number)).hand_count:
                return self._following(tp, reading.in_hand, count)
        return []

    def in_hand(self, index: int) -> tuple[int, int]:
        """Grant and offset that the ledger has in hand, in the partition of the record with that index."""
        number = self.grants[self._records[index].tp]
        return number, self.ledger.read(number, number).in_hand

    def _following(self, tp: TopicPartition, offset: int, count: int) -> list[int]:
        """Indices of `count` records from this offset on, whatever the gaps between them."""
        found: list[int] = []
        while len(found) < count:
            with contextlib.suppress(KeyError):
                found.append(self._places[tp, offset])
            offset += 1
        return found


class Staging:
    """Plays the stage when the handler has its record. Caller: the runner's thread, which is the test's."""

    def __init__(
        self,
        stage: Stage | None,
        handed_out: HandedOut,
        called: Callable[[Sequence[int]], None],
        say: Callable[[Said], None],
        handler_timeout_ms: int | None,
    ) -> None:
        """`called` is told of every call; `say` says to the worker what a supervisor would."""
        self.needs_signals = handler_timeout_ms is not None or isinstance(stage, Revoke)
        self._stage = stage
        self._handed_out = handed_out
        self._called = called
        self._say = say
        self._handler_timeout_ms = handler_timeout_ms
        self._timer: threading.Timer | None = None

    def around(self, handler: Handler) -> Handler:
        """The handler, with the stage around its calls."""
        call = handler.call

        @wraps(call)  # Its annotations say what it is to be called with.
        def staged(*arguments: Any) -> Any:
            if not self._before(self._handed_out.indices(arguments[-1])):
                return call(*arguments)
            # The worst of moments: the record's effects are there, and its offset does not count yet.
            return then_killed(call(*arguments))

        return replace(handler, call=staged)

    def quiet(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def _before(self, indices: Sequence[int]) -> bool:
        """Whether the worker is to be killed when this call returns."""
        self.quiet()
        self._called(indices)
        if not indices:
            return False
        grant, offset = self._handed_out.in_hand(indices[0])
        if self._handler_timeout_ms is not None:
            self._later(self._handler_timeout_ms, lambda: self._say(TimedOut(grant, offset)))
        stage = self._stage
        if stage is None or stage.at not in indices:
            return False
        self._stage = None
        match stage:
            case Kill():
                return True
            case LoseSession():
                self._say(StopFetcher(list(self._handed_out.grants.values()), None, lost=True))
                self._say(Drain(0.0))
            case Revoke(drain_timeout_ms=limit):
                self._say(StopFetcher([grant], None))
                if limit is not None:
                    thread = threading.get_ident()
                    self._later(limit, lambda: signal.pthread_kill(thread, signal.SIGUSR1))
        return False

    def _later(self, milliseconds: int, act: Callable[[], None]) -> None:
        self.quiet()
        self._timer = threading.Timer(milliseconds / 1000, act)
        self._timer.daemon = True
        self._timer.start()


_FOR_EVER = _EVERYTHING = 2**63 - 1
_START = 1_000_000 * clock.NANOSECONDS
_OVERSHOOT = 0.01


class HandlerClock:
    """Stands in for the module `time` inside `kunicorn.ipc.clock`. The handler's own clocks go on as they do."""

    def __init__(self) -> None:
        self._now = _START
        self._began_ns = time.time_ns()
        self._idle_since = _START

    def clock_gettime_ns(self, number: int) -> int:
        return self._now

    def clock_gettime(self, number: int) -> float:
        return self._now / clock.NANOSECONDS

    def time_ns(self) -> int:
        return self._began_ns + self._now - _START

    def busy(self) -> None:
        """Note that something was handled."""
        self._idle_since = self._now

    def pass_idle(self, seconds: float) -> None:
        """Turn the clock on by that time, and by a little more the longer nobody had anything to do: a wait of a day is
        a few hundred turns of the loop, and ends at most one in a hundred late.
        """
        idle = self._now - self._idle_since
        self._now += max(int(seconds * clock.NANOSECONDS), int(idle * _OVERSHOOT), 1)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Have `kunicorn.ipc.clock` read this clock, in the whole process."""
        place: Any = clock
        place.time, before = self, place.time
        try:
            yield
        finally:
            place.time = before


_MOST_WAITS = 1000
"""So often a record may wait before a test ends: nothing else would end one whose handler always says `Wait`."""

_FATES = {
    End.SKIP: Fate.SKIPPED,
    End.DEAD_LETTER: Fate.DEAD_LETTER,
    End.RETRY_TOPIC: Fate.RETRY_TOPIC,
    End.HALT: Fate.GIVEN_UP,
}


@dataclass(frozen=True, slots=True)
class Noting(Observer):
    """Notes what became of records that the handler did not just handle."""

    notes: Notes
    handed_out: HandedOut
    on_error: Callable[[BaseException], None]
    endless: bool
    """There is a circuit breaker: a handler that fails is probed for ever."""

    def raised(self, records: Sequence[Message], error: BaseException) -> None:
        indices = self.handed_out.indices(Batch(records))
        self.notes.raised(indices, error)
        if (self.endless or isinstance(error, Wait)) and self.notes.attempts(indices[0]) >= _MOST_WAITS:
            raise TimeoutError(
                f"offset {records[0].offset()} waits for ever: the handler was called with it {_MOST_WAITS} times, "
                f"and said {error!r} last"
            )
        self.on_error(error)

    def ended(self, records: Sequence[Message], end: End) -> None:
        if end in _FATES:
            self.notes.ended(self.handed_out.indices(Batch(records)), _FATES[end])

    def filtered(self, record: Message) -> None:
        self.notes.ended(self.handed_out.indices(Batch([record])), Fate.FILTERED)


class Carried:
    """Takes the senders' place, whose threads would outlive a test and decide by the clock."""

    def __init__(self, outbox: Outbox, senders: Sequence[Sender]) -> None:
        self._outbox = outbox
        self._turns = cycle(enumerate(senders))

    def start(self) -> None:
        """Does nothing: outputs are delivered by `deliver`."""

    def deliver(self) -> bool:
        """Deliver what waits; False if there is nothing."""
        if not self._outbox.waits:
            return False
        self._outbox.hurry()
        turn, sender = next(self._turns)
        batch = self._outbox.take(turn)
        assert batch is not None
        sender.deliver(batch)
        self._outbox.done(batch)
        return True


_PATIENCE = 30.0
"""Seconds in which nothing was handled, though something is left: only a handler's own threads take so long."""
_PAUSE = 0.0005


class Bench:
    """The worker under test, with its ledger and the notes, which a killed worker leaves behind; `close` frees them."""

    def __init__(
        self,
        settings: Settings,
        records: Sequence[GivenRecord],
        stage: Stage | None,
        on_error: Callable[[BaseException], None] | None = None,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        """`on_error` is called with what the handler raised, before anything becomes of it. `schemas`: those of a
        registry in memory, by subject; None: the settings' registry.
        """
        self._schemas = schemas
        self.took = 0.0
        """Seconds that the last call of the handler took, to within a turn of the runner."""
        self._on_error = on_error
        self._settings = settings
        self._records = records
        self._handed_out = HandedOut(records)
        self._starts, self._grants = self._handed_out.starts, self._handed_out.grants
        self._ledger = self._handed_out.ledger
        self._notes = Notes(len(records))
        self._log = MemoryLog(map(message_of, records))
        self._clock = HandlerClock()
        self._sent: list[SentRecord] = []
        self._over: dict[int, int] = {}
        """By grant: the offset that was reported last."""
        self._halted: dict[TopicPartition, str] = {}
        self._lost = False
        self._heard = 0.0
        self._handling = False
        self._carried: Carried | None = None
        """Where outputs go; None: nothing is sent."""
        self._endless = any(each.circuit_breaker is not None for each in settings.every_handler)
        self._staging = Staging(stage, self._handed_out, self._called, self._say, settings.handler.handler_timeout_ms)

    def close(self) -> None:
        """Free what is shared with a killed worker."""
        self._ledger.close()
        self._notes.close()

    def outcome(self) -> Run:
        """Result of the run. Caller: the test's process, after `work`."""
        consumed = {tp: self._consumed(tp) for tp in self._starts}
        committed = dict(self._starts) if self._lost else consumed
        return outcome_of(self._records, self._notes, consumed, committed, self._sent, self._halted)

    # -- the worker's life ---------------------------------------------------------------------------------------

    def work(self) -> None:
        """Set up, handle everything, tear down. Raises `ConfigError`, `HandlerLoadError`; what teardown raises."""
        with self._clock.in_force():
            made = self._worker = self._assembled()
            try:
                with self._interruptible(made):
                    self._say(
                        StartFetcher(
                            [
                                FetcherStart(number, number, tp.topic, tp.partition, self._starts[tp], 0)
                                for tp, number in self._grants.items()
                            ]
                        )
                    )
                    self._heard = time.monotonic()
                    made.runner.run()
                made.hooks.finish()
                for handling in made.handlings.every:
                    handling.tear_down()
            finally:
                for handling in made.handlings.every:
                    handling.calls.close()

    def _assembled(self) -> Assembled:
        told = configure(self._settings, 0, [], None, 1)
        _refuse_as_a_worker_would(told)
        told = _one_by_one(told)
        if self._schemas is not None:
            told = with_registry(told, self._schemas)
        readers = OutputReaders(told.producing.encoding if told.producing is not None else None)
        makers = Makers(
            consumer=lambda properties, logger: MemoryConsumer(self._log, self._idle),  # type: ignore[arg-type, return-value]
            producer=lambda properties, logger: MemoryProducer(self._sent, readers),  # type: ignore[arg-type, return-value]
            senders=self._senders,
            handler=self._watched,
            observer=Noting(self._notes, self._handed_out, self._raised, self._endless),
            wait=lambda event, seconds: self._idle(seconds),
        )
        try:
            return assemble(told, self._ledger, self._reported, makers)
        except CannotServe as failure:
            kind = HandlerLoadError if failure.status is ExitCode.HANDLER else ConfigError
            raise kind(str(failure)) from failure.__cause__

    def _watched(self, handler: Handler) -> Handler:
        if handler.is_async:
            _refuse_inside_a_loop()
        # The records that are given are what is handled: nobody's database is asked where to begin, or told.
        return self._staging.around(replace(handler, load_offsets=None, store_offsets=None))

    @contextmanager
    def _interruptible(self, made: Assembled) -> Iterator[None]:
        """Have the runner's signal do here what it does in a worker, and restore it."""
        if threading.current_thread() is not threading.main_thread():
            if self._staging.needs_signals:
                raise RuntimeError("a handler is interrupted by a signal: run this test in the main thread")
            yield
            return
        before = signal.signal(signal.SIGUSR1, lambda number, frame: made.runner.on_interruption())
        try:
            yield
        finally:
            self._staging.quiet()
            signal.signal(signal.SIGUSR1, before)

    # -- in the supervisor's place ---------------------------------------------------------------------------------

    def _idle(self, seconds: float) -> None:
        """React to a client that has nothing to give. Caller: the runner, between two turns."""
        self._stop_watch()
        if self._carried is not None and self._carried.deliver():
            return
        fetched = [tp for tp, number in self._grants.items() if number not in self._over]
        if all(self._consumed(tp) >= self._log.end(tp) for tp in fetched):
            self._say(Drain(0.0))
            return
        self._clock.pass_idle(seconds)
        if self._worker.table.parked()[1]:
            return  # For the next try: only the clock has to be turned.
        if time.monotonic() - self._heard > _PATIENCE:
            left = ", ".join(f"{tp}@{self._consumed(tp)}" for tp in fetched)
            raise TimeoutError(f"nothing was handled for {_PATIENCE:.0f} s, though records are left: {left}")
        time.sleep(_PAUSE)

    def _consumed(self, tp: TopicPartition) -> int:
        number = self._grants[tp]
        offset = self._over.get(number, self._ledger.read(number, number).consumed.offset)
        return max(offset, self._starts[tp])

    def _say(self, said: Said) -> None:
        """Say to the worker what a supervisor would."""
        if isinstance(said, StopFetcher) and said.lost:
            # Other members begin where this one did: nothing that is reported from now on counts.
            self._lost = True
            self._ledger.lease_ns = 1
        apply(self._worker, said)

    def _reported(self, message: FromWorker) -> None:
        if isinstance(message, FetcherStopped):
            self._over |= {stopped.grant: stopped.offset for stopped in message.partitions}
        elif isinstance(message, Failed):
            self._over[message.grant] = message.offset
            self._halted[next(tp for tp, number in self._grants.items() if number == message.grant)] = message.error
        elif isinstance(message, CommitWanted):
            self._say(CommitAs(message.number, 1, "member", None))

    def _senders(self, outbox: Outbox, senders: Sequence[Sender]) -> Carried:
        self._carried = Carried(outbox, senders)
        return self._carried

    # -- what is noted -----------------------------------------------------------------------------------------------

    def _called(self, indices: Sequence[int]) -> None:
        self._notes.called(indices)
        self._clock.busy()
        self._heard, self._handling = time.monotonic(), True

    def _stop_watch(self) -> None:
        if self._handling:
            self._handling, self.took = False, time.monotonic() - self._heard

    def _raised(self, error: BaseException) -> None:
        self._stop_watch()
        if self._on_error is not None:
            self._on_error(error)


def _refuse_as_a_worker_would(told: Configure) -> None:
    """Raise `ConfigError` for settings that do not go with their handler: those of a test are changed before a worker
    sees them. Raises `HandlerLoadError` as the import does.
    """
    delivery = told.producing.delivery if told.producing is not None else None
    for config in told.handlers:
        handler = handler_of(config.entrypoint, find(config.entrypoint, yields=delivery is not None))
        concurrency(handler, config)
        check_offsets(handler, config)
        refuse_two_committers(handler, delivery)


def _one_by_one(told: Configure) -> Configure:
    """The configuration with one record in hand, outputs sent at the end, and no delay, so that a test ends the same
    way each time.
    """
    replace = msgspec.structs.replace
    if told.producing is not None:
        told = replace(told, producing=replace(told.producing, max_records=_EVERYTHING, max_bytes=_EVERYTHING))
    return replace(
        told, handlers=[replace(each, ordering="partition", concurrency=1, delay_ms=None) for each in told.handlers]
    )


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "this handler is async and gets a loop of its own, as in a worker: call run() from a plain def test"
    )
