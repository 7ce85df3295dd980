"""Records of retry topics that wait for their time, on a real client that has no broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Consumer, Message

from kunicorn.ipc.clock import wall_ms
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FetcherStart, FetcherStopped, FromWorker
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import Delays, Wait, ripe
from kunicorn.worker.in_flight import Flights
from kunicorn.worker.progress import Attempt, Slots
from tests.fakes.parts import parts
from tests.unit.worker.tables import LATER, P0, Table

RETRY = TopicPartition("shop.retry.5s", 0)
NS_PER_MS = 1_000_000


def sent(*times_ms: int | None) -> list[Message]:
    return [
        Message(
            topic=RETRY.topic,
            partition=0,
            offset=offset,
            value=b"v",
            timestamp=(TIMESTAMP_NOT_AVAILABLE, 0) if at is None else (TIMESTAMP_CREATE_TIME, at),
        )
        for offset, at in enumerate(times_ms)
    ]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 4_000, 5_000], (3, None)),
        ([0, 5_001], (1, Wait(1, 10_001, 500))),
        ([9_000, 0], (0, Wait(0, 14_000, 4_000))),
        # No time at all: nothing to wait for.
        ([None, 9_000], (1, Wait(1, 14_000, 4_000))),
        # A host whose clock is ahead.
        ([99_000], (0, Wait(0, 15_000, 5_000))),
        ([], (0, None)),
    ],
)
def test_records_are_ripe_up_to_the_first_that_has_not_waited_for_its_delay(
    times: list[int | None], expected: tuple[int, Wait | None]
) -> None:
    assert ripe(sent(*times), 5_000, 10_000) == expected


def test_a_partition_is_fetched_again_after_a_tenth_of_the_delay_at_least_and_a_second_at_most() -> None:
    waits = [ripe(sent(0), delay, delay - 1)[1] for delay in (300, 3_600_000)]
    assert [wait.milliseconds for wait in waits if wait is not None] == [30, 1000]


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table({RETRY.topic: 5_000})
    yield made
    made.consumer.close()
    made.ledger.close()


def test_only_its_own_partition_is_put_off_and_fetched_again_from_that_record_on(table: Table) -> None:
    delays = Delays(table.fetcher)
    table.start(P0, 1)
    table.start(RETRY, 2, 40)
    table.fetcher.begin_turn(0)
    now = wall_ms()
    ready, wait, _ = delays.split(RETRY, sent(now - 9_000, now))
    assert ([each.offset() for each in ready], wait is not None) == ([0], True)
    assert delays.split(P0, sent(now))[1] is None, "an ordinary topic's record waits for nothing"
    assert wait is not None
    delays.delay(RETRY, wait, 0)
    assert table.fetcher.fetching(RETRY) is None
    assert table.fetcher.begin(RETRY, range(41, 42), 0, 0) is None, "its records are not to be handled now"
    (parked,), count = table.fetcher.parked()
    assert (parked.grant, parked.waits_for, count) == (2, "delay", {"delay": 1})
    assert parked.why.startswith("offset 1 of this retry topic waits for its time, ")
    table.fetcher.begin_turn(1)
    assert table.assigned() == [("t", 0, 0)]
    delays.end_due(4_000 * NS_PER_MS)
    table.fetcher.begin_turn(4_000 * NS_PER_MS)
    assert table.assigned() == [("t", 0, 0)], "too early"
    delays.end_due(6_000 * NS_PER_MS)
    table.fetcher.begin_turn(6_000 * NS_PER_MS)
    assert table.assigned() == [(RETRY.topic, 0, 40), ("t", 0, 0)]
    assert table.fetcher.fetching(RETRY) is not None


def test_a_partition_that_is_stopped_while_it_waits_is_reported_at_once(table: Table) -> None:
    delays = Delays(table.fetcher)
    table.fetch(RETRY, 2, 40)
    delays.delay(RETRY, Wait(40, wall_ms() + 5_000, 5_000), 0)
    table.fetcher.stop([2], lost=False)
    assert len(table.reports) == 1
    delays.end_due(LATER)
    table.fetcher.begin_turn(LATER)
    assert table.assigned() == []


def test_a_record_that_failed_meanwhile_waits_for_its_next_try_and_not_for_its_time(table: Table) -> None:
    delays = Delays(table.fetcher)
    table.fetch(RETRY, 2)
    grant = table.take(RETRY)
    assert table.fetcher.park(Attempt(grant, sent(0), 1), "retry", "it failed")
    delays.delay(RETRY, Wait(1, wall_ms() + 5_000, 5_000), 0)
    delays.end_due(LATER)
    (parked,), _ = table.fetcher.parked()
    assert parked.waits_for == "retry"


class Several:
    """A table with several records in hand, of the retry topic."""

    def __init__(self) -> None:
        self.consumer = Consumer({"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0})
        self.ledger = Ledger.create(64)
        self.ledger.lease_ns = 2**62
        self.reports: list[FromWorker] = []
        self.slots = Slots("none", 4)
        self.flights = Flights(
            parts(self.consumer, self.ledger, self.reports.append, delays={RETRY.topic: 5_000}),
            lambda topic: self.slots,
        )
        self.delays = Delays(self.flights)
        self.flights.start([FetcherStart(2, 2, *RETRY, 0, -1)])
        self.flights.begin_turn(0)

    def fetched(self, *messages: Message) -> None:
        """As the runner does with what the client gives out."""
        ready, wait, _ = self.delays.split(RETRY, list(messages))
        self.flights.feed(RETRY, 0, ready)
        if wait is not None:
            self.delays.delay(RETRY, wait, 0)


@pytest.fixture
def several() -> Iterator[Several]:
    made = Several()
    yield made
    made.consumer.close()
    made.ledger.close()


def test_with_several_in_hand_those_that_are_ripe_are_handled_and_the_rest_is_fetched_again(several: Several) -> None:
    now = wall_ms()
    messages = sent(now - 9_000, now - 9_000, now)
    several.fetched(*messages)
    first, second = several.flights.start_next(several.slots), several.flights.start_next(several.slots)
    assert first is not None
    assert second is not None
    assert several.flights.start_next(several.slots) is None, "the third one waits for its time"
    assert several.flights.parked()[1] == {"delay": 1}
    several.flights.finish(second)
    several.delays.end_due(LATER)
    several.flights.begin_turn(LATER)
    several.fetched(*messages)
    assert several.flights.start_next(several.slots) is None, "what is in hand, or done, is not handled again"
    several.flights.finish(first)
    assert several.ledger.read(2, 2).consumed.offset == 2


def test_with_several_in_hand_a_stop_waits_for_what_is_in_hand_and_not_for_what_waits(several: Several) -> None:
    now = wall_ms()
    several.fetched(*sent(now - 9_000, now))
    flight = several.flights.start_next(several.slots)
    assert flight is not None
    several.flights.stop([2], lost=False)
    assert several.reports == []
    several.flights.finish(flight)
    (stopped,) = several.reports
    assert isinstance(stopped, FetcherStopped)
    assert stopped.partitions[0].offset == 1
