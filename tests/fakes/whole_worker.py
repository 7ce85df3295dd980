"""A whole worker in this process: its runner, tables, outbox and senders are the real ones. Its log is in memory, and
what the brokers answer to its outputs the test chooses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from kunicorn.handler.config import DeadLetterTarget, HandlerConfig, ProducingTarget
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import CommitAs, CommitWanted, Configure, Failed, FetcherStart, FetcherStopped, FromWorker
from kunicorn.librdkafka.properties import Property
from kunicorn.positions import NO_EPOCH
from kunicorn.testing.memory import MemoryConsumer, MemoryLog
from kunicorn.worker.assembly import Makers, assemble
from kunicorn.worker.produce.outbox import Outbox
from kunicorn.worker.produce.sender import Sender
from tests.waiting import wait_until

TOPIC, LETTERS = "in", "letters"
_NAP = 0.002
_PATIENCE = 120.0


@dataclass(eq=False)
class ChosenAnswers:
    """The brokers of all producers. While `held`, they answer nothing."""

    letters_refused: KafkaError | None = None
    """What every dead letter is answered with, or only those with `refused_values`."""
    refused_values: frozenset[bytes] | None = None
    letters_held: bool = False
    """No dead letter is answered."""
    refusals: int = 0
    """So many letters were answered with that."""
    denied: set[str] = field(default_factory=set)
    """Topics that the worker may read no more: no transaction with an offset of theirs is taken."""
    given: list[bytes] = field(default_factory=list)
    """Values that clients have."""
    delivered: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and value: acknowledged, or within transactions committed."""
    offsets: dict[tuple[str, int], TopicPartition] = field(default_factory=dict)
    """The last of each partition in a transaction."""
    _answers: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def hold(self) -> None:
        """Answer nothing from here on."""
        self._answers.clear()

    def answer(self) -> None:
        """Answer everything."""
        self._answers.set()

    def answer_to(self, topic: str, value: bytes) -> KafkaError | None:
        """The error, if it is refused."""
        refused = topic == LETTERS and (self.refused_values is None or value in self.refused_values)
        return self.letters_refused if refused else None

    def wait(self, seconds: float) -> bool:
        """Whether there are answers by then. Raises `SystemExit` when the test is over."""
        if self.over.is_set():
            raise SystemExit
        return self._answers.wait(min(seconds, _NAP))

    def values(self, topic: str = "out") -> list[bytes]:
        """What has arrived there."""
        return [value for where, value in self.delivered if where == topic]


class ChoosyProducer:
    """In confluent-kafka's place. Caller: one sender's thread."""

    def __init__(self, brokers: ChosenAnswers) -> None:
        self._brokers = brokers
        self._queued: list[tuple[str, bytes, Callable[[KafkaError | None, Any], None]]] = []
        self._open: list[tuple[str, bytes]] | None = None

    def __len__(self) -> int:
        return len(self._queued)

    def produce(self, topic: str, value: bytes, key: Any, partition: int, told: Any, *more: Any) -> None:
        """See confluent-kafka's."""
        self._brokers.given.append(value)
        self._queued.append((topic, value, told))

    def poll(self, seconds: float = 0.0) -> int:
        """Tell what has become of everything, if the brokers answer."""
        if not self._brokers.wait(seconds):
            return 0
        queued, self._queued = self._queued, []
        for topic, value, told in queued:
            if topic == LETTERS and self._brokers.letters_held:
                self._queued.append((topic, value, told))
                continue
            error = self._brokers.answer_to(topic, value)
            self._brokers.refusals += error is not None
            if error is None:
                (self._brokers.delivered if self._open is None else self._open).append((topic, value))
            told(error, Message(topic=topic, partition=0, offset=0))
        return len(queued)

    def flush(self, seconds: float) -> int:
        """Likewise; what is left."""
        self.poll(seconds)
        return len(self._queued)

    def init_transactions(self, seconds: float) -> None:
        """Nobody has left one open."""

    def begin_transaction(self) -> None:
        """What is produced from here on counts when it is committed."""
        self._open = []

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], group: bytes, seconds: float) -> None:
        """Taken, where all of it may be read. The metadata is kept."""
        if any(each.topic in self._brokers.denied for each in offsets):
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied", False, False, True))
        self._brokers.offsets |= {(each.topic, each.partition): each for each in offsets}

    def commit_transaction(self, seconds: float) -> None:
        """All of it counts."""
        self._brokers.delivered += self._open or ()

    def abort_transaction(self, seconds: float) -> None:
        """Nothing of it counts. Raises `KafkaException` while the brokers do not answer."""
        if not self._brokers.wait(seconds):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, True))
        self._queued.clear()

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""


class _Consumer(MemoryConsumer):
    """It is told once of each topic that it may not read it."""

    def __init__(self, brokers: ChosenAnswers, log: MemoryLog, idle: Callable[[float], None]) -> None:
        super().__init__(log, idle)
        self._brokers = brokers
        self._told: set[str] = set()

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        for topic in self._brokers.denied - self._told:
            self._told.add(topic)
            error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return [Message(topic=topic, partition=0, error=error)]
        return super().consume(num_messages, timeout)


