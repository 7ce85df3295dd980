"""Records whose outputs are sent, step by step; handlers and the sender are the test's."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kunicorn.handler.retry import End, Policies, RetryPolicy
from kunicorn.ipc.clock import now_ns
from kunicorn.ipc.messages import Failed, FailureKind, Parked
from kunicorn.worker.delivery import ON_ACKNOWLEDGEMENT, ON_COMMIT, Completion
from kunicorn.worker.failures import Failures, LetterBox, Observer
from kunicorn.worker.produce.sender import reached
from kunicorn.worker.progress import Attempt, Bounds, InFlight, Slots
from tests.unit.worker.produce.output_batches import taken
from tests.unit.worker.tables import (
    LATER,
    OUTPUT,
    P0,
    P1,
    Table,
    messages,
    nothing_stays_in_memory,
    offsets_of,
)

REFUSED = ValueError("too large")


def by_key(outbox_records: int = 1000) -> Table:
    """Records 0 to 3 have the keys a, b, a, c."""
    table = Table(Slots("key", 10), ON_ACKNOWLEDGEMENT, outbox_records=outbox_records)
    table.begin(P0)
    table.fetch(P0, 0, 1, 2, 3, keys="abac")
    return table


def in_runs(bounds: Bounds | None = None, outbox_records: int = 1000) -> Table:
    """Records 0 to 4, in one run if that may be."""
    table = Table(Slots("partition", 1, runs=True, bounds=bounds), ON_ACKNOWLEDGEMENT, outbox_records=outbox_records)
    table.slots.pace.size = 5
    table.begin(P0, *range(5))
    return table


def refuse(table: Table, *offsets: int) -> None:
    """Of all that is in the outbox; what comes before is delivered."""
    batch = taken(table.outbox)
    entries = {entry.offset: entry for entry in batch.entries}
    refusals = table.outbox.refuse([(entries[offset], REFUSED) for offset in offsets])
    live = table.outbox.live(batch)
    table.table.delivered({entry.origin.number: entry.following for entry in live})
    table.table.rewind(refusals)
    table.outbox.done(batch)


# -- runs --------------------------------------------------------------------------------------------------------------


def undelivered(table: Table) -> range:
    """By the ledger, as it is read when the worker is dead."""
    reading = table.ledger.read(1, 1)
    assert table.ledger.delivers(1)
    return range(reading.consumed.offset, reading.hand_offset)


def test_the_ledger_says_exactly_what_is_handled_and_not_delivered() -> None:
    table = in_runs()
    table.handle(table.take(), sends=True)
    assert (undelivered(table), table.consumed()) == (range(5), 0)
    table.deliver()
    assert not undelivered(table)
    assert table.consumed() == 5
    table.fetch(P0, 7)
    flight = table.take()
    assert not undelivered(table), "a gap before a record is nothing that is not delivered"
    table.handle(flight, sends=True)
    assert undelivered(table) == range(7, 8)


def test_a_run_whose_last_records_leave_nothing_is_done_with_what_the_others_left() -> None:
    table = in_runs()
    flight = table.take()
    flight.leave(1, 2, [OUTPUT])
    table.handle(flight)
    table.deliver()
    assert table.consumed() == 5


def test_a_refused_record_of_a_run_fails_and_only_what_was_behind_it_is_handled_again() -> None:
    table = in_runs()
    table.handle(table.take(), sends=True)
    refuse(table, 2)
    ((failed,), consumed) = table.refused, table.consumed()
    assert (offsets_of(failed), failed.refusal, consumed) == ([2], REFUSED, 2)
    assert table.table.start_next(table.slots) is None, "what is behind it waits for it"
    table.table.put_back(failed)
    assert table.handle_all(sends=True) == [2, 3, 4]
    table.deliver()
    assert (table.consumed(), table.ledger.read(1, 1).handled) == (5, 5)


@pytest.mark.parametrize("failed", [False, True], ids=["at its first try", "at a later one"])
def test_of_a_refused_batch_nobody_knows_the_record_so_all_are_handled_singly(failed: bool) -> None:
    table = in_runs(Bounds(3, None, 0, 1 << 20))
    flight = table.take()
    if failed:
        flight.failures = 1
        table.table.park(Attempt(flight), "retry", "why")
        table.table.try_again(flight)
        flight = table.take()
    flight.leave(0, 3, [OUTPUT])
    table.handle(flight)
    refuse(table, 0)
    assert (table.refused, table.consumed()) == ([], 0)
    calls = []
    while (following := table.table.start_next(table.slots)) is not None:
        calls.append(offsets_of(following))
        table.handle(following)
    assert calls == [[0], [1], [2], [3, 4]]


@pytest.mark.parametrize(
    ("slots", "completion"), [("runs", ON_ACKNOWLEDGEMENT), ("runs", ON_COMMIT), ("records", ON_COMMIT)]
)
def test_behind_a_refused_record_nothing_of_its_lane_is_started_while_its_batch_is_under_way(
    slots: str, completion: Completion
) -> None:
    """Another partition's broker is away, and the batch has an output for it, too."""
    table = Table(Slots("partition", 1, runs=slots == "runs"), completion)
    table.begin(P0, 0, 1)
    table.begin(P1, 0)
    flight = table.take()
    table.handle(flight, sends=True)
    table.handle_all(sends=True)
    batch = taken(table.outbox)
    entry = batch.entries[0]
    assert (flight.tp, flight.offset, entry.origin) == (P0, 0, flight)
    refusals = table.outbox.refuse([(entry, REFUSED)])
    table.fetch(P0, 2, 3)
    table.fetch(P1, 1)
    assert table.handle_all(sends=True) == [1], "the other partition goes on"
    assert not table.table.startable(table.slots), "nobody asks again and again"
    table.table.delivered(reached(table.outbox.live(batch)))
    table.table.rewind(refusals)
    table.outbox.done(batch)
    (failed,) = table.refused
    table.table.put_back(failed)
    assert table.handle_all(sends=True) == [0, 1, 2, 3]


