"""The table of grants where outputs are sent, on a real client that has no broker; the sender is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message

from kunicorn.handler.retry import End
from kunicorn.ipc.ledger import CONSUMED, HAND_OFFSET
from kunicorn.ipc.messages import Failed, FetcherStopped, Parked, Stopped
from kunicorn.worker.progress import Attempt, Grant
from tests.unit.worker.produce.output_batches import taken
from tests.unit.worker.tables import P0, P1, SettlingTable


@pytest.fixture
def sending() -> Iterator[SettlingTable]:
    made = SettlingTable()
    yield made
    made.consumer.close()
    made.ledger.close()


def handle(table: SettlingTable, grant: Grant, count: int) -> bool:
    """The handler has returned for so many records."""
    table.ledger.cells[grant.at + HAND_OFFSET] += count
    return table.fetcher.release(grant, count, 10, count)


def test_invariant_1_what_is_handled_counts_as_consumed_only_when_it_is_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    assert handle(sending, grant, 5)
    assert sending.ledger.read(1, 1).consumed.offset == 0
    sending.settling.delivered({1: 5})
    assert sending.ledger.read(1, 1).consumed.offset == 5


def undelivered(table: SettlingTable) -> range:
    """By the ledger, as it is read when the worker is dead."""
    reading = table.ledger.read(1, 1)
    assert table.ledger.delivers
    return range(reading.consumed.offset, reading.hand_offset)


def test_the_ledger_says_exactly_what_is_handled_and_not_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    assert not undelivered(sending)
    handle(sending, sending.take(P0, 0, 5), 5)
    assert undelivered(sending) == range(5)
    sending.settling.delivered({1: 5})
    assert not undelivered(sending)


def test_a_gap_before_a_record_is_nothing_that_is_not_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 7, 1)
    assert not undelivered(sending)
    sending.fetcher.park(Attempt(grant, [Message(topic="t", partition=0, offset=7)], 8), "retry", "not yet")
    assert not undelivered(sending)
    assert sending.fetcher.begin_again(grant, 10)
    handle(sending, grant, 1)
    assert undelivered(sending) == range(7, 8)


def test_a_record_that_is_given_up_is_not_delivered_before_its_letter_is(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 7, 1)
    attempt = Attempt(grant, [Message(topic="t", partition=0, offset=7)], 8)
    assert sending.fetcher.pass_over(attempt, End.DEAD_LETTER, "error")
    assert undelivered(sending) == range(7, 8)


def test_what_is_rewound_is_not_handled_any_more(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    handle(sending, grant, 5)
    grant.refuse(3, 4, ValueError("too large"))
    sending.settling.delivered({1: 3})
    sending.settling.rewind({1: 1})
    sending.fetcher.begin_turn(0)
    assert not undelivered(sending)


def test_a_refusal_that_a_lower_one_has_overtaken_rewinds_nothing_later(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    handle(sending, grant, 5)
    higher, lower = grant.refuse(3, 4, ValueError("too large")), grant.refuse(1, 2, ValueError("too large"))
    sending.settling.delivered({1: 1})
    sending.settling.rewind({1: lower})
    sending.fetcher.begin_turn(0)
    handle(sending, sending.take(P0, 1, 2), 2)
    sending.settling.rewind({1: higher})
    sending.take(P0, 3, 1)
    assert sending.ledger.cells[grant.at + CONSUMED] == 1, "records 1 and 2 are handled again, and not delivered yet"


class Meanwhile:
    """The table's lock. Before the next one gets it, something happens in another thread, once."""

    def __init__(self, lock: threading.Lock, happens: Callable[[], None]) -> None:
        self._lock, self._happens = lock, [happens]

    def __enter__(self) -> None:
        if self._happens:
            self._happens.pop()()
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("again", [False, True])
def test_invariant_1_a_record_is_refused_while_one_behind_it_is_about_to_be_handled(
    sending: SettlingTable, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    handle(sending, grant, 5)
    if again:
        grant = sending.take(P0, 7)
        sending.fetcher.park(Attempt(grant, [Message(topic="t", partition=0, offset=7)], 8), "retry", "not yet")

    def refused() -> None:
        grant.refuse(3, 4, ValueError("too large"))
        sending.settling.delivered({1: 3})
        sending.settling.rewind({1: 1})

    monkeypatch.setattr(sending.settling, "_lock", Meanwhile(sending.settling._lock, refused))
    if again:
        assert not sending.fetcher.begin_again(grant, 10)
    else:
        assert sending.fetcher.begin(P0, range(8, 9), 0, 0) is None
    assert sending.ledger.read(1, 1).consumed.offset == 3


def test_a_parked_partition_goes_on_behind_what_is_handled_though_it_is_not_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 1)
    held = [Message(topic=P0.topic, partition=P0.partition, offset=0, value=b"")]
    sending.fetcher.park(Attempt(grant, held, 1), "retry", "not yet")
    assert sending.fetcher.begin_again(grant, 10)
    assert handle(sending, grant, 1)
    assert grant.from_where(sending.ledger.cells).offset == 1, "else it is handled, and its outputs sent, once more"


