"""Grants whose records are in hand several at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kunicorn.pipes.ledger import Ledger
from kunicorn.pipes.messages import Failed, FailureKind, FetcherStart, FetcherStopped, FromWorker
from kunicorn.testing import record
from kunicorn.testing.consumer import MemoryConsumer, MemoryLog
from kunicorn.testing.records import message_of, placed
from kunicorn.worker.flights import Flights
from kunicorn.worker.hands import Hands
from kunicorn.worker.meter import Meter
from kunicorn.worker.table import Parts
from tests.unit.worker.test_fetcher import LATER, P0, NoTopics


def test_what_lies_behind_a_stop_is_never_consumed() -> None:
    behind = placed([record("a", offset=3), record("b")], "t")
    consumer: Any = MemoryConsumer(MemoryLog(map(message_of, behind)), lambda seconds: None)
    ledger = Ledger.create(4)
    hands = Hands("key", 4)
    flights = Flights(Parts(consumer, NoTopics(), ledger, Meter(), lambda report: None), lambda topic: hands, 1_000_000)
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
    hands = Hands("key", 4)
    flights = Flights(Parts(consumer, NoTopics(), ledger, Meter(), lambda report: None), lambda topic: hands, 1_000_000)
    flights.start([FetcherStart(1, 1, *P0, 0, -1)])
    flights.begin_turn(0)
    flights.feed(P0, 0, consumer.consume(5, 0))
    flight = flights.start_next(hands)
    assert flight is not None
    flight.since_ns -= 4_000_000_000
    flights.finish(flight)
    assert 1_000_000_000 <= ledger.busy_ns(1) < 1_500_000_000
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
        self.hands = Hands("none", 1)
        parts = Parts(consumer, NoTopics(), self.ledger, Meter(), self.reports.append)
        self.flights = Flights(parts, lambda topic: self.hands, 1_000_000)
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
    first = faulty.flights.start_next(faulty.hands)
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
