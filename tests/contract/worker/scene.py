"""One partition's end, in one way of calling handlers, while one rule says when a record is done.

A scene is a story of which chance decides only whose turn it is and when the brokers answer. What happens is fixed: the
worker gets its partitions, the end comes to one of them at a certain moment, and once the worker has answered to that,
nothing troubles it any more, and everything is to be handled. The story looks on after each store and each message; the
scene looks at what holds only where the end is known: where exactly a partition goes on, and how often each record was
handled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition
from msgspec.structs import replace

from kunicorn.handler.load import DrainDeadline
from kunicorn.handler.outcome import DeadLetter, Halt
from kunicorn.ipc import bitmap
from kunicorn.ipc.messages import DrainOver, Failed, FetcherStart, StopFetcher, Stopped
from kunicorn.positions import NO_OFFSET, TopicPartition
from tests.contract.worker.brokers import ACK, HOPELESS, Output, StoryConsumer
from tests.contract.worker.choices import Choices, by_seed
from tests.contract.worker.fetching import StoryFetcher
from tests.contract.worker.handling import Handling
from tests.contract.worker.plan import TOPIC, Plan, Way, written
from tests.contract.worker.stepping import NANOSECONDS, START, STEPS
from tests.contract.worker.story import Story
from tests.contract.worker.supervised import Memory, Partition
from tests.contract.worker.truth import NOTHING_LEFT, Call, Log, Record, Violation

_NS_PER_MS = 1_000_000
_STRIKES_WITHIN = 30 * NANOSECONDS
_LONG, _SHORT = NANOSECONDS, 2_000_000
_STILL = NANOSECONDS // 10
_LETS_GO_WITHIN = 3 * NANOSECONDS
"""Longer than a letter is waited for, and than a turn in which nothing comes."""
_CLINGS_FOR = NANOSECONDS // 2
_LITTLE = 2000
"""Bytes: three records fill it."""
_ASKS_FOR_TIME, _LATE_FROM = 2, 5
"""Indexes among the records of the first partition."""
NEVER_FITS = KafkaError._QUEUE_FULL
"""The code of a refusal by the client itself, whose queue has no room for the output, however empty it is."""


class Ending(StrEnum):
    """What ends a partition's time with a worker."""

    DRAINED = "drained"
    """It goes to another worker; what is in hand is finished."""
    REVOKED = "revoked"
    """Likewise, and the time for that runs out: what is in hand is interrupted."""
    LOST = "lost"
    """It has been given to another member."""
    HALTED = "halted"
    """Its handler asks for a person."""
    REWOUND = "rewound"
    """An output is refused, so that it begins again there; it does not end."""
    AT_ITS_STOP = "at its stop"
    """It was handed out with a stop, and everything before that is handled."""
    WORKER_STOPPED = "worker stopped"
    """The worker is told to stop."""
    SOUGHT_BACK = "sought back"
    """A person has records handled again."""
    SOUGHT_AHEAD = "sought ahead"
    """A person has records passed over."""


class Moment(StrEnum):
    """When that strikes."""

    FIRST_CALL = "in the first call"
    LATER_CALL = "in a later call"
    ON_ITS_WAY = "with outputs on their way"
    IDLE = "with nothing to do"


class Meeting(StrEnum):
    """What a refusal finds its partition in."""

    FILLING = "its last records wait for a fuller batch"
    BROKEN = "the client has an error behind its last record"
    ASIDE = "it is set aside"
    DELAYED = "its last records wait for their time"
    WAITING = "it waits to be fetched again"


_DELAYS_MS = {Meeting.DELAYED: 10_000, Meeting.WAITING: 200}
"""Of the handlers, where a refusal is to find a partition so."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record of which the brokers do not take an output, told once the worker has come as far as it can without."""

    code: int = HOPELESS[0]
    on_failure: str = "dead_letter"
    one_key: bool = False
    """All records have the same."""
    hopeless_behind: bool = False
    """The handler fails for good at one behind it."""
    outbox_records: int = 10_000
    meets: Meeting | None = None
    """None: whatever there is."""