class EndingSenders:
    """As the worker's own, but they end with the test, and what breaks them is kept.

    Threads that wait for a lock of the interpreter look for it each few milliseconds: a hundred of tests that are over
    take as long as the test that runs.
    """

    def __init__(
        self, outbox: Outbox, senders: Sequence[Sender], broken: list[BaseException], over: threading.Event
    ) -> None:
        self._outbox = outbox
        self._broken = broken
        self._over = over
        self._threads = [
            threading.Thread(target=self._run, args=(sender, turn), daemon=True) for turn, sender in enumerate(senders)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self, sender: Sender, turn: int) -> None:
        try:
            while not self._over.is_set():
                if batch := self._outbox.take(turn):
                    sender.deliver(batch)
                    self._outbox.done(batch)
                else:
                    sender.serve()
        except SystemExit:
            return
        except BaseException as error:
            self._broken.append(error)


class WholeWorker:
    """Handles what the log has of one partition; the test is in the supervisor's place. Use it as a context manager."""

    def __init__(
        self,
        order: HandlerConfig,
        log: Iterable[Message],
        delivery: str | None = "at_least_once",
        most_records: int = 1000,
        ahead_bytes: int = 1 << 24,
    ) -> None:
        """`delivery`: None where only dead letters are sent. `most_records`: so many make a batch. `ahead_bytes`: so
        much is kept of what is not begun."""
        self.brokers = ChosenAnswers()
        self.brokers.answer()
        self.reports: list[FromWorker] = []
        self.broken: list[BaseException] = []
        """What ended senders, or the runner."""
        self.ledger = Ledger.create(8)
        self.ledger.lease_ns = clock.now_ns() + 10**13
        self.log = MemoryLog(log)
        self.idle_turns = 0
        """How often the client had nothing to give."""
        self._grant = 0
        transactional: dict[str, Property] = {"transactional.id": "t", "transaction.timeout.ms": 10**9}
        producing = None
        if delivery is not None:
            producing = ProducingTarget(delivery, "out", "g", transactional, most_records, 1 << 24, 1)
        self._configure = Configure(
            worker=0,
            group="g",
            handlers=[order],
            client={},
            topics=[],
            log_level="info",
            log_format="text",
            producing=producing,
            dead_letters=DeadLetterTarget(LETTERS, "g", {}),
            ahead_bytes=ahead_bytes,
        )

    def __enter__(self) -> WholeWorker:
        makers = Makers(
            consumer=lambda properties, logger: _Consumer(self.brokers, self.log, self._idle),  # type: ignore[arg-type, return-value]
            producer=lambda properties, logger: ChoosyProducer(self.brokers),  # type: ignore[arg-type, return-value]
            senders=lambda outbox, senders: EndingSenders(outbox, senders, self.broken, self.brokers.over),
        )
        self.made = assemble(self._configure, self.ledger, self._hear, makers)
        self._runner = threading.Thread(target=self._run, daemon=True)
        self._runner.start()
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if raised[0] is None:
                self.brokers.answer()
                self.made.hooks.drain()
                self._runner.join(_PATIENCE)
                assert not self._runner.is_alive(), "the worker does not end"
                assert self.broken == []
        finally:
            self.brokers.over.set()
            self.made.table.draining = True

    def hand_out(self, offset: int = 0, **more: Any) -> None:
        """The partition, from that offset on, under a new grant."""
        self._grant += 1
        self.made.hooks.start([FetcherStart(self._grant, self._grant, TOPIC, 0, offset, NO_EPOCH, **more)])

    @property
    def consumed(self) -> int:
        """By the ledger."""
        return self.ledger.read(self._grant, self._grant).consumed.offset

    def until_still(self, count: Callable[[], int]) -> None:
        """Wait until the outbox is full, or the client has given everything and `count` does not change any more."""
        seen, turns = -1, 0

        def still() -> bool:
            nonlocal seen, turns
            if (now := count()) != seen:
                seen, turns = now, self.idle_turns
            assert self.made.sending is not None
            return self.idle_turns > turns + 5 or not self.made.sending.outbox.room()

        wait_until(still, "the worker to stand still", _PATIENCE, _NAP)

    @property
    def ended(self) -> Failed | FetcherStopped | None:
        """The last grant's report."""
        for report in self.reports:
            if isinstance(report, Failed) and report.grant == self._grant:
                return report
            if isinstance(report, FetcherStopped) and any(each.grant == self._grant for each in report.partitions):
                return report
        return None

    def halted(self) -> Failed:
        """Wait until the partition has halted."""

        def report() -> Failed | None:
            return self.ended if isinstance(self.ended, Failed) else None

        return wait_until(report, "a partition that halts", _PATIENCE, _NAP)

    def until_consumed(self, offset: int) -> None:
        """Wait until the ledger says so."""
        wait_until(lambda: self.consumed == offset or self.broken, f"offset {offset} to be consumed", _PATIENCE, _NAP)
        assert self.broken == []

    def _idle(self, seconds: float) -> None:
        self.idle_turns += 1
        time.sleep(min(seconds, _NAP))

    def _run(self) -> None:
        try:
            self.made.runner.run()
        except BaseException as error:
            self.broken.append(error)

    def _hear(self, message: FromWorker) -> None:
        self.reports.append(message)
        if isinstance(message, CommitWanted):
            assert self.made.sending is not None
            self.made.sending.group_metadata.answered(CommitAs(message.number, 1, "member", None, "cluster"))


def record(offset: int, key: bytes | None = None, topic: str = TOPIC) -> Message:
    """One of the log's."""
    return Message(
        topic=topic, partition=0, offset=offset, value=b"%d" % offset, key=key, timestamp=(1, 1000), leader_epoch=0
    )
