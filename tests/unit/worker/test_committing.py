"""Several records in hand and transactions, step by step in whatever order: the real table on brokers in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition
from hypothesis import given
from hypothesis import strategies as st

from kunicorn.handler.dead_letters import Cause, dead_letters
from kunicorn.handler.outputs import Outgoing
from kunicorn.handler.record import offset_of
from kunicorn.handler.retry import End
from kunicorn.ipc import bitmap, clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FetcherStart, FetcherStopped, FromWorker
from kunicorn.positions import NO_EPOCH, TopicPartition
from kunicorn.testing import record
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, message_of, placed
from kunicorn.worker.delivery import ON_COMMIT, Deliveries
from kunicorn.worker.partitions import Partitions
from kunicorn.worker.produce.outbox import Entry, GivenUp, Limits, Outbox, Step
from kunicorn.worker.progress import Attempt, Bounds, InFlight, Slots
from tests.fakes.parts import parts
from tests.fakes.stepped_senders import SteppedSenders, nobody_waits
from tests.fakes.transactional_brokers import (
    ABORTABLE,
    RETRIABLE,
    TOO_LARGE_VALUE,
    TransactionalBrokers,
    Written,
)

pytestmark = pytest.mark.usefixtures("_nobody_waits")

KEYS = "abacab"
"""Of the records of each partition."""
PARTITIONS = (0, 1)
NOWHERE = Written(0, 0, "")

GIVEN_UP = GivenUp(dead_letters("dlq"), Cause("E", "", "", 1))


@pytest.fixture
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_waits(monkeypatch)


def value_of(flight: InFlight, offset: int) -> bytes:
    return b"%d@%d" % (flight.tp.partition, offset)


def done_of(found: Written) -> set[int]:
    """The offsets that a commit says are done."""
    return set(range(found.offset)) | bitmap.read(found.offset, found.metadata)


class Worker:
    """One that begins where the group has committed. `bad`: partition and offset whose output is too large, once."""

    def __init__(self, brokers: TransactionalBrokers, ordering: str, bad: set[tuple[int, int]], producers: int) -> None:
        self.brokers, self.bad = brokers, bad
        self.outbox = Outbox(Limits(1000, 1 << 20, 0.0), senders=producers)
        self.ledger = Ledger.create(4)
        self.ledger.lease_ns = clock.now_ns() + 10**13
        self.reports: list[FromWorker] = []
        self.in_hand: list[InFlight] = []
        self.begun: list[tuple[int, int]] = []
        self._waiting: list[InFlight] = []
        self._slots = SLOTS[ordering]()
        log = placed([record("v", key=key, partition=number) for number in PARTITIONS for key in KEYS], "in")
        self._consumer = consumer = cast(Any, MemoryConsumer(MemoryLog(map(message_of, log)), lambda seconds: None))
        self.table = Partitions(
            parts(consumer, self.ledger, self.reports.append),
            lambda topic: self._slots,
            Deliveries(ON_COMMIT, self.outbox),
            self,
        )
        self.senders = SteppedSenders(brokers, self.outbox, self.table, producers)
        self.table.start([self._start(number) for number in PARTITIONS])
        self.table.begin_turn(0)
        fetched = consumer.consume(100, 0)
        for number in PARTITIONS:
            some = [message for message in fetched if message.partition() == number]
            self.table.feed(TopicPartition("in", number), 0, some, 0)

    def _start(self, number: int) -> FetcherStart:
        begin = self.brokers.offsets.get(number, NOWHERE)
        return FetcherStart(
            1 + number, 1 + number, "in", number, begin.offset, NO_EPOCH, done=begin.metadata, began_with=64
        )

    def end_at(self, offset: int) -> None:
        """There are markers at the end of every partition: so far the client has come."""
        places = [ClientPartition("in", number, offset) for number in PARTITIONS]
        self._consumer.position = lambda partitions: places[: len(partitions)]

    def start(self) -> None:
        """As many handlers as may."""
        while (flight := self.table.start_next(self._slots)) is not None:
            self._begin(flight)

    def _begin(self, flight: InFlight) -> None:
        assert flight.lane not in [each.lane for each in self.in_hand], "two of a lane are in hand"
        self.in_hand.append(flight)
        self.begun.append((flight.tp.partition, flight.offset))

    def of(self, partition: int) -> int:
        """Which of those in hand is of that partition."""
        return next(at for at, flight in enumerate(self.in_hand) if flight.tp.partition == partition)

    def handle(self, number: int, most: int = 100) -> None:
        """One of those in hand returns its output; of a run at most so many records are handled."""
        flight = self.in_hand.pop(number)
        flight.withdraw()
        messages = flight.messages if self._slots.bounds else flight.messages[:most]
        offsets = [offset_of(message) for message in messages]
        outputs = [Outgoing("out", self._value(flight, offset), None, None, -1, 0) for offset in offsets]
        if self._slots.bounds:
            flight.leave(offsets[0], offsets[-1] + 1, outputs)
        else:
            for offset, output in zip(offsets, outputs, strict=True):
                flight.leave(offset, offset + 1, [output])
        if self._slots.runs:
            self.ledger.cells[flight.tracker.cell] = offsets[-1] + 1
            self.table.returned(flight, len(offsets), 10, 1)
        elif (following := self.table.finish(flight)) is not None:
            self._begin(following)

    def _value(self, flight: InFlight, offset: int) -> bytes:
        return TOO_LARGE_VALUE if (flight.tp.partition, offset) in self.bad else value_of(flight, offset)

    def wake(self) -> None:
        """The test starts what may start."""

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """What the runner does about a refused record: at even offsets it is given up, with a dead letter; at odd ones
        tried again, and not refused any more."""
        self.bad.remove((flight.tp.partition, flight.offset))
        attempt = Attempt(flight, calls=0)
        flight.withdraw()
        if flight.offset % 2:
            self.table.park(attempt, "retry", str(error))
            self._waiting.append(flight)
            return
        letter = Outgoing("dlq", value_of(flight, flight.offset), None, None, -1, 0)
        flight.given_up, flight.entries = GIVEN_UP, [Entry(flight, flight.offset, flight.end, [letter], GIVEN_UP)]
        self.table.pass_over(attempt, End.DEAD_LETTER, "E")

    def try_again(self) -> None:
        """What waits for its next try."""
        while self._waiting:
            self.table.try_again(self._waiting.pop())

    def take(self) -> None:
        """A batch, if somebody is free for it."""
        self.outbox.hurry()
        self.senders.take_if_possible()

    def finish(self) -> None:
        """All that there is."""
        for _ in range(100):
            self.start()
            while self.in_hand:
                self.handle(0)
            self.outbox.hurry()
            self.senders.finish()
            self.try_again()
            self.start()
            if not self.in_hand:
                return
        raise AssertionError("it does not end")

    def die(self) -> None:
        """Its successor ends what its producers have left open."""
        for transaction in tuple(self.brokers.open):
            self.brokers.end(transaction, commit=False)
        self.ledger.close()


def check(brokers: TransactionalBrokers, *, everything: bool = False) -> None:
    """What is committed as done is what read-committed consumers have the outputs of, once; each key's
    are in their order."""
    values = brokers.committed_values()
    for number in PARTITIONS:
        offsets = [int(value.split(b"@")[1]) for value in values if value.startswith(b"%d@" % number)]
        assert sorted(offsets) == sorted(done_of(brokers.offsets.get(number, NOWHERE)))
        if everything:
            assert sorted(offsets) == list(range(len(KEYS)))


def check_order(brokers: TransactionalBrokers, lane_of: Callable[[int], object]) -> None:
    for number in PARTITIONS:
        lanes: dict[object, list[int]] = {}
        for value in brokers.committed_values():
            if value.startswith(b"%d@" % number):
                offset = int(value.split(b"@")[1])
                lanes.setdefault(lane_of(offset), []).append(offset)
        assert all(offsets == sorted(offsets) for offsets in lanes.values()), lanes


LANE_OF: Mapping[str, Callable[[int], object]] = {
    "partition": lambda offset: None,
    "key": lambda offset: KEYS[offset],
    "none": lambda offset: offset,
    "run": lambda offset: None,
    "batch": lambda offset: None,
}
SLOTS: Mapping[str, Callable[[], Slots]] = {
    "partition": lambda: Slots("partition", 10),
    "key": lambda: Slots("key", 10),
    "none": lambda: Slots("none", 10),
    "run": lambda: Slots("partition", 1, runs=True),
    "batch": lambda: Slots("partition", 1, runs=True, bounds=Bounds(2, None, 0, 1 << 20)),
}
"""Ways to handle: several in hand in some order, or one call at a time, with each record of a run or with a batch."""


@contextmanager
def working(
    ordering: str, faults: Mapping[tuple[str, int], KafkaError] | None = None, *bad: tuple[int, int], producers: int = 2
) -> Iterator[Worker]:
    worker = Worker(TransactionalBrokers(dict(faults or {})), ordering, set(bad), producers)
    yield worker
    worker.ledger.close()


# -- one story at a time ---------------------------------------------------------------------------------------------


def test_a_transaction_commits_the_lowest_unfinished_offset_and_what_is_done_beyond_it() -> None:
    with working("none") as worker:
        worker.start()
        for flight in [each for each in worker.in_hand if each.offset in (1, 3)]:
            worker.handle(worker.in_hand.index(flight))
        worker.take()
        worker.senders.finish()
        found = worker.brokers.offsets[0]
        assert (found.offset, set(bitmap.read(0, found.metadata))) == (0, {1, 3})
        assert bitmap.partitions(found.metadata) == 64, "with how many the group began is told with every commit"
        check(worker.brokers)


def test_the_next_owner_leaves_out_what_is_done_beyond_the_committed_offset() -> None:
    with working("none") as worker:
        worker.start()
        (third,) = (each for each in worker.in_hand if (each.tp.partition, each.offset) == (0, 2))
        worker.handle(worker.in_hand.index(third))
        worker.take()
        worker.senders.finish()
        successor = Worker(worker.brokers, "none", set(), 2)
        successor.start()
        assert [flight.offset for flight in successor.in_hand if flight.tp.partition == 0] == [0, 1, 3, 4, 5]
        successor.finish()
        check(worker.brokers, everything=True)
        assert worker.brokers.offsets[0].offset == len(KEYS)
        successor.ledger.close()


def test_a_lane_goes_on_while_its_records_are_on_their_way() -> None:
    with working("partition") as worker:
        worker.start()
        for _ in KEYS:
            worker.handle(worker.of(0))
        assert [flight.tp.partition for flight in worker.in_hand] == [1]
        worker.finish()
        check(worker.brokers, everything=True)


def test_a_record_that_leaves_nothing_has_its_offset_committed_as_well() -> None:
    with working("none") as worker:
        worker.start()
        worker.table.finish(worker.in_hand[worker.of(0)])
        assert worker.ledger.read(1, 1).consumed.offset == 0
        worker.take()
        worker.senders.finish()
        assert worker.brokers.offsets[0].offset == worker.ledger.read(1, 1).consumed.offset == 1


def test_while_one_transaction_commits_the_next_counts_its_records_as_done() -> None:
    with working("partition") as worker:
        worker.start()
        for _ in range(2):
            worker.handle(worker.of(0))
            worker.take()
        for sender in (0, 1):
            worker.senders.until(sender, Step.COMMIT)
        assert [pending[0].offset for pending in worker.brokers.pending.values()] == [1, 2]
        worker.finish()
        check(worker.brokers, everything=True)


def test_what_came_behind_a_refused_record_in_its_lane_is_handled_again_and_other_lanes_go_on() -> None:
    with working("key", None, (0, 0)) as worker:
        worker.start()
        for _ in range(4):
            worker.handle(worker.of(0))
        worker.take()
        worker.senders.until(0, Step.REST)
        assert worker.senders.advance(0) is Step.ASK
        worker.senders.until(0, Step.DONE)
        found = worker.brokers.offsets[0]
        assert (found.offset, set(bitmap.read(0, found.metadata))) == (0, {1, 3}), "keys b and c; a waits for its first"
        worker.finish()
        check(worker.brokers, everything=True)
        check_order(worker.brokers, LANE_OF["key"])


def test_a_record_that_is_in_hand_when_one_before_it_is_refused_is_handled_again() -> None:
    with working("partition", None, (0, 0)) as worker:
        worker.start()
        worker.handle(worker.of(0))
        worker.take()
        worker.senders.finish()
        worker.finish()
        assert worker.begun.count((0, 1)) == 2
        check(worker.brokers, everything=True)
        check_order(worker.brokers, LANE_OF["partition"])


def test_a_refused_record_is_not_tried_again_while_another_one_of_its_lane_is_in_hand() -> None:
    with working("partition", None, (0, 1)) as worker:
        worker.start()
        for _ in range(2):
            worker.handle(worker.of(0))
        worker.take()
        worker.senders.finish()
        worker.try_again()
        worker.start()
        assert worker.begun.count((0, 1)) == 1
        worker.handle(worker.of(0))
        assert worker.begun[-1] == (0, 1)
        worker.finish()
        check(worker.brokers, everything=True)
        check_order(worker.brokers, LANE_OF["partition"])


def test_a_stopped_partition_is_reported_with_what_is_done_ahead_once_that_is_committed() -> None:
    with working("none") as worker:
        worker.start()
        (second,) = (each for each in worker.in_hand if (each.tp.partition, each.offset) == (0, 1))
        worker.handle(worker.in_hand.index(second))
        for flight in list(worker.in_hand):
            worker.table.put_back(flight)
        worker.table.stop([1])
        assert worker.reports == []
        worker.senders.take()
        worker.senders.finish()
        ((stopped,),) = [report.partitions for report in worker.reports if isinstance(report, FetcherStopped)]
        assert (stopped.offset, set(bitmap.read(0, stopped.done))) == (0, {1})


def test_what_was_passed_by_at_the_end_of_a_partition_is_committed_once_nothing_is_unfinished() -> None:
    with working("none") as worker:
        worker.end_at(len(KEYS) + 2)
        worker.table.begin_turn(10**12)
        assert not worker.outbox.waits, "records are unfinished"
        worker.finish()
        for turn in (2, 3):
            worker.table.begin_turn(turn * 10**12)
            worker.finish()
        assert worker.brokers.offsets[0].offset == worker.ledger.read(1, 1).consumed.offset == len(KEYS) + 2
        assert worker.ledger.read(1, 1).handled == len(KEYS)
        worker.table.begin_turn(4 * 10**12)
        assert not worker.outbox.waits, "nothing has changed"


def test_brokers_that_take_no_metadata_are_named_with_the_setting_that_lets_them() -> None:
    refused = KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE, "too large", False, False, True)
    with working("none", {("offsets", 0): refused}) as worker:
        worker.start()
        worker.handle(1)
        worker.take()
        worker.senders.until(0, Step.ABORT)
        assert "offset.metadata.max.bytes" in worker.outbox.trouble
        worker.finish()
        check(worker.brokers, everything=True)


def test_of_a_lost_partition_nothing_more_is_committed() -> None:
    with working("none") as worker:
        worker.start()
        for _ in range(len(worker.in_hand)):
            worker.handle(0)
        worker.take()
        worker.senders.until(0, Step.FLUSH)
        worker.table.stop([1], lost=True)
        worker.senders.finish()
        assert set(worker.brokers.offsets) == {1}
        check(worker.brokers)


# -- any order -------------------------------------------------------------------------------------------------------

FAULTS = st.dictionaries(
    st.tuples(st.sampled_from(["flush", "offsets", "commit"]), st.integers(0, 5)),
    st.sampled_from([ABORTABLE, RETRIABLE]),
    max_size=4,
) | st.dictionaries(st.tuples(st.sampled_from(["begin", "abort"]), st.integers(0, 3)), st.just(RETRIABLE), max_size=2)
BAD = st.sets(st.tuples(st.sampled_from(PARTITIONS), st.integers(0, len(KEYS) - 1)), max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["start", "handle", "take", "advance", "die"]), st.integers(0, 9)))
"""What happens next, and to which of those it may happen to."""


@given(ordering=st.sampled_from(sorted(LANE_OF)), faults=FAULTS, bad=BAD, steps=STEPS, producers=st.integers(1, 3))
def test_in_whatever_order_every_record_is_committed_with_its_outputs_once(
    ordering: str,
    faults: dict[tuple[str, int], KafkaError],
    bad: set[tuple[int, int]],
    steps: list[tuple[str, int]],
    producers: int,
) -> None:
    brokers = TransactionalBrokers(dict(faults))
    worker = Worker(brokers, ordering, set(bad), producers)
    for what, number in steps:
        if what == "start":
            worker.try_again()
            worker.start()
        elif what == "handle" and worker.in_hand:
            worker.handle(number % len(worker.in_hand), number % 3 + 1)
        elif what == "take":
            worker.take()
        elif what == "advance":
            worker.senders.advance(number % producers)
        elif what == "die":
            worker.die()
            worker = Worker(brokers, ordering, worker.bad, producers)
        check(brokers)
    worker.finish()
    worker.ledger.close()
    check(brokers, everything=True)
    check_order(brokers, LANE_OF[ordering])
