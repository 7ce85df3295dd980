"""How long whoever is due waits for a worker that has slow records of other partitions, more than it comes to.

A story of which chance decides only whose turn it is. Its clock goes on while handlers take their time, and stands
still while the worker computes: a delay is of handlers' calls alone, however slow the machine is. The story ends with
what was waited for.

What the client does is not counted: a partition's wait ends where the client is told to fetch it, and begins again
where the client gives out its record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition
from msgspec.structs import replace

from kunicorn.fetch.queue import Fetched
from kunicorn.handler.config import HandlerConfig, RetryTopic
from kunicorn.ipc.messages import Configure, Drain, Failed, StopFetcher, Stopped
from kunicorn.positions import TopicPartition
from kunicorn.worker.assembly import OWN
from tests.contract.worker.assembled import clear
from tests.contract.worker.brokers import ACK, StoryConsumer
from tests.contract.worker.choices import Choices, by_seed
from tests.contract.worker.fetching import StoryFetcher
from tests.contract.worker.handlers import STAGE
from tests.contract.worker.handling import Handling
from tests.contract.worker.plan import Plan, Way, written
from tests.contract.worker.stepping import FOR_EVER, NANOSECONDS, START, STEPS
from tests.contract.worker.story import Story
from tests.contract.worker.supervised import Memory, Pipe
from tests.contract.worker.truth import Call, Log, Record, Violation

LATER = "later"
_AFTER = 20
"""So many calls have begun when something is to happen."""
_AT_ONCE = 50
_MOST_NS = 200_000_000
_ROUNDED_NS = 1_000_000
"""Event loops keep time in fractions of a second."""
_GIVES_UP_NS = 120 * NANOSECONDS
_MUCH_AHEAD, _LITTLE_AHEAD = 2_000_000, {"librdkafka": 100_000, OWN: 20_000}
"""Bytes that are kept in memory and not begun: room for thousands of records, or for a part of the smallest backlog. Of
our own fetcher a record takes a tenth of what it takes as a message."""


class Due(StrEnum):
    """What waits for the worker."""

    STOP = "a stop of another partition"
    DRAIN = "a stop of a busy partition"
    DRAIN_OF_ALL = "a stop of the worker"
    RETRY = "a retry whose wait is over"
    COMER = "a partition that comes"
    LATER = "a retry topic's record whose time has come"


@dataclass(frozen=True, slots=True)
class Case:
    """One worker, and what waits for it."""

    ways: Mapping[str, Way]
    subject: str
    """The topic whose handler it is about."""
    due: Due
    record_ns: int
    """So long a record takes."""
    fetcher: str = "librdkafka"
    delivery: str | None = None
    fits: bool = False
    """Memory has room for the backlog; else for a little of it."""

    @property
    def way(self) -> Way:
        return self.ways[self.subject]

    @property
    def backlog(self) -> int:
        """Records of each of the other partitions: more than are begun before it is over, and than memory has room for.
        Most are begun where a wait of seconds has to be over first, and records are fast. See `waits`."""
        if self.fits:
            return 3_000
        return 1_700 if self.due in (Due.RETRY, Due.LATER) and self.record_ns < NANOSECONDS else 600

    @property
    def wait_ns(self) -> int:
        """Of a retry, and of a retry topic's record. It is over in the middle of a call, when every other partition has
        had its turn: several that come at once wait for one another."""
        return 5_310_000_000 + _AFTER * self.record_ns

    @property
    def bound_ns(self) -> int:
        """0.2 s, or one record. A batch waits for more records as the settings say.

        A retry of a handler in threads or tasks beside one that the main thread calls waits for one record of each: its
        wait is over when the main thread looks, and then a slot has to be free.
        """
        longest = max(map(self._call_ns, self.ways.values()))
        if (
            self.due is Due.RETRY
            and self.way.concurrency > 1
            and any(way.concurrency == 1 for way in self.ways.values())
        ):
            longest += self._call_ns(self.way)
        return max(_MOST_NS, longest) + self.way.batch_max_ms * 1_000_000 + _ROUNDED_NS

    def _call_ns(self, way: Way) -> int:
        """One of several records counts as one record."""
        return self.record_ns * (1 if way.mode == "record" else way.batch_max_records)

    def plan(self) -> _Plan:
        """Of a worker that chance does nothing to."""
        later = {LATER: self.way} if self.due is Due.LATER else {}
        return _Plan.without_chance(
            ways={**self.ways, **later},
            delivery=self.delivery,
            on_failure="halt",
            max_records=10_000,
            ahead_bytes=_MUCH_AHEAD if self.fits else _LITTLE_AHEAD[self.fetcher],
            fetcher=self.fetcher,
            subject=self.subject,
            later_ms=self.wait_ns // 1_000_000,
        )

    def logs(self) -> dict[TopicPartition, Log]:
        """Of each topic two partitions with a backlog; and the one that it is about, the last."""
        topic = LATER if self.due is Due.LATER else self.subject
        subject = TopicPartition(topic, 2)
        backlogs = [TopicPartition(topic, number) for topic in self.ways for number in range(2)]
        logs = {tp: _log(tp, [written(tp, at, b"abc"[at % 3 :][:1]) for at in range(self.backlog)]) for tp in backlogs}
        return {**logs, subject: _log(subject, [written(subject, 0, b"a", sent_ms=START // 1_000_000)])}


def _log(tp: TopicPartition, records: Sequence[Record]) -> Log:
    log = Log(tp, records, 0, len(records))
    log.visible = len(records)
    return log


@dataclass(frozen=True, slots=True)
class _Plan(Plan):
    """With a retry topic, where there is one."""

    subject: str = ""
    later_ms: int = 0

    def configure(self) -> Configure:
        configure = Plan.configure(self)
        orders = zip(self.ways, configure.handlers, strict=True)
        return replace(configure, handlers=[self._with_later(topic, each) for topic, each in orders if topic != LATER])

    def _with_later(self, topic: str, order: HandlerConfig) -> HandlerConfig:
        if topic != self.subject or LATER not in self.ways:
            return order
        return replace(order, topics=[topic, LATER], retry_topics=[RetryTopic(LATER, self.later_ms)])


def waits(case: Case, memory: Memory, seed: int, trace: list[str] | None = None) -> Sequence[int]:
    """How long was waited for the worker, in nanoseconds, each time that it was. Raises `Violation`, or what the worker
    broke by. Who waits for a worker that has nothing else to do shows nothing: a backlog that does not last is a fault
    of the case."""
    story = _Story(case, memory, Choices(by_seed(f"{case}/{seed}")), trace)
    story.tell()
    assert story.over == [], "a backlog is over before what was waited for"
    return story.waits


class _Story(Story):
    """See above."""

    def __init__(self, case: Case, memory: Memory, choices: Choices, trace: list[str] | None) -> None:
        super().__init__(choices, memory, case.plan(), case.logs(), trace)
        self.case = case
        self.waits: list[int] = []
        self._subject = self.partitions[-1]
        self.subject = self._subject.log.tp
        self._busy = self.partitions[0]
        self.due_at: int | None = START + case.wait_ns if case.due is Due.LATER else None
        self._asked_at = self._given_at = 0
        self._reported = 0
        self._reached: dict[TopicPartition, int] = {}
        """Up to there the client has given out records."""

    def tell(self) -> None:
        STAGE.story, self.memory.story = self.handling, self
        clear(self.memory.ledger)
        self.memory.ledger.lease_ns = FOR_EVER
        self._pipe, self._consumer = Pipe(self), self._source()
        others = self.partitions[:-1]
        self._start(others if self.case.due is Due.COMER else self.partitions)
        STEPS.live(self._be, self, self.below, lambda: self.choices.stride(self.plan.interrupted_every))
        self._broker.forget()

    @property
    def over(self) -> Sequence[TopicPartition]:
        """Other partitions of which everything was begun, or had room in memory that has room for a little."""
        return [each.log.tp for each in self.partitions[:-1] if self._is_over(each.log)]

    def _is_over(self, log: Log) -> bool:
        if self.case.fits:
            return log.records[-1].begun_under > 0
        return self._reached.get(log.tp, 0) >= log.end

    def _handler(self) -> Handling:
        return _Handling(self)

    def _source(self) -> StoryConsumer | StoryFetcher:
        return _Fetcher(self) if self.plan.fetcher == OWN else _Consumer(self)

    # -- what happens ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """See `stepping.World`."""
        self._broker.answer(1000, lambda output: ACK)
        if self.waits:
            STEPS.kill()
        elif self.due_at is None and len(self.calls) >= _AFTER and self._busy.running:
            self._strike()

    def idle(self) -> bool:
        """Likewise."""
        if self._broker.answer(1000, lambda output: ACK):
            return True
        if STEPS.now > (self.due_at or START) + _GIVES_UP_NS:
            STEPS.fail(Violation(f"{self.case.due} has waited {_GIVES_UP_NS / NANOSECONDS:.0f} s"))
        return False

    def _strike(self) -> None:
        if self.case.due in (Due.RETRY, Due.LATER):
            return  # Each is due at a time of its own.
        self.note(lambda: f"-- {self.case.due}")
        self.due_at = STEPS.now
        match self.case.due:
            case Due.COMER:
                self._start([self._subject])
            case Due.STOP:
                self._pipe.put(StopFetcher([self._subject.grant], None, False))
            case Due.DRAIN:
                self._pipe.put(StopFetcher([self._busy.grant], None, False))
            case _:
                self._pipe.put(Drain(0.0))

    def _ended(self, report: Stopped | Failed, halted: str) -> None:
        super()._ended(report, halted)
        self._reported += 1
        expected = len(self.partitions) if self.case.due is Due.DRAIN_OF_ALL else 1
        if self.due_at is not None and self._reported == expected:
            self._waited(self.due_at)

    def asked(self, tps: Iterable[TopicPartition]) -> None:
        """The client is told to fetch these."""
        if self.subject in tps:
            self._asked_at = STEPS.now

    def given(self, ends: Mapping[TopicPartition, int]) -> None:
        """The client gives out records of these, up to there."""
        self._reached.update(ends)
        if self.subject in ends:
            self._given_at = STEPS.now

    def begun(self, call: Call) -> None:
        """A call of a handler begins."""
        due_at = self.due_at
        if due_at is None or self._subject.log.records[0] not in call.records:
            return
        if self.case.due is Due.RETRY:
            self._waited(due_at)
        elif self.case.due in (Due.COMER, Due.LATER):
            if STEPS.now < due_at:
                STEPS.fail(Violation("a record of a retry topic is begun before its time"))
            self._waited(due_at, self._asked_at)
            self._waited(max(due_at, self._given_at))

    def _waited(self, since: int, until: int | None = None) -> None:
        self.waits.append(max(0, (STEPS.now if until is None else until) - since))


class _Handling(Handling):
    """Its records are slow."""

    def __init__(self, story: _Story) -> None:
        super().__init__(story)
        self._late = story
        self._duration = 0

    def begin(self, records: Sequence[Any]) -> Call:
        call = super().begin(records)
        self._late.begun(call)
        return call

    def kind(self, call: Call) -> str:
        case, subject = self._late.case, self._late.partitions[-1].log.records[0]
        if case.due is Due.RETRY and self._late.due_at is None and call.records[0] is subject:
            self._duration = case.wait_ns
            self._late.due_at = STEPS.now + self._duration
            return "wait"
        self._duration = case.record_ns * len(call.records)
        return "slow"

    def duration(self) -> int:
        return self._duration

    def outputs(self) -> int:
        return 1


class _Consumer(StoryConsumer):
    """Which gives out a little of each partition in turn, first of all of one that has just come."""

    _teller: _Story

    def incremental_assign(self, partitions: Sequence[ClientPartition]) -> None:
        super().incremental_assign(partitions)
        self._fetching = dict(reversed(self._fetching.items()))
        self._teller.asked(TopicPartition(each.topic, each.partition) for each in partitions)

    def _take(self, most: int) -> list[Message]:
        found = super()._take(min(most, _AT_ONCE))
        tps = {TopicPartition(each.topic() or "", each.partition() or 0) for each in found}
        for tp in tps & self._fetching.keys():
            self._fetching[tp] = self._fetching.pop(tp)
        self._teller.given({tp: self._given[tp] for tp in tps})
        return found


class _Fetcher(StoryFetcher):
    """Likewise."""

    _teller: _Story

    def _fetch(self) -> None:
        super()._fetch()
        self._queue = deque(sorted(self._queue, key=lambda each: each.news.tp != self._teller.subject))

    def call(self, change: Any) -> None:
        before = {place.tp for place in self._table}
        super().call(change)
        self._teller.asked({place.tp for place in self._table} - before)

    def pop(self, rest: Fetched | None = None) -> None:
        news, rows, _ = self._queue[0]
        if rows is not None:
            self._teller.given({news.tp: news.next_offset})
        super().pop(rest)