class Letter(StrEnum):
    """When a dead letter arrives that is on its way at the end."""

    AT_ONCE = "at once"
    NEVER = "never"
    """Not before the partition is reported."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is to hold in every one of them."""

    ways: Mapping[str, Way]
    delivery: str | None
    ending: Ending
    moment: Moment
    fetcher: str = "librdkafka"
    suspects: bool = False
    """Records of the first partition may have killed workers."""
    refusal: Refusal = Refusal()
    """Where the ending is `REWOUND`."""
    letter: Letter | None = None
    """Its handler gives up a record of the first partition, and the end strikes while the letter is on its way."""
    just_returned: bool = False
    """Where the ending is `REVOKED`: its handler is interrupted when it has returned, and the worker has not noted that
    yet."""

    def plan(self) -> Plan:
        """Of a worker that chance does nothing to."""
        return Plan.without_chance(
            ways=self.ways,
            delivery=self.delivery,
            on_failure="halt" if self.ending is Ending.HALTED else self.refusal.on_failure,
            max_records=self.refusal.outbox_records,
            ahead_bytes=_LITTLE if self.refusal.meets is Meeting.ASIDE else 1_000_000,
            fetcher=self.fetcher,
            delay_ms=_DELAYS_MS.get(self.refusal.meets, 0) if self.refusal.meets is not None else 0,
        )


def play(cell: Cell, memory: Memory, seed: int, trace: list[str] | None = None) -> None:
    """Raises `Violation`, or what the worker broke by."""
    scene = Scene(cell, memory, Choices(by_seed(f"{cell}/{seed}")), trace)
    scene.tell()
    scene.look_back()


def _logs(cell: Cell) -> dict[TopicPartition, Log]:
    """Two partitions of the first topic, one of each other one: with gaps, and what is no record at their ends."""
    first, *others = (TopicPartition(topic, 0) for topic in cell.ways)
    keys, meets = b"aaaa" if cell.refusal.one_key else b"abca", cell.refusal.meets
    short = {place: _log(place, (3, 5, 6), keys) for place in (TopicPartition(TOPIC, 1), *others)}
    return {first: _log(first, (3, 4, 5, 8, 9, 10, 11, 12), keys, meets), **short}


def _log(place: TopicPartition, offsets: Sequence[int], keys: bytes, meets: Meeting | None = None) -> Log:
    records = []
    for at, offset in enumerate(offsets):
        value = bytes(_LITTLE) if meets is Meeting.ASIDE and at == _ASKS_FOR_TIME else b"value"
        sent_ms = START // _NS_PER_MS if meets in _DELAYS_MS and at >= _LATE_FROM else 1000
        records.append(written(place, offset, keys[at % 4 : at % 4 + 1], value, sent_ms))
    log = Log(place, records, offsets[0], offsets[-1] + 2)
    log.visible = len(records)
    return log


