"""One worker's life on records in memory, in the test's thread, with the parts that `kunicorn.worker.assembly` makes.

What the supervisor and the control thread would say is said from inside the runner's own thread: at the moment that a
test stages (a revoke, a lost session, a kill while the handler has a certain record), or when the client has nothing
more to give. The worker's clock stands still while the handler works, and is turned on for a retry, so that nobody
waits. Outputs are delivered by the runner's thread, at moments that are the same in every run.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from datetime import time as clock_time
from itertools import cycle
from typing import Any

import msgspec
from confluent_kafka import Consumer, Message, Producer

from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handler import filter
from kunicorn.handler.encode.readers import OutputReaders
from kunicorn.handler.load import Handler, find, handler_of
from kunicorn.handler.outputs import refuse_two_committers
from kunicorn.handler.record import Batch
from kunicorn.handler.registry import Handling, check_offsets
from kunicorn.handler.retry import End, has_it_wait
from kunicorn.ipc import bitmap, clock
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
    Stopped,
)
from kunicorn.positions import TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.workers.config import configure
from kunicorn.testing.memory import GivenRecord, MemoryConsumer, MemoryLog, MemoryProducer, SentRecord, message_of
from kunicorn.testing.outcome import Fate, Notes, Progress, Run, outcome_of
from kunicorn.testing.registry import with_registry
from kunicorn.testing.stage import HandedOut, Kill, Stage, Staging, TimeOuts
from kunicorn.worker.assembly import Assembled, CannotServe, Makers, assemble, concurrency
from kunicorn.worker.control import Said, apply
from kunicorn.worker.failures import Observer
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import Sender

_EVERYTHING = 2**63 - 1
_START = 1_000_000 * clock.NANOSECONDS
_OVERSHOOT = 0.01


class HandlerClock:
    """Stands in for the module `time` inside `kunicorn.ipc.clock`, and where records are too old. The handler's own
    clocks go on as they do."""

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
        """Have these modules read this clock, in the whole process."""
        places: Sequence[Any] = (clock, filter)
        before = [place.time for place in places]
        try:
            for place in places:
                place.time = self
            yield
        finally:
            for place, real in zip(places, before, strict=True):
                place.time = real


_MOST_WAITS = 1000
"""So often a record may wait before a test ends: nothing else would end one whose handler always says `Wait`, or whose
schema registry is away."""


class NotTakenOn(TimeoutError):
    """The handler goes on refusing its partitions: a hook that has to return before the first record raises."""


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
    waited: Counter[int] = field(default_factory=Counter)
    """How often, by the record's index. Of one that cannot be decoded no call is counted."""

    def raised(self, records: Sequence[Message], error: BaseException) -> None:
        indices = self.handed_out.indices(Batch(records))
        self.notes.raised(indices, error)
        if self.endless or has_it_wait(error):
            self.waited[indices[0]] += 1
            if self.waited[indices[0]] >= _MOST_WAITS:
                raise TimeoutError(
                    f"offset {records[0].offset()} waits for ever: {_MOST_WAITS} times in all, for {error!r} last"
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
        """`on_error` is called with what the handler raised, before anything becomes of it, and with what its teardown
        raises; without, the latter fails the run. Whoever is called so has the handler do what is real: it is asked
        once to take its partitions on. `schemas`: those of a registry in memory, by subject; None: the settings'
        registry.
        """
        self._most_refusals = _MOST_WAITS if on_error is None else 1
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
        self._ahead: dict[TopicPartition, frozenset[int]] = {}
        """Offsets done beyond the one that was reported last."""
        self._killed = isinstance(stage, Kill)
        self._lost = False
        self._heard = 0.0
        self._handling = False
        self._refusals = 0
        """Turns in which nothing could be fetched of a partition, as its handler had not taken it on."""
        self._carried: list[Carried] = []
        """Where outputs go; None: nothing is sent."""
        self._clients: list[Producer] = []
        self._endless = any(each.circuit_breaker is not None for each in settings.every_handler)
        self._staging = Staging(stage, self._handed_out, self._notes.begun, self._called, self._say)
        self._time_outs = TimeOuts(self._handed_out, self._handler_timeout_ms, self._say)

    def close(self) -> None:
        """Free what is shared with a killed worker."""
        self._ledger.close()
        self._notes.close()

    def outcome(self) -> Run:
        """Result of the run. Caller: the test's process, after `work`."""
        progress = {tp: Progress(self._consumed(tp), self._ahead.get(tp, frozenset())) for tp in self._starts}
        lost = {tp: Progress(at) for tp, at in self._starts.items()}
        return outcome_of(
            self._records,
            self._notes,
            progress,
            lost if self._lost else progress,
            self._sent,
            None if self._killed else self._halted,
        )

    def refuse_unplayed(self) -> None:
        """Raise `RuntimeError` where the handler never got the record of the stage. Caller: as of `outcome`, where the
        worker was not to be killed.
        """
        if (stage := self._staging.unplayed) is None:
            return
        ended = self.outcome().outcomes[stage.at]
        raise RuntimeError(f"record {stage.at} never came to the handler ({ended}): {stage.named} did not take place")

    # -- the worker's life ---------------------------------------------------------------------------------------

    def work(self) -> None:
        """Set up, handle everything, tear down. Raises `ConfigError`, `HandlerLoadError`, `NotTakenOn`; what teardown
        raises, where nobody is told of it."""
        with self._clock.in_force():
            made = self._worker = self._assembled()
            try:
                with self._interruptible(made), self._staging.deadline_ended():
                    self._say(
                        StartFetcher(
                            [
                                FetcherStart(number, number, tp.topic, tp.partition, self._starts[tp], 0)
                                for tp, number in self._grants.items()
                            ]
                        )
                    )
                    self._heard = time.monotonic()
                    with self._time_outs.watching(lambda: made.runner.progress):
                        made.runner.run()
                made.hooks.finish()
                for handling in made.handlings.every:
                    self._tear_down(handling)
            finally:
                for handling in made.handlings.every:
                    handling.calls.close()
                for client in self._clients:
                    client.close()  # Now, and not in the child of a later run, which has none of its threads.

    def _tear_down(self, handling: Handling[Any]) -> None:
        try:
            handling.tear_down()
        except BaseException as error:
            if self._on_error is None:
                raise
            self._on_error(error)

    def _assembled(self) -> Assembled:
        told = configure(self._settings, 0, [], None, 1)
        _refuse_as_a_worker_would(told)
        told = _one_by_one(told)
        if self._schemas is not None:
            told = with_registry(told, self._schemas)
        self._readers = OutputReaders(told.producing.encoding if told.producing is not None else None)
        self._carried = []
        makers = Makers(
            consumer=self._consumer,
            producer=self._producer,
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

    def _consumer(self, properties: Mapping[str, Any], logger: object) -> Any:
        """Raises `KafkaException` for properties that librdkafka refuses."""
        Consumer(_without_brokers(properties)).close()
        return MemoryConsumer(self._log, self._idle)

    def _producer(self, properties: Mapping[str, Any], logger: object) -> Any:
        """Likewise."""
        self._clients.append(Producer(_without_brokers(properties)))
        return MemoryProducer(self._sent, self._readers, self._settings.dead_letter_topics, self._clients[-1])

    def _handler_timeout_ms(self, topic: str) -> int | None:
        return self._settings.handler_of(topic).handler_timeout_ms

    def _watched(self, handler: Handler) -> Handler:
        if handler.is_async:
            _refuse_inside_a_loop()
        return self._staging.around(handler)

    @contextmanager
    def _interruptible(self, made: Assembled) -> Iterator[None]:
        """Have the runner's signal do here what it does in a worker, and restore it."""
        if threading.current_thread() is not threading.main_thread():
            if self._staging.needs_signals or self._time_outs.needs_signals:
                raise RuntimeError("a handler is interrupted by a signal: run this test in the main thread")
            yield
            return
        before = signal.signal(signal.SIGUSR1, lambda number, frame: made.runner.on_interruption())
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    # -- in the supervisor's place ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Have the worker hand over what it has, and end. Caller: the runner's thread."""
        self._say(Drain(0.0))

    def _idle(self, seconds: float) -> None:
        """React to a client that has nothing to give. Caller: the runner, between two turns."""
        self._stop_watch()
        if any(carried.deliver() for carried in self._carried):
            return
        fetched = [tp for tp, number in self._grants.items() if number not in self._over]
        if all(self._consumed(tp) >= self._log.end(tp) for tp in fetched):
            self.end()
            return
        self._clock.pass_idle(seconds)
        silent = time.monotonic() - self._heard > _PATIENCE
        if refused := self._worker.hooks.parked():
            self._refusals += 1
            if silent or self._refusals >= self._most_refusals:
                raise NotTakenOn(f"the handler does not take on its partitions: {refused[0].why}")
        if self._worker.table.parked()[1]:
            return  # For the next try: only the clock has to be turned.
        if silent:
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
            for stopped in message.partitions:
                self._ended(stopped)
        elif isinstance(message, Failed):
            self._halted[self._ended(message)] = message.error
        elif isinstance(message, CommitWanted):
            self._say(CommitAs(message.number, 1, "member", None))

    def _ended(self, report: Stopped | Failed) -> TopicPartition:
        """Note how far a grant was at its end; its partition."""
        tp = next(tp for tp, number in self._grants.items() if number == report.grant)
        self._over[report.grant] = report.offset
        self._ahead[tp] = bitmap.read(report.offset, report.done)
        return tp

    def _senders(self, outbox: Outbox, senders: Sequence[Sender]) -> Carried:
        self._carried.append(Carried(outbox, senders))
        return self._carried[-1]

    # -- what is noted -----------------------------------------------------------------------------------------------

    def _called(self, indices: Sequence[int]) -> None:
        self._notes.called(indices)
        self._clock.busy()
        self._heard, self._handling = time.monotonic(), True

    def _stop_watch(self) -> None:
        if self._handling:
            now = time.monotonic()
            self._handling, self.took, self._heard = False, now - self._heard, now

    def _raised(self, error: BaseException) -> None:
        self._stop_watch()
        if self._on_error is not None:
            self._on_error(error)
        elif isinstance(error, KeyboardInterrupt):
            raise error  # Ctrl-C, which no worker hears: it means the test, and not only the record in hand.


def _without_brokers(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of a client that asks nobody, and takes records outside of transactions."""
    own = {name: value for name, value in properties.items() if name not in _OF_BROKERS}
    return {**own, "log_level": 0}


_OF_BROKERS = frozenset({"bootstrap.servers", "transactional.id", "transaction.timeout.ms"})


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


def _as_sent(option: Any) -> Any:
    """The option as a worker gets it: the message that brings it has no dates and no times but as texts. Objects that a
    test gives, and no file could, stay as they are.
    """
    match option:
        case Mapping():
            return {name: _as_sent(each) for name, each in option.items()}
        case list() | tuple():
            return [_as_sent(each) for each in option]
        case date() | clock_time():
            return msgspec.to_builtins(option)
        case _:
            return option


def _one_by_one(told: Configure) -> Configure:
    """The configuration with one record in hand, outputs sent at the end, and no delay, so that a test ends the same
    way each time; fetched by the client that the records in memory stand in for.
    """
    replace = msgspec.structs.replace
    if told.producing is not None:
        told = replace(told, producing=replace(told.producing, max_records=_EVERYTHING, max_bytes=_EVERYTHING))
    handlers = [
        replace(each, ordering="partition", concurrency=1, delay_ms=None, options=_as_sent(each.options))
        for each in told.handlers
    ]
    # Our own fetcher would ask the brokers, and hand out what comes behind a record that is replayed.
    return replace(told, handlers=handlers, fetcher="librdkafka")


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "this handler is async and gets a loop of its own, as in a worker: call run() from a plain def test"
    )
