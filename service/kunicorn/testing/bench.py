"""One worker's life on records in memory: its parts are those that `kunicorn.worker.main` assembles.

What the supervisor and the control thread would say is said from inside the runner's own thread: at the moment that a
test stages, or when the client has nothing more to give.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
from confluent_kafka import Message

from kunicorn.errors import ConfigError, ExitCode, HandlerLoadError
from kunicorn.handlers import Handler
from kunicorn.pipes.ledger import Ledger
from kunicorn.pipes.messages import CommitAs, CommitWanted, Configure, Failed, FetcherStart, FetcherStopped, FromWorker
from kunicorn.records import Batch
from kunicorn.settings import Settings
from kunicorn.supervisor.outfitting import configure
from kunicorn.testing.carried import Carried
from kunicorn.testing.consumer import MemoryConsumer, MemoryLog
from kunicorn.testing.notes import Fate, Notes
from kunicorn.testing.outcome import Run, outcome_of
from kunicorn.testing.producer import MemoryProducer, SentRecord
from kunicorn.testing.records import GivenRecord, message_of
from kunicorn.testing.stages import Stage
from kunicorn.testing.staging import Staging
from kunicorn.testing.turned_clock import TurnedClock
from kunicorn.testing.watching import watched_failures, watched_fetcher
from kunicorn.topics import TopicPartition
from kunicorn.worker.assembled import Assembled
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.main import CannotServe, Makers, assemble
from kunicorn.worker.outbox import Outbox
from kunicorn.worker.producing import Carrier
from kunicorn.worker.settling import SettlingFetcher

_FOR_EVER = _EVERYTHING = 2**63 - 1
_PATIENCE = 30.0
"""Seconds in which nothing was handled, though something is left: only a handler's own threads take so long."""
_PAUSE = 0.0005