@pytest.mark.parametrize("slots", ["runs", "records"])
def test_refusals_of_one_record_are_counted_each_time(slots: str) -> None:
    table = in_runs() if slots == "runs" else by_key()
    for number in (1, 2, 3):
        flight = table.take()
        assert flight.offset == 0
        table.handle(flight, 1 if slots == "runs" else None, sends=True)
        refuse(table, 0)
        assert len(table.refused) == number
        failed = table.refused[-1]
        assert failed.lane.refusals == number
        table.table.put_back(failed)


def test_a_lower_refusal_of_another_sender_takes_the_higher_one_with_it() -> None:
    table = in_runs()
    table.handle(table.take(), sends=True)
    batch = taken(table.outbox)
    number = batch.entries[0].origin.number
    higher, lower = (table.outbox.refuse([(batch.entries[offset], REFUSED)]) for offset in (3, 1))
    table.table.rewind(higher)
    assert table.refused == [], "whoever met the lower one deals with both"
    table.table.delivered({number: 1})
    table.table.rewind(lower)
    assert [offsets_of(flight) for flight in table.refused] == [[1]]
    table.table.rewind(higher)
    assert len(table.refused) == 1


@pytest.mark.parametrize("slots", ["runs", "records"])
def test_a_record_that_is_handled_again_behind_a_refused_one_is_counted_once(slots: str) -> None:
    table = Table(Slots("partition", 1, runs=slots == "runs"), ON_COMMIT)
    table.begin(P0, 0, 1, 2)
    for _ in range(2):
        table.handle(table.take(), sends=True)
    third = table.take()
    refuse(table, 0)
    table.handle(third)
    (refused,) = table.refused
    table.table.put_back(refused)
    table.handle_all()
    assert table.counters.handled == 0, "none of them has arrived"
    table.deliver()
    assert (table.counters.handled, table.consumed()) == (3, 3)


