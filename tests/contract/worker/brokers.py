"""The brokers as a worker's clients show them: a consumer of the story's logs, and producers whose outputs are answered
when the story says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol
from uuid import NAMESPACE_URL, uuid5

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition

from kunicorn.ipc import bitmap
from kunicorn.positions import NO_EPOCH
from kunicorn.positions import TopicPartition as Place
from kunicorn.text import topic_id_text
from tests.contract.worker.handling import keep
from tests.contract.worker.stepping import STEPS, Strand, nanoseconds
from tests.contract.worker.truth import Call, Log, Record, Violation, epoch_before

if TYPE_CHECKING:
    from tests.contract.worker.supervised import Partition

ACK = None
HOPELESS = (KafkaError._UNKNOWN_TOPIC, KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
AWAY = (KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""A letter's topic is not to be had; it waits for that."""
PASSING = (KafkaError._MSG_TIMED_OUT, KafkaError.NOT_ENOUGH_REPLICAS)
BEGAN_WITH = 64
"""Partitions that every topic had when the group began to consume it."""
_FETCH_NS = 1_000_000
"""So long a fetch takes: who fetches again and again must not keep the clock from going on."""
_LONGER = 50
"""With nothing to give the client takes that part of the time since it had something, if that is more than asked."""


class Teller(Protocol):
    """The story, as far as brokers are concerned."""

    quiet: bool
    """Nothing goes wrong any more."""
    keeps_positions: bool
    """The consumer tells a position for a while after its assignment is over, as librdkafka may."""
    logs: dict[Place, Log]
    calls: list[Call]

    def note(self, text: Callable[[], str]) -> None:
        """For whoever reads the story."""

    def below(self, number: int) -> int:
        """One of 0 … number-1."""

    def refused(self, output: Output) -> None:
        """The brokers will never take it."""

    def never_fits(self, output: Output) -> bool:
        """Whether the client's own queue has no room for it, however empty it is."""

    def partition(self, tp: Place) -> Partition:
        """What the supervisor knows of it."""

    def letter_arrived(self, record: Record) -> None:
        """What stands for the record is in its topic."""

    def committed(self, place: Place, offset: int, done: frozenset[int]) -> None:
        """A transaction was committed with that offset, and with what is done beyond it."""

    def twice(self, record: Record) -> None:
        """Outputs of two of its calls were committed."""

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases, as long as things go wrong."""

    @property
    def generation(self) -> int:
        """Under which offsets may be committed."""


class Output:
    """One record that the worker has produced."""

    def __init__(self, topic: str, call: Call | None, number: int, letter_of: Record | None, told: Any) -> None:
        self.topic, self.call, self.number, self.letter_of, self.told = topic, call, number, letter_of, told
        self.code: int | None = None
        self.message = Message(topic=topic, partition=0, offset=0)

    def __str__(self) -> str:
        if self.letter_of is not None:
            return f"letter of {self.letter_of.offset}"
        offsets = ",".join(str(record.offset) for record in self.call.records) if self.call is not None else "?"
        return f"output {self.number} of {offsets}"


@cache
def topic_id_of(topic: str) -> str:
    """As it is committed and told to workers."""
    return topic_id_text(uuid5(NAMESPACE_URL, topic))


def _named(partitions: Sequence[TopicPartition]) -> str:
    # The worker has them in sets of texts, whose order is another one in each process.
    return " ".join(sorted(f"{each.topic}-{each.partition}" for each in partitions))


class StoryConsumer:
    """In the place of confluent-kafka's. Caller: the worker's main thread."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._fetching: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._given: dict[Place, int] = {}
        """Positions, of the last assignment."""
        self._forgotten_at: dict[Place, int] = {}
        """When positions of assignments that are over are told no more."""
        self._waiting: Strand | None = None
        self._busy_at = STEPS.now

    def poll(self, timeout: float = -1) -> Message | None:
        STEPS.point()
        found = self._take(1)
        if found:
            STEPS.sleep(_FETCH_NS)
        elif timeout > 0:
            self._pass_ends()
            self._waiting = STEPS.current
            try:
                STEPS.wait(STEPS.now + max(nanoseconds(timeout), (STEPS.now - self._busy_at) // _LONGER))
            finally:
                self._waiting = None
            found = self._take(1)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        STEPS.check()
        return self._take(num_messages)

    def arrived(self) -> None:
        """There may be something to fetch."""
        if self._waiting is not None:
            STEPS.wake(self._waiting)

    def _take(self, most: int) -> list[Message]:
        found: list[Message] = []
        places = [place for place in self._fetching if place not in self._paused]
        if most == 1 and len(places) > 1:
            first = self._teller.below(len(places))
            places = places[first:] + places[:first]
        for place in places:
            records = self._teller.logs[place].from_offset(self._fetching[place], most - len(found))
            if records:
                self._move(place, records[-1].offset + 1)
                found += [record.message for record in records]
        if found:
            self._busy_at = STEPS.now
            self._teller.note(lambda: f"fetched {' '.join(f'{m.partition()}@{m.offset()}' for m in found)}")
        return found

    def _pass_ends(self) -> None:
        """The client has nothing more to give out, and knows what lies behind the last record."""
        for place, at in self._fetching.items():
            log = self._teller.logs[place]
            if log.visible == len(log.records) and at < log.end and not log.from_offset(at, 1):
                self._move(place, log.end)

    def _move(self, place: Place, position: int) -> None:
        self._fetching[place] = self._given[place] = position
        self._forgotten_at.pop(place, None)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        STEPS.check()
        for each in partitions:
            place = Place(each.topic, each.partition)
            if place in self._fetching:
                raise KafkaException(KafkaError(KafkaError._CONFLICT))
            self._fetching[place] = each.offset
            self._teller.note(lambda each=each: f"fetches {each.partition} from {each.offset} on")  # type: ignore[misc]

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        STEPS.check()
        for each in partitions:
            place = Place(each.topic, each.partition)
            if self._fetching.pop(place, None) is None:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
            assert place not in self._paused, f"{place} would be paused when it is assigned again"
            kept_ns = (1 + self._teller.below(100)) * 1_000_000 if self._teller.keeps_positions else 0
            self._forgotten_at[place] = STEPS.now + kept_ns

    def seek(self, partition: TopicPartition) -> None:
        STEPS.check()
        place = Place(partition.topic, partition.partition)
        if place not in self._fetching:
            raise KafkaException(KafkaError(KafkaError._STATE))
        assert self._fetching[place] == partition.offset, f"{place} begins elsewhere than it was assigned"

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        STEPS.check()
        self._paused |= self._assigned(partitions)
        self._teller.note(lambda: f"pauses {_named(partitions)}")

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        STEPS.check()
        self._paused -= self._assigned(partitions)
        self._teller.note(lambda: f"resumes {_named(partitions)}")

    def _assigned(self, partitions: Sequence[TopicPartition]) -> set[Place]:
        places = {Place(each.topic, each.partition) for each in partitions}
        assert places <= self._fetching.keys(), "of what is not assigned nothing is fetched"
        return places

    def _position(self, p: TopicPartition) -> TopicPartition:
        at = self._given.get(Place(p.topic, p.partition))
        if at is None:
            return TopicPartition(p.topic, p.partition, OFFSET_INVALID)
        return TopicPartition(p.topic, p.partition, at, leader_epoch=epoch_before(at))

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        STEPS.check()
        for place in [place for place, at in self._forgotten_at.items() if at <= STEPS.now]:
            del self._forgotten_at[place]
            self._given.pop(place, None)
        return [self._position(p) for p in partitions]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """Every topic is known."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""


class Broker:
    """What is behind the producers: what they have sent, and what was committed in transactions. Outlives workers."""

    def __init__(self, teller: Teller) -> None:
        self.teller = teller
        self.unanswered: list[tuple[StoryProducer, Output]] = []
        self.producers: list[StoryProducer] = []

    def answer(self, count: int, code: Callable[[Output], int | None]) -> int:
        """Answer so many of what was sent, the oldest first."""
        answered, self.unanswered = self.unanswered[:count], self.unanswered[count:]
        for producer, output in answered:
            output.code = code(output)
            producer.answered(output)
        return len(answered)

    def forget(self) -> None:
        """The worker is dead: what the brokers have of it arrives unheard, and its transactions are ended."""
        for producer, output in self.unanswered:
            if output.call is not None and not producer.transactional:
                output.call.arrived(output.number)
        self.unanswered.clear()
        for producer in self.producers:
            producer.ended_by_others()
        self.producers.clear()

    def is_stable(self, place: Place) -> bool:
        """No transaction that may still be committed has an offset of it."""
        return not any(place in producer.places for producer in self.producers)


class StoryProducer:
    """In the place of confluent-kafka's. Caller: one thread of the worker at a time."""

    def __init__(self, broker: Broker, transactional: bool) -> None:
        self._broker, self._teller = broker, broker.teller
        self.transactional = transactional
        self.places: dict[Place, tuple[int, frozenset[int]]] = {}
        """What the open transaction has of offsets."""
        self._open: list[Output] = []
        self._asked_to_commit = False
        broker.producers.append(self)
        self._on_its_way = 0
        self._reports: list[Output] = []
        self._waiting: Strand | None = None

    def __len__(self) -> int:
        return self._on_its_way + len(self._reports)

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        STEPS.tick()
        output = self._output(topic, value, headers, callback or on_delivery)
        if self._teller.never_fits(output):
            if not len(self):
                self._teller.refused(output)
            raise BufferError("Local: Queue full")
        self._teller.note(lambda: f"produces {output} to {topic}")
        self._on_its_way += 1
        if self.transactional:
            self._open.append(output)
        self._broker.unanswered.append((self, output))

    def _output(
        self, topic: str, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None, told: Any
    ) -> Output:
        origin = dict(headers or ())
        if (offset := origin.get("kunicorn-offset")) is not None:
            place = Place((origin["kunicorn-topic"] or b"").decode(), int(origin["kunicorn-partition"] or b""))
            record = self._teller.logs[place].known[int(offset)]
            # One that is sent again may be of a grant that has ended meanwhile.
            record.letter_under = record.begun_under or self._teller.partition(place).grant
            return Output(topic, None, 0, record, told)
        call, number = (value or b"").split(b":")
        return Output(topic, self._teller.calls[int(call)], int(number), None, told)

    def answered(self, output: Output) -> None:
        """Its fate is known, and told at the next `poll` or `flush`."""
        self._on_its_way -= 1
        self._reports.append(output)
        if self._waiting is not None:
            STEPS.wake(self._waiting)

    def poll(self, timeout: float = 0.0) -> int:
        STEPS.tick()
        if self._teller.quiet:
            self._broker.answer(len(self._broker.unanswered), lambda output: ACK)
        if not self._reports and timeout > 0:
            self._wait(STEPS.now + nanoseconds(timeout))
        return self._tell()

    def flush(self, timeout: float = -1) -> int:
        STEPS.tick()
        until = STEPS.now + nanoseconds(timeout)
        while True:
            if self._teller.quiet:
                self._broker.answer(len(self._broker.unanswered), lambda output: ACK)
            self._tell()
            if not self._on_its_way or STEPS.now >= until:
                return len(self)
            self._wait(until)

    def _wait(self, until: int) -> None:
        self._waiting = STEPS.current
        try:
            STEPS.wait(until)
        finally:
            self._waiting = None

    def _tell(self) -> int:
        count = len(self._reports)
        while self._reports:
            output = self._reports.pop(0)
            self._note(output)
            if output.told is not None:
                output.told(None if output.code is None else KafkaError(output.code), output.message)
        return count

    def _note(self, output: Output) -> None:
        code = output.code
        self._teller.note(lambda: f"{output} is {'acknowledged' if code is None else f'answered with {code}'}")
        if code in HOPELESS:
            self._teller.refused(output)
        if code is None and not self.transactional:
            self._arrived(output)

    def _arrived(self, output: Output) -> None:
        if output.letter_of is not None:
            self._teller.letter_arrived(output.letter_of)
        elif output.call is not None:
            output.call.arrived(output.number)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nobody asks for them."""

    # -- transactions --------------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        """What a predecessor left open was ended when it died."""

    def begin_transaction(self) -> None:
        STEPS.tick()
        self._teller.note(lambda: "begins a transaction")
        self._drop()

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group_metadata: bytes, timeout: float = -1
    ) -> None:
        STEPS.point()
        head = len(b"CGMDv2:")
        generation = int.from_bytes(group_metadata[head : head + 4], "little", signed=True)
        if generation != self._teller.generation:
            self._teller.note(lambda: "offsets of an old generation are refused")
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION, "old", False, False, True))
        self._may_fail()
        for each in positions:
            metadata = each.metadata or ""
            if bitmap.partitions(metadata) != BEGAN_WITH:
                STEPS.fail(Violation(f"a commit of {each} does not tell with how many partitions the group began"))
            done = bitmap.read(each.offset, metadata)
            if done and bitmap.topic_in(metadata) != topic_id_of(each.topic):
                STEPS.fail(Violation(f"a commit of {each} does not tell which topic's records are done"))
            place = Place(each.topic, each.partition)
            epoch = NO_EPOCH if each.leader_epoch is None else each.leader_epoch
            keep(partial(self._teller.logs[place].check_epoch, each.offset, epoch, "a transaction"))
            self.places[place] = each.offset, done
        self._teller.note(lambda: f"adds offsets {self._shown()} to the transaction")

    def commit_transaction(self, timeout: float = -1) -> None:
        STEPS.point()
        if not self._asked_to_commit:
            if self._teller.chance(5):
                self._asked_to_commit = True
                self._teller.note(lambda: "nobody knows yet whether the transaction is committed")
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "later", False, True))
            self._may_fail()
        self._commit()

    def abort_transaction(self, timeout: float = -1) -> None:
        STEPS.point()
        self._teller.note(lambda: "aborts the transaction")
        self._broker.unanswered = [each for each in self._broker.unanswered if each[0] is not self]
        self._on_its_way = 0
        self._tell()
        self._drop()

    def _may_fail(self) -> None:
        if self._teller.chance(5):
            self._teller.note(lambda: "the transaction has to be aborted")
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, "abort it", False, False, True))
        if self._teller.chance(5):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "later", False, True))

    def _commit(self) -> None:
        self._teller.note(lambda: f"the transaction is committed: {self._shown()}")
        for call in {output.call: None for output in self._open if output.call is not None}:
            for record in call.records:
                record.committed_outputs += 1
                if record.committed_outputs > 1:
                    self._teller.twice(record)
        for output in self._open:
            self._arrived(output)
        places = self.places
        self._drop()
        for place, (offset, done) in places.items():
            self._teller.committed(place, offset, done)

    def ended_by_others(self) -> None:
        """Its worker is dead: the brokers end what they were not asked to commit, and go on where they were."""
        if self._asked_to_commit and self._teller.chance(50):
            self._commit()
        self._drop()

    def _drop(self) -> None:
        self.places, self._open, self._asked_to_commit = {}, [], False

    def _shown(self) -> str:
        return ", ".join(f"{place} {offset} {sorted(done)}" for place, (offset, done) in self.places.items())
