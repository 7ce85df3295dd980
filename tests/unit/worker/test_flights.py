"""Grants whose records are in hand several at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.ipc.bitmap import Marks
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, FromWorker
from kunicorn.testing import record
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, message_of, placed
from kunicorn.worker.in_flight import Flights
from kunicorn.worker.progress import InFlight, Slots
from tests.fakes.counts import counts_of
from tests.fakes.parts import parts
from tests.unit.worker.tables import LATER, P0


def test_what_lies_behind_a_stop_is_never_consumed() -> None:
    behind = placed([record("a", offset=3), record("b")], "t")
    consumer: Any = MemoryConsumer(MemoryLog(map(message_of, behind)), lambda seconds: None)
    ledger = Ledger.create(4)
    slots = Slots("key", 4)
    flights = Flights(parts(consumer, ledger), lambda topic: slots)
    flights.start([FetcherStart(1, 1, *P0, 3, -1, stop=3)])
    flights.begin_turn(0)
    assert len(consumer.consume(5, 0)) == 2
    flights.begin_turn(LATER)
    assert ledger.read(1, 1).consumed.offset == 3, "the client is at 5, but nothing of that was handled"
    ledger.close()


def test_a_record_among_several_counts_for_its_part_of_what_the_worker_does_at_a_time() -> None:
    consumer: Any = MemoryConsumer(MemoryLog(map(message_of, placed([record("a", offset=0)], "t"))), lambda _: None)
    ledger = Ledger.create(4)
    ledger.lease_ns = 2**62
    slots = Slots("key", 4)
    flights = Flights(parts(consumer, ledger), lambda topic: slots)
    flights.start([FetcherStart(1, 1, *P0, 0, -1)])
    flights.begin_turn(0)
    flights.feed(P0, 0, consumer.consume(5, 0))
    flight = flights.start_next(slots)
    assert flight is not None
    flight.since_ns -= 4_000_000_000
    flights.finish(flight)
    assert 1_000_000_000 <= ledger.busy_ns(1) < 1_500_000_000
    ledger.close()


def test_all_that_is_overdue_of_a_partition_is_told_at_once_and_nothing_else() -> None:
    log = MemoryLog(map(message_of, placed([record(str(number), key=str(number)) for number in range(4)], "t")))
    consumer: Any = MemoryConsumer(log, lambda _: None)
    ledger = Ledger.create(4)
    ledger.lease_ns = 2**62
    slots = Slots("key", 4)
    made = parts(consumer, ledger)
    flights = Flights(made, lambda topic: slots)
    flights.start([FetcherStart(1, 1, *P0, 0, -1)])
    flights.begin_turn(0)
    flights.feed(P0, 0, consumer.consume(5, 0))
    for taken in (100, 200, 300, 400):
        flight = flights.start_next(slots)
        assert flight is not None
        flight.since_ns = taken
    assert [flight.offset for flight in flights.overdue(1, 0, 300)] == [0, 1, 2]
    assert [flight.offset for flight in flights.overdue(1, 3, 0)] == [3], "the one that is named"
    assert flights.overdue(2, 0, 300) == [], "another grant's"
    (told,) = counts_of(*made.counters.take())
    assert told.timed_out == 2, "the supervisor counts those that it names"
    ledger.close()


def test_headers_count_as_memory_of_records_that_are_queued() -> None:
    consumer: Any = MemoryConsumer(MemoryLog([]), lambda _: None)
    ledger, slots = Ledger.create(4), Slots("key", 4)
    flights = Flights(parts(consumer, ledger, ahead_bytes=20_000), lambda topic: slots)
    flights.start([FetcherStart(1, 1, *P0, 0, -1)])
    flights.begin_turn(0)
    flights.feed(P0, 0, [Message(topic="t", partition=0, offset=0, value=b"", headers=[("large", bytes(20_000))])])
    assert flights.full
    ledger.close()


class Faulty:
    """A table with two records of a partition in hand or queued, and behind them an error of the client's."""

    def __init__(self) -> None:
        consumer: Any = MemoryConsumer(
            MemoryLog(map(message_of, placed([record("a"), record("b")], "t"))), lambda _: None
        )
        self.reports: list[FromWorker] = []
        self.ledger = Ledger.create(4)
        self.ledger.lease_ns = 2**62
        self.slots = Slots("none", 1)
        made = parts(consumer, self.ledger, self.reports.append)
        self.flights = Flights(made, lambda topic: self.slots)
        self.flights.start([FetcherStart(1, 1, *P0, 0, -1)])
        self.flights.begin_turn(0)
        self.flights.feed(P0, 0, consumer.consume(5, 0))
        self.flights.broken(P0, FailureKind.PARTITION, "damaged")
        self.flights.balance()


