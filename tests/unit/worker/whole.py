"""A whole worker in this process: its runner, executors and sender are the real ones, the brokers are in memory."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Message

from kunicorn.handler.config import DeadLetterTarget, HandlerConfig, ProducingTarget
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import (
    Configure,
    DrainOver,
    Failed,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    TimedOut,
    encode,
)
from kunicorn.positions import NO_EPOCH
from kunicorn.testing.memory import (
    GivenRecord,
    MemoryConsumer,
    MemoryLog,
    MemoryProducer,
    SentRecord,
    message_of,
    placed,
)
from kunicorn.worker.assembly import Assembled, Makers, assemble
from kunicorn.worker.control import apply
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import Sender, Startable
from tests.fakes.whole_worker import EndingSenders
from tests.unit.worker import crowded_handlers
from tests.waiting import wait_until


class Worker:
    """Handles records of one partition for each topic, until all are done (or their partition has halted) and it is
    drained."""

    def __init__(self, *handlers: HandlerConfig, sends: bool = False) -> None:
        self.ledger = Ledger.create(64)
        self.ledger.lease_ns = clock.now_ns() + 10**12
        self.sent: list[SentRecord] = []
        self.reports: list[FromWorker] = []
        self.made: Assembled
        self.stopped: dict[int, int] = {}
        """By grant: the offset at which it was reported as stopped."""
        self._revoked: set[int] = set()
        self._configure = Configure(
            worker=0,
            group="g",
            handlers=list(handlers),
            client={},
            topics=[],
            log_level="info",
            log_format="text",
            producing=ProducingTarget("at_least_once", "out", "g", {}, 1000, 1 << 24, 2) if sends else None,
            dead_letters=DeadLetterTarget("letters", "g", {}),
        )

    @property
    def halted(self) -> list[Failed]:
        """Of each partition that has halted, what was reported."""
        return [each for each in self.reports if isinstance(each, Failed)]

    def revoke(self, grant: int) -> None:
        """As when a drain budget is over before the handler is through with its record. Caller: `meanwhile`."""
        self.give_up(grant)
        apply(self.made, DrainOver([grant]))
        signal.pthread_kill(self._main, signal.SIGUSR1)

    def give_up(self, grant: int) -> None:
        """As when the partition moves to another worker, however long its record takes. Caller: `meanwhile`."""
        self._revoked.add(grant)
        self.made.hooks.stop([grant])

    def time_out(self, grant: int, offset: int) -> None:
        """As when its handler has had that record in hand for too long. Caller: `meanwhile`."""
        apply(self.made, TimedOut(grant, offset))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The runner's signal does what it does in a worker."""
        self._main = threading.get_ident()
        before = signal.signal(signal.SIGUSR1, lambda number, frame: self.made.runner.on_interruption())
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)

    def handle(
        self,
        records: Iterable[GivenRecord],
        message: Callable[[GivenRecord], Message] = message_of,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Returns when every record is consumed, by the ledger, and everything is reported. `meanwhile`
        is called in a thread beside the runner's."""
        over, broken = threading.Event(), list[BaseException]()
        try:
            self._handle(
                records, message, meanwhile, lambda outbox, senders: EndingSenders(outbox, senders, broken, over)
            )
        finally:
            over.set()
        assert broken == []

    def _handle(
        self,
        records: Iterable[GivenRecord],
        message: Callable[[GivenRecord], Message],
        meanwhile: Callable[[], None],
        senders: Callable[[Outbox, Sequence[Sender]], Startable],
    ) -> None:
        given = placed(list(records), "t")
        log = MemoryLog(map(message, given))
        makers = Makers(
            consumer=lambda properties, logger: MemoryConsumer(log, time.sleep),  # type: ignore[arg-type, return-value]
            producer=lambda properties, logger: MemoryProducer(self.sent),  # type: ignore[arg-type, return-value]
            senders=senders,
        )
        made = self.made = assemble(self._configure, self.ledger, self._report, makers)
        topics = list(dict.fromkeys(each.tp.topic for each in given))
        starts = [FetcherStart(n, n, topic, 0, 0, NO_EPOCH) for n, topic in enumerate(topics, 1)]
        made.hooks.start(starts)

        ends = {n: log.end((topic, 0)) for n, topic in enumerate(topics, 1)}

        def done(number: int) -> bool:
            halted = any(each.grant == number for each in self.halted)
            return halted or number in self.stopped or self.ledger.read(number, number).consumed.offset == ends[number]

        def drain_when_done() -> None:
            try:
                meanwhile()
                wait_until(lambda: all(map(done, ends)), "all")
            finally:
                made.hooks.drain()

        watching = threading.Thread(target=drain_when_done, daemon=True)
        watching.start()
        with self._interruptible():
            made.runner.run()
        watching.join()
        for handling in made.handlings.every:
            handling.tear_down()
        over = self._revoked | {failed.grant for failed in self.halted}
        assert {grant: offset for grant, offset in self.stopped.items() if grant not in self._revoked} == {
            grant: end for grant, end in ends.items() if grant not in over
        }

    def _report(self, message: FromWorker) -> None:
        encode(message)  # As the pipe does.
        self.reports.append(message)
        if isinstance(message, FetcherStopped):
            self.stopped |= {each.grant: each.offset for each in message.partitions}


def order_of(place: str, **more: Any) -> HandlerConfig:
    """Of a handler of records that is tried again at once, but for what `more` says."""
    known: dict[str, Any] = {
        "mode": "record",
        "options": {},
        "batch_max_records": 100,
        "max_attempts": 1,
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 2,
    }
    return HandlerConfig(place, **known | more)


def order(handler: str, ordering: str, concurrency: int | None, *topics: str, **more: Any) -> HandlerConfig:
    place = f"{crowded_handlers.__name__}:{handler}"
    return HandlerConfig(
        place, "record", {}, 100, 2, 1, 10, ordering=ordering, concurrency=concurrency, topics=list(topics), **more
    )