class Bench:
    """Owns the ledger and the notes, which a killed worker leaves behind; `close` frees them."""

    def __init__(
        self,
        settings: Settings,
        records: Sequence[GivenRecord],
        stage: Stage | None,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`on_error` is called with what the handler raised, before anything becomes of it."""
        self.took = 0.0
        """Seconds that the last call of the handler took, to within a turn of the runner."""
        self._on_error = on_error
        self._settings = settings
        self._records = records
        self._places = {(each.tp, each.at): index for index, each in enumerate(records)}
        self._starts = {each.tp: each.at for each in reversed(records)}
        self._grants = {tp: number for number, tp in enumerate(self._starts, 1)}
        """By partition: number of its grant, which is that of its slot, too."""
        self._notes = Notes(len(records))
        self._ledger = Ledger.create(len(self._starts) + 1)
        self._ledger.lease_ns = _FOR_EVER
        self._log = MemoryLog(map(message_of, records))
        self._clock = TurnedClock()
        self._sent: list[SentRecord] = []
        self._over: dict[int, int] = {}
        """By grant: the offset that was reported last."""
        self._halted: dict[TopicPartition, str] = {}
        self._lost = False
        self._heard = 0.0
        self._handling = False
        self._carried: Carried | None = None
        """Where outputs go; None: nothing is sent."""
        self._staging = Staging(
            stage,
            lambda tp, offset: self._places[tp, offset],
            self._called,
            self._in_hand,
            self._lose,
            settings.handler.handler_timeout_ms,
        )

    def close(self) -> None:
        """Free what is shared with a killed worker."""
        self._ledger.close()
        self._notes.close()

    def outcome(self) -> Run:
        """What became of everything. Caller: the test's process, after `work`."""
        consumed = {tp: self._consumed(tp) for tp in self._starts}
        committed = dict(self._starts) if self._lost else consumed
        return outcome_of(self._records, self._notes, consumed, committed, self._sent, self._halted)

    # -- the worker's life ---------------------------------------------------------------------------------------

    def work(self) -> None:
        """Set up, handle everything, tear down. Raises `ConfigError`, `HandlerLoadError`; what teardown raises."""
        with self._clock.in_force():
            made = self._assembled()
            self._made = made
            self._staging.fetcher, self._staging.lifecycle, self._staging.runner = (
                made.fetcher,
                made.lifecycle,
                made.runner,
            )
            try:
                with self._interruptible(made):
                    made.lifecycle.start(
                        [
                            FetcherStart(number, number, tp.topic, tp.partition, self._starts[tp], 0)
                            for tp, number in self._grants.items()
                        ]
                    )
                    self._heard = time.monotonic()
                    made.runner.run()
                made.lifecycle.finish()
                for handling in made.handlings.every:
                    handling.tear_down()
            finally:
                for handling in made.handlings.every:
                    handling.calls.close()

    def _assembled(self) -> Assembled:
        makers = Makers(
            consumer=lambda properties, logger: MemoryConsumer(self._log, self._idle),  # type: ignore[arg-type, return-value]
            producer=lambda properties, logger: MemoryProducer(self._sent),  # type: ignore[arg-type, return-value]
            senders=self._senders,
            fetcher=watched_fetcher(Fetcher, self._ended),
            settling=watched_fetcher(SettlingFetcher, self._ended),
            failures=watched_failures(self._raised),
            handler=self._watched,
        )
        try:
            return assemble(
                _one_by_one(configure(self._settings, 0, [], None, 1)), self._ledger, self._reported, makers
            )
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
        """The runner's signal does here what it does in a worker; nothing of it is left behind."""
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
        """The client has nothing to give. Caller: the runner, between two turns."""
        self._stop_watch()
        if self._carried is not None and self._carried.deliver():
            return
        fetched = [tp for tp, number in self._grants.items() if number not in self._over]
        if all(self._consumed(tp) >= self._log.end(tp) for tp in fetched):
            self._made.lifecycle.drain()
            return
        self._clock.pass_idle(seconds)
        if self._made.fetcher.parked()[1]:
            return  # For the next try: only the clock has to be turned.
        if time.monotonic() - self._heard > _PATIENCE:
            left = ", ".join(f"{tp}@{self._consumed(tp)}" for tp in fetched)
            raise TimeoutError(f"nothing was handled for {_PATIENCE:.0f} s, though records are left: {left}")
        time.sleep(_PAUSE)

    def _consumed(self, tp: TopicPartition) -> int:
        number = self._grants[tp]
        offset = self._over.get(number, self._ledger.read(number, number).consumed.offset)
        return max(offset, self._starts[tp])

    def _in_hand(self, index: int) -> tuple[int, int]:
        number = self._grants[self._records[index].tp]
        return number, self._ledger.read(number, number).in_hand

    def _lose(self) -> None:
        """Other members begin where this one did: nothing that is reported from now on counts."""
        self._lost = True
        self._ledger.lease_ns = 0
        self._made.lifecycle.stop(self._grants.values(), lost=True)

    def _reported(self, message: FromWorker) -> None:
        if isinstance(message, FetcherStopped):
            self._over |= {stopped.grant: stopped.offset for stopped in message.partitions}
        elif isinstance(message, Failed):
            self._over[message.grant] = message.offset
            self._halted[next(tp for tp, number in self._grants.items() if number == message.grant)] = message.error
        elif isinstance(message, CommitWanted) and self._made.sending is not None:
            self._made.sending.identities.given(CommitAs(message.number, 1, "member", None))

    def _senders(self, outbox: Outbox, carriers: Sequence[Carrier]) -> Carried:
        self._carried = Carried(outbox, carriers)
        return self._carried

    # -- what is noted -----------------------------------------------------------------------------------------------

    def _called(self, indices: Sequence[int]) -> None:
        self._notes.called(indices)
        self._clock.busy()
        self._heard, self._handling = time.monotonic(), True

    def _stop_watch(self) -> None:
        if self._handling:
            self._handling, self.took = False, time.monotonic() - self._heard

    def _raised(self, messages: Sequence[Message], error: BaseException) -> None:
        self._stop_watch()
        self._notes.raised(self._staging.indices(Batch(messages)), error)
        if self._on_error is not None:
            self._on_error(error)

    def _ended(self, messages: Sequence[Message], fate: Fate) -> None:
        self._notes.ended(self._staging.indices(Batch(messages)), fate)


def _one_by_one(told: Configure) -> Configure:
    """A test is to end the same way each time: records are handled in their order, and what they leave to be sent goes
    out when all are, whatever the settings say."""
    replace = msgspec.structs.replace
    if told.producing is not None:
        told = replace(told, producing=replace(told.producing, max_records=_EVERYTHING, max_bytes=_EVERYTHING))
    return replace(told, handlers=[replace(each, ordering="partition", concurrency=1) for each in told.handlers])


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "this handler is async and gets a loop of its own, as in a worker: call run() from a plain def test"
    )