class Scene(Story):
    """See above. The end strikes partition 0 of the first topic."""

    def __init__(self, cell: Cell, memory: Memory, choices: Choices, trace: list[str] | None) -> None:
        self._cell = cell
        super().__init__(choices, memory, cell.plan(), _logs(cell), trace)
        self._struck = False
        self._struck_at = 0
        self._interrupted = False
        self._spared: set[int] = set()
        """Offsets that may have been handled though they are told as not: interrupted between the one and the other."""
        self._once_more: set[int] = set()
        """Records that their handler gave up: a person has them handled once more."""
        self._given_up_at = NO_OFFSET
        """The first record of the call that its handler asked for a person with."""
        self._refused: Record | None = None
        self._alone: Record | None = None
        """A suspect that has begun and is not delivered."""
        self._most: Counter[str] = Counter()
        """By topic: calls at a time."""
        self._moved_at = STEPS.now
        """When a call began or ended last."""
        self._first = self.partitions[0]
        self._stop_at = self._first.log.offsets[5]
        self._singly_until, self._suspect = self._first.log.offsets[1], self._first.log.offsets[3]

    def _handler(self) -> Handling:
        return _Handling(self)

    def _source(self) -> StoryConsumer | StoryFetcher:
        return super()._source() if self._cell.refusal.meets is None else _Consumer(self)

    # -- what happens ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """See `stepping.World`."""
        if self.quiet:
            super().turn()
            return
        if not self._struck and self._is_the_moment():
            self._strike()
        elif self._is_to_be_interrupted and not self._cell.just_returned:
            self._interrupt_it()
        elif self._is_over():
            self._calm()
        elif self._cell.moment is not Moment.ON_ITS_WAY and self.choices.chance(15):
            self._broker.answer(1 + self.below(2), self._fate)

    def idle(self) -> bool:
        """See `stepping.World`."""
        if self.quiet:
            return super().idle()
        if not self._struck and self._is_the_moment_of_rest():
            self._strike()
            return True
        if self._may_answer() and self._broker.answer(1 + self.below(3), self._fate):
            return True
        if STEPS.now - START > _STRIKES_WITHIN:
            what = "nothing comes of it" if self._struck else "there never was the moment"
            STEPS.fail(Violation(f"{what}: {self._left_over()}"))
        return False

    def _may_answer(self) -> bool:
        if self._cell.letter is Letter.NEVER:
            return not self._first.grant
        if self._struck or self._cell.moment is not Moment.ON_ITS_WAY:
            return True
        return self._cell.ending is Ending.REWOUND and self._is_as_far_as_it_can and self._meets

    def _is_the_moment(self) -> bool:
        first = self._first
        if self._cell.letter is not None:
            return self._letter_is_on_its_way
        if self._cell.just_returned:
            return any(record.offset == self._chosen for record in first.running)
        match self._cell.ending, self._cell.moment:
            case ((Ending.HALTED | Ending.REWOUND), _):
                return self._befell_by_itself()
            case Ending.AT_ITS_STOP, _:
                return first.log.unfinished >= self._stop_at and not first.running
            case _, Moment.FIRST_CALL:
                return bool(first.running)
            case _, Moment.LATER_CALL:
                return any(record.offset > first.log.offsets[1] for record in first.running)
            case _:
                return False

    def _befell_by_itself(self) -> bool:
        return bool(self._first.halted) or self._refused is not None

    @property
    def _letter_is_on_its_way(self) -> bool:
        letters = (output.letter_of for _, output in self._broker.unanswered)
        return any(letter is not None and letter.tp == self._first.log.tp for letter in letters)

    @property
    def _meets(self) -> bool:
        """Whether the partition is in what the refusal is to find it in, as far as that shows."""
        first, meets, consumer = self._first.log, self._cell.refusal.meets, self._consumer
        if meets is None or not isinstance(consumer, _Consumer):
            return True
        if meets is Meeting.FILLING:
            return consumer.has_given_all_of(first) and not first.records[-1].begun_under
        return not consumer.fetches(first.tp) and (meets is not Meeting.WAITING or consumer.clung)

    @property
    def clings(self) -> bool:
        """Whether the client tells where it was in a partition that it was told to leave: that is not fetched again
        before it does not."""
        if self._cell.refusal.meets is not Meeting.WAITING or self.quiet:
            return False
        return self._refused is None or STEPS.now - self._struck_at < _CLINGS_FOR

    def is_broken(self, log: Log) -> bool:
        """Whether the client has an error behind its last record."""
        return self._cell.refusal.meets is Meeting.BROKEN and log is self._first.log and not self.quiet

    @property
    def _is_as_far_as_it_can(self) -> bool:
        """Whether nothing is begun any more until the brokers answer."""
        still = STEPS.now - self._moved_at > _STILL
        return still and not any(each.running for each in self.partitions) and bool(self._broker.unanswered)

    def _is_the_moment_of_rest(self) -> bool:
        if self._cell.letter is not None or self._cell.just_returned:
            return False
        if self._cell.ending in (Ending.HALTED, Ending.REWOUND) or any(each.running for each in self.partitions):
            return False
        if self._cell.moment is Moment.ON_ITS_WAY:
            return self._is_as_far_as_it_can
        return self._cell.moment is Moment.IDLE and all(each.log.unfinished == NOTHING_LEFT for each in self.partitions)

    def _strike(self) -> None:
        self._struck, self._struck_at = True, STEPS.now
        each, ending = self._first, self._cell.ending
        self.note(lambda: f"-- {ending} strikes {each.log.tp}")
        if self._cell.moment is Moment.ON_ITS_WAY and ending is not Ending.REWOUND and self._cell.letter is None:
            self._look_at_what_went_on()
        match ending:
            case Ending.HALTED | Ending.REWOUND:
                return
            case Ending.WORKER_STOPPED:
                self._reload()
            case _:
                each.stopping, each.lost = True, ending is Ending.LOST
                self.generation += each.lost
                self._pipe.put(StopFetcher([each.grant], None, each.lost))

    @property
    def _is_to_be_interrupted(self) -> bool:
        return self._cell.ending is Ending.REVOKED and self._first.applied and not self._interrupted

    def storing(self, at: int) -> None:
        """See `Story`."""
        if not self._cell.just_returned or not self._is_to_be_interrupted or self.quiet:
            return
        call = self.calls[-1]
        if call.returned and call.records[0].offset == self._chosen:
            self._interrupt_it()
            STEPS.point()

    def _interrupt_it(self) -> None:
        self._interrupted = self._first.overdue = True
        self._spare()
        self.note(lambda: "-- DrainOver, SIGUSR1")
        self._pipe.put(DrainOver([self._first.grant]))
        STEPS.signal()

    def _spare(self) -> None:
        reading = self.memory.ledger.read(self._first.slot, self._first.grant)
        self._spared.update(each for each in self._first.log.offsets if each >= reading.consumed.offset)

    def _is_over(self) -> bool:
        if not self._struck:
            return False
        if self._refused is not None:
            return self._refused.finished or bool(self._first.halted)
        return not self._first.grant and not self._draining

    def _live(self) -> bool:
        returned = super()._live()
        if self._struck and not self.quiet:
            self._calm()
        return returned

    def _granted(self, each: Partition) -> FetcherStart:
        start = super()._granted(each)
        if each is not self._first or self._struck:
            return start
        if self._cell.suspects:
            return replace(start, suspects=[self._suspect], singly_until=self._singly_until)
        return replace(start, stop=self._stop_at) if self._cell.ending is Ending.AT_ITS_STOP else start

    def _calm(self) -> None:
        super()._calm()
        for each in self.partitions:  # A person has looked, and it is handed out again.
            each.halted = ""

    # -- what the handler does ---------------------------------------------------------------------------------------

    def kind(self, call: Call) -> str:
        """See `Handling`."""
        chosen = call.records[0].tp == self._first.log.tp and any(r.offset == self._chosen for r in call.records)
        if self._cell.ending is Ending.HALTED and chosen and not self.quiet:
            return "halt"
        if self._cell.letter is not None and chosen and not self.quiet:
            return "letter"
        if self._cell.just_returned:
            return "slow" if chosen and not self.quiet else ""  # Else a call gets one record.
        if self._hopeless in call.records and not self.quiet:
            return "raise"
        if self._asks_for_time in call.records:
            return "wait"
        return "" if self.quiet else "slow"

    def duration(self) -> int:
        """Likewise."""
        if self._cell.suspects or (self._cell.ending is Ending.REVOKED and self._struck):
            return _LONG
        return _SHORT if self._cell.letter is not None else self.choices.pick((_SHORT, _LONG))

    @property
    def _chosen(self) -> int:
        """The record that its handler gives up, or whose output is refused."""
        if self._cell.refusal.hopeless_behind:
            return self._first.log.offsets[1]  # Of batches in another one than that.
        if self._cell.refusal.meets is Meeting.ASIDE:
            return self._first.log.offsets[0]  # Likewise, than the one that asks for time.
        return self._first.log.offsets[0 if self._cell.moment is Moment.FIRST_CALL else 4]

    @property
    def _hopeless(self) -> Record | None:
        return self._first.log.records[6] if self._cell.refusal.hopeless_behind else None

    @property
    def _asks_for_time(self) -> Record | None:
        asks = self._cell.refusal.meets is Meeting.ASIDE and self._refused is None
        return self._first.log.records[_ASKS_FOR_TIME] if asks else None

    def _fate(self, output: Output) -> int | None:
        return self._cell.refusal.code if self._is_refused(output) else ACK

    def never_fits(self, output: Output) -> bool:
        """See `brokers.Teller`."""
        return self._cell.refusal.code == NEVER_FITS and self._is_refused(output)

    def _is_refused(self, output: Output) -> bool:
        if self._cell.ending is not Ending.REWOUND or output.call is None or self.quiet:
            return False
        records = output.call.records
        if records[0].tp == self._first.log.tp and any(record.offset == self._chosen for record in records):
            self._refused = self._first.log.known[self._chosen]
            return True
        return False

    def raised(self, call: Call, error: BaseException) -> None:
        """Note what that has the worker do."""
        if isinstance(error, DrainDeadline):
            self._spared.update(record.offset for record in call.records)
        if isinstance(error, Halt):
            self._given_up_at = call.records[0].offset
        if isinstance(error, Halt) or (isinstance(error, DeadLetter) and self._cell.letter is Letter.NEVER):
            self._once_more.update(map(id, call.records))

    # -- what is looked at -------------------------------------------------------------------------------------------

    def begun(self, call: Call) -> None:
        """Look at a call that begins."""
        self._moved_at = STEPS.now
        self._look_at_what_is_told(call)
        topic = call.records[0].tp.topic
        in_hand = [record for each in self.partitions if each.log.tp.topic == topic for record in each.running]
        self._most[topic] = max(self._most[topic], len(in_hand))
        if self._cell.suspects and not self._struck:
            self._look_at_suspects(call)
        last = call.records[-1]
        if last.tp == self._first.log.tp and last.offset >= self._stop_at and self._has_a_stop:
            STEPS.fail(Violation(f"{last.offset} is handled, which lies behind the stop {self._stop_at}"))

    def ended(self) -> None:
        """Note that a call has."""
        self._moved_at = STEPS.now

    def _look_at_what_is_told(self, call: Call) -> None:
        """Of what is in hand the ledger says since when, and how old it is, or the first one that is not done, where
        there are several: by that it is timed out, and its lag is told in seconds."""
        each = self.partition(call.records[0].tp)
        reading = self.memory.ledger.read(each.slot, each.grant)
        if not reading.hand_count or not START <= reading.hand_since_ns <= STEPS.now:
            STEPS.fail(Violation(f"{each.log.tp} has a record in hand, and the ledger says {reading}"))
        several = self.plan.way(each.log.tp.topic).concurrency > 1
        first = each.log.from_offset(reading.consumed.offset, 1)[0] if several else call.records[0]
        if reading.timestamp_ms != first.message.timestamp()[1]:
            STEPS.fail(Violation(f"{each.log.tp} has a record in hand, of the time {reading.timestamp_ms}"))

    def _look_at_suspects(self, call: Call) -> None:
        """A suspect has nothing beside it, in hand or on its way, until it is delivered."""
        alone, offsets = self._alone, [record.offset for record in call.records]
        if alone is not None and not alone.finished:
            STEPS.fail(Violation(f"{offsets} are begun before the suspect {alone.offset} is delivered"))
        if not any(self._is_suspect(record) for record in call.records):
            return
        every = [record for each in self.partitions for record in each.log.records]
        beside = [record for each in self.partitions for record in each.running if record not in call.records]
        beside += [record for record in every if record.handled and not record.finished]
        if beside or len(offsets) > 1:
            STEPS.fail(Violation(f"of {offsets} one is a suspect, and {[each.offset for each in beside]} beside it"))
        (self._alone,) = call.records

    def _is_suspect(self, record: Record) -> bool:
        if record.tp != self._first.log.tp:
            return False
        in_runs = self.plan.way(record.tp.topic).concurrency == 1
        return record.offset < self._singly_until or (
            record.offset <= self._suspect if in_runs else record.offset == self._suspect
        )

    def _look_at_what_went_on(self) -> None:
        """While outputs are on their way, a partition goes on, or a lane of it waits: as the rule says, and no more."""
        for each in self.partitions:
            way, records = self.plan.way(each.log.tp.topic), each.log.records
            expected = {record.offset for record in records}
            if not self.plan.in_transactions and way.concurrency > 1:
                lanes = {self._lane(record, way): record.offset for record in reversed(records)}
                expected = set(lanes.values())
            begun = {record.offset for record in records if record.handled}
            if begun != expected:
                STEPS.fail(
                    Violation(f"{each.log.tp}: {sorted(begun)} are handled before any answer, not {sorted(expected)}")
                )

    def _lane(self, record: Record, way: Way) -> object:
        return record.offset if way.ordering == "none" else record.key if way.ordering == "key" else None

    @property
    def _has_a_stop(self) -> bool:
        return self._cell.ending is Ending.AT_ITS_STOP and not (self._struck and not self._first.stopping)

    def _ended(self, report: Stopped | Failed, halted: str) -> None:
        each = next((each for each in self.partitions if each.grant == report.grant), None)
        lost = each is not None and each.lost
        super()._ended(report, halted)
        if self._cell.ending is Ending.HALTED and halted and each is self._first:
            self._look_at_what_is_named(report.offset, halted)
        if each is None or lost or (each is self._first and self._may_repeat):
            return
        waited = STEPS.now - self._struck_at
        if self._cell.letter is Letter.NEVER and each is self._first and waited > _LETS_GO_WITHIN:
            STEPS.fail(Violation(f"{each.log.tp} waits {waited / NANOSECONDS:.1f} s for its letter"))
        offset = report.offset
        told = each.done | bitmap.read(offset, report.done) | self._spared
        missing = [r.offset for r in each.log.records if r.finished and r.offset >= offset and r.offset not in told]
        if missing:
            STEPS.fail(Violation(f"{each.log.tp} is reported at {offset}, and {missing} are finished, too"))
        if each is self._first and not self.quiet:
            if self._cell.ending is Ending.AT_ITS_STOP and offset > self._stop_at:
                STEPS.fail(Violation(f"{each.log.tp} is reported at {offset}, behind its stop {self._stop_at}"))
            self._seek(each)

    def _look_at_what_is_named(self, offset: int, halted: str) -> None:
        """A partition may halt before another record than the one that its handler gave up: people look for that."""
        if offset != self._given_up_at and f"offset {self._given_up_at}: " not in halted:
            STEPS.fail(Violation(f"{self._given_up_at} is given up, and what is told at {offset} is {halted!r}"))

    @property
    def _may_repeat(self) -> bool:
        """Whether what is delivered behind a refused output is handled again: only transactions take it back."""
        return self._cell.ending is Ending.REWOUND and not self.plan.in_transactions

    def _seek(self, each: Partition) -> None:
        """Have it go on elsewhere, as a person does with a partition that nobody handles."""
        log = each.log
        if self._cell.ending is Ending.SOUGHT_BACK:
            log.forget(log.offsets[1])
            each.position = each.committed = log.offsets[1]
        elif self._cell.ending is Ending.SOUGHT_AHEAD:
            for record in log.records[:6]:
                record.finish("passed over")
            each.position = each.committed = max(each.position, log.offsets[6])
            log.forget(each.position)
        else:
            return
        each.done = each.committed_done = frozenset()
        each.unsure = False

    def look_back(self) -> None:
        """Raises `Violation` where a record was handled more often than what happened gives reason to, where another
        one became a dead letter than what failed, and where a handler never had as many calls as it may."""
        if self._cell.moment is Moment.IDLE and self._cell.fetcher == "librdkafka":  # It gives out all at once.
            self._look_at_concurrency()
        # With an error behind it the partition ends before the record has failed for good.
        fails = self._cell.ending is Ending.REWOUND and self._cell.refusal.meets is not Meeting.BROKEN
        if fails and self._cell.refusal.on_failure == "dead_letter":
            self._look_at_letters()
        reasons = (Ending.REVOKED, Ending.LOST, Ending.REWOUND, Ending.SOUGHT_BACK, Ending.SOUGHT_AHEAD)
        calls = Counter(id(record) for call in self.calls for record in call.records)
        for each in self.partitions:
            if each is self._first and self._cell.ending in reasons:
                continue
            again = [
                record.offset for record in each.log.records if calls[id(record)] > 1 + (id(record) in self._once_more)
            ]
            if again:
                raise Violation(f"{each.log.tp}: {again} were handled again, for no reason")

    def _look_at_concurrency(self) -> None:
        for topic, way in self.plan.ways.items():
            records = [record for each in self.partitions if each.log.tp.topic == topic for record in each.log.records]
            if self._cell.suspects:  # The others may be handled before those, one by one.
                records = [r for r in self._first.log.records if r.tp.topic == topic and r.offset > self._suspect]
            lanes = {(record.tp, self._lane(record, way)) for record in records}
            if way.mode == "record" and self._most[topic] < min(way.concurrency, len(lanes)):
                raise Violation(f"{topic}: never more than {self._most[topic]} calls at a time")

    def _look_at_letters(self) -> None:
        letters = [record for record in self._first.log.records if record.how == "dead letter"]
        failed = {self._chosen} | ({self._hopeless.offset} if self._hopeless is not None else set())
        batches = self.plan.way(self._first.log.tp.topic).mode == "batch"
        if not letters or not (batches or {record.offset for record in letters} <= failed):
            raise Violation(f"{[record.offset for record in letters]} are dead letters, and {failed} failed")