@pytest.fixture
def faulty() -> Iterator[Faulty]:
    made = Faulty()
    yield made
    made.ledger.close()


def test_what_was_fetched_before_an_error_is_handled_first(faulty: Faulty) -> None:
    first = faulty.flights.start_next(faulty.slots)
    assert first is not None
    second = faulty.flights.finish(first)
    assert second is not None, "the error does not keep it from the handler"
    faulty.flights.balance()
    assert faulty.reports == [], "it is in hand"
    faulty.flights.finish(second)
    assert faulty.reports == [Failed(1, FailureKind.PARTITION, 2, 0, "damaged", "")]


def test_an_error_is_of_no_interest_once_the_partition_is_given_up(faulty: Faulty) -> None:
    faulty.flights.stop([1])
    (stopped,) = faulty.reports
    assert isinstance(stopped, FetcherStopped)
    faulty.flights.balance()
    assert faulty.reports == [stopped]


class Killed(BaseException):
    """No more of this worker's stores."""


class Compacted:
    """A table with a log that has gaps; `done` is what the supervisor would take from the ledger."""

    def __init__(self, start: int, *offsets: int, ordering: str = "none") -> None:
        self.ledger = Ledger.create(4)
        self.ledger.lease_ns = 2**62
        self.slots = Slots(ordering, 8)
        consumer: Any = MemoryConsumer(MemoryLog(map(keyed, offsets)), lambda _: None)
        made = parts(consumer, self.ledger)
        self.flights = Flights(made, lambda topic: self.slots)
        self.flights.start([FetcherStart(1, 1, *P0, start, -1)])
        self.flights.begin_turn(0)
        self.flights.feed(P0, 0, consumer.consume(10, 0))

    def begin(self, count: int) -> list[InFlight]:
        return [flight for _ in range(count) if (flight := self.flights.start_next(self.slots)) is not None]

    def finish(self, flight: InFlight) -> None:
        """Without a next one."""
        self.ledger.lease_ns = 0
        self.flights.finish(flight)
        self.ledger.lease_ns = 2**62

    @property
    def done(self) -> tuple[int, set[int]]:
        consumed = self.ledger.read(1, 1).consumed
        return consumed.offset, set(self.ledger.done(1).from_offset(consumed.offset))


def keyed(offset: int, key: bytes | None = None) -> Message:
    return Message(topic=P0.topic, partition=0, offset=offset, key=key or b"%d" % offset, value=b"", leader_epoch=0)


def test_a_worker_that_is_killed_while_it_moves_over_a_gap_says_of_no_later_record_that_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Compacted(1695, 1695, 1700, 1701, 100_000, 100_004, 100_005)
    first, *others = table.begin(3)
    for flight in others:
        table.finish(flight)
    assert table.done == (1695, {1700, 1701})

    def killed(marks: Marks, offset: int) -> None:
        raise Killed

    with monkeypatch.context() as until_then:
        until_then.setattr(Marks, "unmark", killed)
        with pytest.raises(Killed):
            table.finish(first)
    assert table.done == (100_000, set()), "100004 is what 1700 would be, 12 rings further on"
    table.ledger.close()


def test_a_record_that_was_compacted_away_leaves_no_mark_of_what_was_done_behind_it() -> None:
    table = Compacted(0, 0, 1, 2, 3)
    first, second, *others = table.begin(4)
    for flight in others:
        table.finish(flight)
    table.flights.put_back(second)
    tracker = second.tracker
    table.flights._scheduler.shed(tracker, 0)
    table.finish(first)
    assert table.done == (1, {2, 3}), "record 1 was dropped, and is to be fetched again"
    for offset in range(4, 4200):
        table.flights.feed(P0, 0, [keyed(offset)])
        (flight,) = table.begin(1)
        table.finish(flight)
    assert table.done == (4200, set()), "8194 and 8195 have not come yet"
    table.ledger.close()