def meet_poison(table: Table, flight: InFlight) -> None:
    """As the loop does where an executor has found one."""
    policies = Policies(RetryPolicy(1, 1, 1, on_failure=End.DEAD_LETTER))
    failures = Failures(table.table, lambda topic: policies, LetterBox("letters", "g"), Observer())
    failures.meet_poison(flight, 1)


@pytest.mark.parametrize(
    ("slots", "completion"), [("runs", ON_ACKNOWLEDGEMENT), ("runs", ON_COMMIT), ("records", ON_COMMIT)]
)
def test_a_record_that_killed_workers_is_kept_from_the_handler_also_where_its_letter_is_taken_back(
    slots: str, completion: Completion
) -> None:
    """An output before it in its lane is refused."""
    table = Table(Slots("partition", 1, runs=slots == "runs"), completion)
    table.begin(P0, 0, 1, 2, poison="2 workers died", poison_deaths=2, poison_offset=1)
    table.handle(table.take(), sends=True)
    meet_poison(table, table.take())
    refuse(table, 0)
    (refused,) = table.refused
    table.table.pass_over(Attempt(refused, calls=0), End.SKIP, "error")
    again = table.take()
    assert (offsets_of(again), again.poison) == ([1], "2 workers died")
    meet_poison(table, again)
    table.deliver(table.letters if completion is ON_ACKNOWLEDGEMENT else None)
    assert table.consumed() == 2


def test_a_record_that_killed_workers_and_was_put_back_is_in_no_batch() -> None:
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(3, None, 0, 1 << 20)))
    table.begin(P0, 0, 1, 2, poison="2 workers died", poison_deaths=2, poison_offset=0)
    table.table.put_back(table.take())
    again = table.take()
    assert (offsets_of(again), again.poison) == ([0], "2 workers died")


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_record_is_done_when_its_outputs_are_delivered_and_may_be_what_a_worker_died_of_until_then() -> None:
    table = by_key()
    a, b, c = table.started()
    for flight in (b, a):
        table.handle(flight, sends=True)
    assert (table.consumed(), table.ledger.read(1, 1).hand_count) == (0, 1), "the handler has returned from two"
    assert table.ledger.in_hand(1).from_offset(0) == {0, 1, 3}
    table.deliver()
    assert table.ledger.in_hand(1).from_offset(0) == {3}
    assert table.consumed() == 2
    table.handle(c, sends=True)
    table.deliver()
    assert table.ledger.done(1).from_offset(2) == {3}


def test_a_record_without_outputs_waits_for_nothing() -> None:
    table = by_key()
    a, *_ = table.started()
    table.handle(a)
    assert (table.consumed(), table.outbox.waits) == (1, False)
    assert [flight.offset for flight in table.started()] == [2]


def test_what_a_lost_partition_has_on_its_way_holds_up_no_suspect() -> None:
    table = by_key()
    a, b, c = table.started()
    table.handle(a, sends=True)
    for flight in (b, c):
        table.table.put_back(flight)
    table.table.stop([1], lost=True)
    assert table.table._scheduler.on_their_way == 0


@pytest.mark.parametrize("slots", ["runs", "records"])
def test_no_record_starts_without_room(slots: str) -> None:
    table = in_runs(outbox_records=2) if slots == "runs" else by_key(outbox_records=2)
    handled: list[InFlight] = []
    while (flight := table.table.start_next(table.slots)) is not None:
        assert len(offsets_of(flight)) <= 2
        table.handle(flight, sends=True)
        handled.append(flight)
    assert sum(len(flight.messages) for flight in handled) == 2
    assert not table.table.startable(table.slots)
    table.deliver()
    assert table.table.startable(table.slots)


def test_records_that_wait_for_their_outputs_count_by_their_own_size_too() -> None:
    """They are kept, as they may have to be handled again, however little they left."""
    table = Table(Slots("none", 1), ON_ACKNOWLEDGEMENT)
    table.begin(P0)
    table.table.feed(P0, 0, messages(P0, 0, 1, 2, size=600_000), 0)
    for _ in range(2):
        table.handle(table.take(), sends=True)
    assert table.started() == [], "two are more than the MiB that there is"
    table.deliver()
    assert [flight.offset for flight in table.started()] == [2]


