"""Several records in hand whose outputs are sent, on a log in memory; the sender is the test's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kunicorn.handler.outputs import Outgoing
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FetcherStart, FetcherStopped, FromWorker, Parked
from kunicorn.positions import NO_EPOCH
from kunicorn.testing import record
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, message_of, placed
from kunicorn.worker.delivery import DeliveringFlights
from kunicorn.worker.produce.outbox import Limits, Outbox
from kunicorn.worker.produce.sender import reached
from kunicorn.worker.progress import InFlight, Slots
from tests.fakes.parts import parts
from tests.unit.worker.produce.output_batches import taken
from tests.unit.worker.tables import P0

OUTPUT = [Outgoing("out", b"v", None, None, -1, 0)]


class Delivering:
    """The table with records 0 to 3 of the keys a, b, a, c fetched, and what it reported."""

    def __init__(self, records: int = 1000) -> None:
        self.now = 0.0
        self.outbox = Outbox(Limits(records, 1 << 20, 0.0), lambda: self.now)
        self.reports: list[FromWorker] = []
        self.refused: list[tuple[InFlight, BaseException]] = []
        self.ledger = Ledger.create(4)
        self.ledger.lease_ns = clock.now_ns() + 10**12
        self.slots = Slots("key", 10)
        log = placed([record("v", key=key) for key in "abac"], "t")
        consumer: Any = MemoryConsumer(MemoryLog(map(message_of, log)), lambda seconds: None)
        self.table = DeliveringFlights(
            parts(consumer, self.ledger, self.reports.append),
            lambda topic: self.slots,
            self.outbox,
            self,
        )
        self.table.start([FetcherStart(1, 1, *P0, 0, NO_EPOCH)])
        self.table.begin_turn(0)
        self.table.feed(P0, 0, consumer.consume(10, 0))

    def wake(self) -> None:
        """The test starts what may start."""

    def fail(self, flight: InFlight, error: BaseException) -> None:
        """Its outputs are refused."""
        self.refused.append((flight, error))

    def started(self) -> list[InFlight]:
        """All that may start now."""
        found = []
        while (flight := self.table.start_next(self.slots)) is not None:
            found.append(flight)
        return found

    def handle(self, flight: InFlight) -> None:
        """Its handler returns an output; nothing else is started by that."""
        flight.outputs = OUTPUT
        lease, self.ledger.lease_ns = self.ledger.lease_ns, 0
        assert self.table.finish(flight) is None
        self.ledger.lease_ns = lease

    def deliver(self) -> None:
        """Everything that is in the outbox."""
        batch = taken(self.outbox)
        self.table.delivered(reached(self.outbox.live(batch)))
        self.outbox.done(batch)

    @property
    def consumed(self) -> int:
        """By the ledger."""
        return self.ledger.read(1, 1).consumed.offset


@pytest.fixture
def sending() -> Iterator[Delivering]:
    made = Delivering()
    yield made
    made.ledger.close()


def test_invariant_1_a_record_is_done_when_its_outputs_are_delivered(sending: Delivering) -> None:
    a, b, c = sending.started()
    sending.handle(b)
    sending.handle(a)
    assert sending.consumed == 0
    assert sending.ledger.read(1, 1).hand_count == 1, "the handler has returned from two"
    sending.deliver()
    assert sending.consumed == 2
    sending.handle(c)
    sending.deliver()
    assert sending.ledger.done(1).from_offset(2) == {3}


def test_a_record_whose_outputs_are_on_their_way_is_among_what_a_death_may_be_blamed_on(sending: Delivering) -> None:
    a, b, _ = sending.started()
    sending.handle(b)
    sending.handle(a)
    assert sending.ledger.in_hand(1).from_offset(0) == {0, 1, 3}
    sending.deliver()
    assert sending.ledger.in_hand(1).from_offset(0) == {3}


def test_what_a_lost_partition_has_on_its_way_holds_up_no_suspect(sending: Delivering) -> None:
    a, b, c = sending.started()
    sending.handle(a)
    for flight in (b, c):
        sending.table.put_back(flight)
    sending.table.stop([1], lost=True)
    assert sending.table._scheduler.on_their_way == 0


def test_the_next_of_a_key_starts_when_the_one_before_is_delivered(sending: Delivering) -> None:
    a, _, _ = sending.started()
    sending.handle(a)
    assert sending.started() == []
    sending.deliver()
    assert [flight.offset for flight in sending.started()] == [2]


def test_a_record_without_outputs_waits_for_nothing(sending: Delivering) -> None:
    a, _, _ = sending.started()
    following = sending.table.finish(a)
    assert sending.consumed == 1
    assert following is not None
    assert following.offset == 2
    assert not sending.outbox.waits


def test_a_refused_output_is_its_records_failure_and_touches_no_other(sending: Delivering) -> None:
    a, b, _ = sending.started()
    sending.handle(a)
    sending.handle(b)
    batch = taken(sending.outbox)
    first, second = batch.entries
    error = ValueError("too large")
    sending.outbox.refuse(first, error)
    assert sending.outbox.live(batch) == [second]
    sending.table.delivered(reached([second]))
    sending.table.rewind({first.origin.number: 1})
    assert sending.refused == [(a, error)]
    assert sending.consumed == 0
    assert sending.ledger.done(1).from_offset(0) == {1}
    sending.table.put_back(a)
    assert sending.started() == [a], "before the next of its key"
    sending.handle(a)
    sending.deliver()
    assert sending.consumed == 2


def test_a_stopped_partition_is_reported_when_all_it_handled_is_delivered(sending: Delivering) -> None:
    a, b, c = sending.started()
    sending.handle(a)
    sending.table.stop([1])
    for flight in (b, c):
        sending.handle(flight)
    assert sending.reports == []
    sending.deliver()
    ((stopped,),) = [report.partitions for report in sending.reports if isinstance(report, FetcherStopped)]
    assert (stopped.offset, sending.table.drained) == (2, False)


def test_a_lost_partition_is_reported_without_its_outputs_and_nothing_more_of_it_is_delivered(
    sending: Delivering,
) -> None:
    a, b, c = sending.started()
    sending.handle(a)
    sending.handle(b)
    sending.table.stop([1], lost=True)
    assert sending.reports == [], "one is in hand"
    sending.handle(c)
    (report,) = sending.reports
    assert isinstance(report, FetcherStopped)
    assert report.partitions[0].offset == 0
    assert sending.outbox.live(taken(sending.outbox)) == []


def test_no_record_starts_while_too_much_is_not_delivered() -> None:
    sending = Delivering(records=2)
    a, b, _ = sending.started()
    sending.handle(b)
    sending.handle(a)
    assert sending.started() == []
    sending.deliver()
    assert [flight.offset for flight in sending.started()] == [2]
    sending.ledger.close()


def test_a_partition_whose_outputs_do_not_arrive_says_so(sending: Delivering) -> None:
    (a, *_) = sending.started()
    sending.handle(a)
    sending.outbox.take()
    assert sending.table.parked() == ([], {})
    sending.now = 11.0
    (told,), count = sending.table.parked()
    assert (told, count) == (Parked(1, "delivery", told.why), {"delivery": 1})
    assert "11 s" in told.why