class _Handling(Handling):
    """What the handler of a scene does; the scene looks on."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._scene = scene

    def begin(self, records: Sequence[Any]) -> Call:
        call = super().begin(records)
        self._scene.begun(call)
        return call

    def ends(self, call: Call) -> None:
        super().ends(call)
        self._scene.ended()

    def kind(self, call: Call) -> str:
        return self._scene.kind(call)

    def duration(self) -> int:
        return self._scene.duration()

    def wait(self) -> int:
        return 5 * _LONG

    def outputs(self) -> int:
        return 1 + self._choices.below(2)

    def raised(self, call: Call, error: BaseException) -> None:
        self._scene.raised(call, error)
        super().raised(call, error)


class _Consumer(StoryConsumer):
    """What a client does to a partition that a refusal is to find in some state."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._scene = scene
        self._broken: set[TopicPartition] = set()
        self.clung = False
        """It has told where it was in a partition that it was told to leave."""

    def fetches(self, place: TopicPartition) -> bool:
        """Whether it has that."""
        return place in self._fetching

    def has_given_all_of(self, log: Log) -> bool:
        """Whether no record of it is left to come."""
        return self._fetching.get(log.tp, NO_OFFSET) > log.offsets[-1]

    def _take(self, most: int) -> list[Message]:
        found = super()._take(most)
        for place in self._fetching:
            log = self._scene.logs[place]
            if place not in self._broken and self.has_given_all_of(log) and self._scene.is_broken(log):
                self._broken.add(place)
                error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                found.append(Message(topic=place.topic, partition=place.partition, error=error))
        return found

    def position(self, partitions: Sequence[ClientPartition]) -> list[ClientPartition]:
        if not self._scene.clings:
            return super().position(partitions)
        told = [self._position(each) for each in partitions]
        left = (each for each in told if TopicPartition(each.topic, each.partition) not in self._fetching)
        self.clung |= any(each.offset >= 0 for each in left)
        return told