@pytest.mark.parametrize("when", ["before the stop", "after the stop"])
def test_a_stopped_partition_is_reported_when_all_it_handled_is_delivered(sending: SettlingTable, when: str) -> None:
    sending.fetch(P0, 1)
    handle(sending, sending.take(P0, 0, 5), 5)
    for step in (1, 2):
        if (step == 1) == (when == "before the stop"):
            sending.settling.delivered({1: 5})
        else:
            sending.fetcher.stop([1])
    assert sending.reports == [FetcherStopped([Stopped(1, 5, 0)])]


def test_a_lost_partition_is_reported_at_once_and_what_it_left_is_not_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    handle(sending, grant, 5)
    sending.fetcher.stop([1], lost=True)
    assert sending.reports == [FetcherStopped([Stopped(1, 0, 0)])]
    assert not grant.takes_output_at(0)


def test_a_partition_that_halts_says_so_when_what_came_before_is_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    sending.ledger.cells[grant.at + HAND_OFFSET] = 2
    attempt = Attempt(grant, [Message(topic="t", partition=0, offset=2)], 3, finished=2, nanoseconds=10)
    sending.fetcher.give_up(attempt, "no")
    assert sending.reports == []
    sending.settling.delivered({1: 2})
    (report,) = sending.reports
    assert isinstance(report, Failed)
    assert report.offset == 2


def test_a_refused_record_is_fetched_again_once_everything_before_it_is_delivered(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    grant = sending.take(P0, 0, 5)
    handle(sending, grant, 5)
    grant.refuse(3, 4, ValueError("too large"))
    assert sending.fetcher.begin(P0, range(6, 7), 0, 0) is None, "what is behind it would be handled for nothing"
    sending.settling.delivered({1: 3})
    sending.settling.rewind({grant.number: 1})
    sending.fetcher.begin_turn(0)
    assert sending.assigned() == [("t", 0, 3)]
    assert sending.fetcher.singly == {P0: 4}


def test_a_partition_whose_outputs_do_not_arrive_waits_for_delivery_and_others_do_not(sending: SettlingTable) -> None:
    for tp, number in ((P0, 1), (P1, 2)):
        sending.fetch(tp, number)
    handle(sending, sending.take(P0, 0, 5), 5)
    batch = taken(sending.outbox)
    assert sending.settling.parked() == ([], {})
    sending.now = 11.0
    sending.outbox.note_trouble("no leader")
    why = "its outputs have waited 11 s for delivery: no leader"
    assert sending.settling.parked() == ([Parked(1, "delivery", why)], {"delivery": 1})
    sending.settling.delivered({1: 5})
    sending.outbox.done(batch)
    assert sending.settling.parked() == ([], {})


def test_a_partition_that_halts_behind_a_refused_record_begins_again_with_that_one(sending: SettlingTable) -> None:
    grant = halting_behind_a_refused_record(sending)
    sending.fetcher.begin_turn(0)
    assert sending.reports == []
    assert sending.assigned() == [("t", 0, 1)]
    assert sending.take(P0, 1, 1) is grant


def test_one_that_is_stopped_then_says_how_far_it_is(sending: SettlingTable) -> None:
    halting_behind_a_refused_record(sending, stopped=True)
    assert sending.reports == [FetcherStopped([Stopped(1, 1, 0)])]


def halting_behind_a_refused_record(table: SettlingTable, *, stopped: bool = False) -> Grant:
    """Record 2 ends the partition; that record 1 is refused is known afterwards."""
    table.fetch(P0, 1)
    grant = table.take(P0, 0, 5)
    table.ledger.cells[grant.at + HAND_OFFSET] = 2
    attempt = Attempt(grant, [Message(topic="t", partition=0, offset=2)], 3, finished=2, nanoseconds=10)
    table.fetcher.give_up(attempt, "no")
    if stopped:
        table.fetcher.stop([1])
    grant.refuse(1, 2, ValueError("too large"))
    table.settling.delivered({1: 1})
    table.settling.rewind({1: 1})
    return grant


def test_a_partition_that_waits_to_be_fetched_again_is_rewound_as_well(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    handle(sending, sending.take(P0, 0, 2), 2)
    grant = sending.take(P0, 2, 1)
    held = [Message(topic=P0.topic, partition=P0.partition, offset=2, value=b"")]
    sending.fetcher.park(Attempt(grant, held, 3), "retry", "not yet")
    assert sending.fetcher.begin_again(grant, 10)
    handle(sending, grant, 1)
    grant.refuse(1, 2, ValueError("too large"))
    sending.settling.delivered({1: 1})
    sending.settling.rewind({1: 1})
    sending.fetcher.begin_turn(0)
    assert sending.assigned() == [("t", 0, 1)]
    assert sending.take(P0, 1, 1) is grant, "else all that is fetched of it is dropped, for ever"


def test_a_partition_that_is_lost_while_its_delivery_is_waited_for_is_reported_at_once(sending: SettlingTable) -> None:
    sending.fetch(P0, 1)
    handle(sending, sending.take(P0, 0, 5), 5)
    sending.fetcher.stop([1])
    assert sending.reports == []
    sending.fetcher.stop([1], lost=True)
    assert sending.reports == [FetcherStopped([Stopped(1, 0, 0)])]