@pytest.mark.parametrize("slots", ["runs", "records"])
def test_a_partition_whose_outputs_do_not_arrive_says_so(slots: str) -> None:
    table = in_runs() if slots == "runs" else by_key()
    table.handle(table.take(), sends=True)
    batch = taken(table.outbox)
    assert table.table.parked() == ([], {})
    table.now = 11.0
    table.outbox.note_trouble("no leader")
    why = "its outputs have waited 11 s for delivery: no leader"
    assert table.table.parked() == ([Parked(1, "delivery", why)], {"delivery": 1})
    table.table.delivered({batch.entries[-1].origin.number: batch.entries[-1].following})
    table.outbox.done(batch)
    assert table.table.parked() == ([], {})


# -- letters that go apart from outputs --------------------------------------------------------------------------------


def batches() -> Table:
    """Records 0 to 4 of each of two partitions, a call for two at a time."""
    table = in_runs(Bounds(2, None, 0, 1 << 20))
    table.begin(P1, *range(5))
    return table


def test_a_letter_behind_outputs_of_a_partition_goes_out_when_these_are_delivered_and_its_lane_waits_for_it() -> None:
    table = batches()
    of_p0 = [table.take()]
    table.handle(of_p0[0], sends=True)
    while (flight := table.take()).tp != P0:
        table.handle(flight, sends=True)
    table.give_up(flight)
    assert not table.letters.waits, "an output before it may be refused yet"
    assert all(other.tp == P1 for other in table.started())
    table.deliver()
    assert (table.consumed(), table.letters.waits) == (2, True)
    table.deliver(table.letters)
    assert table.consumed() == 4


def test_a_letter_behind_an_output_that_is_refused_never_goes_out_and_its_records_are_handled_again() -> None:
    table = in_runs(Bounds(2, None, 0, 1 << 20))
    table.handle(table.take(), sends=True)
    table.give_up(table.take())
    refuse(table, 0)
    (failed,) = table.refused
    assert (failed.offset, table.consumed(), table.letters.waits) == (0, 0, False)
    table.handle(failed, sends=True)
    table.handle_all(sends=True)
    table.deliver()
    assert (table.consumed(), table.letters.waits, table.table._scheduler.on_their_way) == (5, False, 0)


def test_a_letter_that_is_late_holds_up_no_suspect_of_any_partition_and_no_death_is_charged_to_its_record() -> None:
    table = Table(Slots("none", 10), ON_ACKNOWLEDGEMENT)
    table.begin(P1, 0)
    table.give_up(table.take())
    table.begin(P0, 0, 1, suspects=[0])
    assert table.started() == []
    assert table.ledger.in_hand(2).from_offset(0) == {0}
    table.table.balance(now_ns() + LATER)
    assert table.ledger.in_hand(2).from_offset(0) == set()
    (suspect,) = table.started()
    table.give_up(suspect)
    assert table.started() == []
    table.table.balance(now_ns() + LATER)
    assert [flight.offset for flight in table.started()] == [1], "nothing waits for the suspect's own letter either"
    table.deliver(table.letters)
    assert table.table._scheduler.on_their_way == 0
    assert table.consumed() == 1


def test_records_whose_letters_are_on_their_way_are_kept_within_their_share_of_memory() -> None:
    table = Table(Slots("none", 10), ON_ACKNOWLEDGEMENT, ahead_bytes=100_000)
    for tp in (P0, P1):
        table.begin(tp, 0)
    given_up = 0
    while P0 in table.client.assigned:
        table.table.feed(P0, 0, messages(P0, given_up + 1, size=10_000), 0)
        for flight in table.started():
            table.give_up(flight)
            given_up += 1
        table.turn()
        assert given_up < 20, "records are taken in without bounds"
    assert P1 in table.client.assigned, "the others go on"
    table.deliver(table.letters)
    table.turn()
    assert P0 in table.client.assigned
    assert table.table.bytes == 0


# -- what nobody waits for any more ------------------------------------------------------------------------------------


def test_nothing_stays_in_memory_of_what_is_delivered() -> None:
    table = in_runs()
    with nothing_stays_in_memory():
        table.handle_all(sends=True)
        table.deliver()


@pytest.mark.parametrize("refused_at", [0, 2, 4])
def test_nothing_stays_in_memory_of_a_call_of_which_an_output_was_refused(refused_at: int) -> None:
    table = in_runs()
    with nothing_stays_in_memory():
        table.handle_all(sends=True)
        refuse(table, refused_at)
        table.table.pass_over(Attempt(table.refused.pop(), calls=0), End.SKIP, "error")
        table.fetch(P0, 5)
        table.handle_all(sends=True)
        table.deliver()
    assert table.consumed() == 6


@pytest.mark.parametrize("completion", [ON_ACKNOWLEDGEMENT, ON_COMMIT])
def test_nothing_stays_in_memory_of_records_behind_one_whose_output_was_refused(completion: Completion) -> None:
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(1, None, 0, 1 << 20)), completion)
    with nothing_stays_in_memory():
        table.begin(P0, 0, 1, 2)
        table.handle_all(sends=True)
        refuse(table, 1)
        table.table.put_back(table.refused.pop())
        table.handle_all(sends=True)
        table.deliver()
    assert table.consumed() == 3


@pytest.mark.parametrize("taken_before", [False, True], ids=["waiting to be sent", "under way"])
@pytest.mark.parametrize("slots", ["runs", "records"])
def test_nothing_stays_in_memory_of_what_was_on_its_way_when_its_partition_was_lost(
    slots: str, taken_before: bool
) -> None:
    table = in_runs() if slots == "runs" else by_key()
    with nothing_stays_in_memory():
        table.table.stop([1], lost=True)
        table.begin(P1, 0, 1)
        table.handle_all(sends=True)
        batch = taken(table.outbox) if taken_before else None
        table.table.stop([2], lost=True)
        batch = batch or taken(table.outbox)
        assert table.outbox.live(batch) == []
        table.outbox.done(batch)


@pytest.mark.parametrize("slots", ["runs", "records"])
def test_nothing_stays_in_memory_of_letters_that_a_stop_did_not_wait_for(slots: str) -> None:
    table = Table(Slots("partition", 1, runs=slots == "runs"), ON_ACKNOWLEDGEMENT)
    with nothing_stays_in_memory():
        table.begin(P0, 0, 1)
        table.give_up(table.take())
        batch = taken(table.letters)
        table.table.stop([1])
        (grant,) = table.table._open.values()
        for flight in grant.tracker.sending:
            flight.since_ns -= LATER
        del grant, flight
        table.table.balance(now_ns())
        assert len(table.reports) == 1, "nothing waits for the letter"
        table.letters.done(batch)


def test_nothing_stays_in_memory_of_a_partition_that_may_not_be_read_any_more() -> None:
    """In transactions: what it has left is delivered no more."""
    table = Table(Slots("partition", 1, runs=True), ON_COMMIT)
    with nothing_stays_in_memory():
        table.begin(P0, 0, 1)
        table.handle_all(sends=True)
        table.table.broken(P0, FailureKind.DENIED, "not authorized")
        batch = taken(table.outbox)
        table.outbox.done(batch)


def test_one_that_is_stopped_says_that_its_topic_may_be_read_no_more_as_its_transaction_may_be_committed_yet() -> None:
    """Else another worker would begin where this one knows it to be, and send twice what is committed."""
    table = Table(Slots("partition", 1, runs=True), ON_COMMIT)
    table.begin(P0, 0, 1)
    table.handle_all(sends=True)
    table.table.stop([1])
    assert table.reports == []
    table.table.deny(P0.topic, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    (report,) = table.reports
    assert isinstance(report, Failed)
    assert (report.grant, report.kind, report.offset) == (1, FailureKind.DENIED, 0)
    assert table.outbox.live(taken(table.outbox)) == []
