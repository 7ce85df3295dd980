"""The table of partitions between the control thread, the loop and the client, step by step."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message

from kunicorn.handler.call import OfSome
from kunicorn.ipc import bitmap
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStopped, PoisonTold, Stopped
from kunicorn.positions import Position, TopicPartition
from kunicorn.worker.delivery import ON_ACKNOWLEDGEMENT, ON_COMMIT, ON_RETURN, Completion
from kunicorn.worker.progress import Attempt, Bounds, InFlight, Slots
from tests.compiled import compiled
from tests.fakes import fetched
from tests.fakes.counts import counts_of
from tests.unit.worker.tables import LATER, P0, P1, Table, messages, nothing_stays_in_memory, offsets_of


def several(ordering: str = "none", most: int = 8) -> Slots:
    return Slots(ordering, most)


# -- the client's assignment -----------------------------------------------------------------------------------------


def test_a_started_partitions_slot_is_open_at_once_and_the_next_turn_fetches_it() -> None:
    table = Table()
    table.start(P0, 1, 7)
    assert table.consumed() == 7
    assert table.client.assigned == {}
    table.table.begin_turn(0)
    assert table.client.assigned == {P0: (7, None)}


def test_a_start_without_an_offset_is_refused() -> None:
    table = Table()
    table.start(P0, 1, -1)
    (report,) = table.reports
    assert isinstance(report, Failed)
    assert report.kind is FailureKind.PARTITION
    table.table.begin_turn(0)
    assert table.client.assigned == {}


def test_a_partition_is_assigned_once_the_client_has_forgotten_its_position_under_an_older_assignment() -> None:
    table = Table()
    table.client.told = 500
    table.start(P0, 1, 100)
    table.table.begin_turn(0)
    assert table.client.assigned == {}
    table.client.told = OFFSET_INVALID
    table.table.begin_turn(0)
    assert table.client.assigned == {P0: (100, None)}
    # Whatever is told from here on is of this assignment, also where it is the same as before.
    table.client.told = 500
    table.table.begin_turn(LATER)
    assert table.consumed() == 500


def test_an_assignment_that_the_client_refuses_ends_its_partition() -> None:
    table = Table()
    table.client.refusal = KafkaException(KafkaError(KafkaError._STATE, "not now"))
    table.begin(P0)
    (report,) = table.reports
    assert isinstance(report, Failed)
    assert (report.grant, report.offset) == (1, 0)
    table.client.refusal = None
    table.table.begin_turn(0)
    assert table.client.assigned == {}


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_where_nothing_but_markers_came_the_position_has_their_leader_epoch(slots: Slots | None) -> None:
    """With the one before, whoever begins there would take the log for truncated: that epoch ended further back."""
    table = Table(slots)
    table.begin(P0, 0)
    table.handle(table.take())
    table.client.told, table.client.told_epoch = 5, 3
    table.table.begin_turn(LATER)
    table.table.stop([1])
    assert table.reports == [FetcherStopped([Stopped(1, 5, 3)])]


@pytest.mark.parametrize(
    ("slots", "completion"),
    [(several(), ON_RETURN), (several("key"), ON_RETURN), (None, ON_ACKNOWLEDGEMENT), (several(), ON_ACKNOWLEDGEMENT)],
    ids=["records", "keys", "runs that are sent", "records that are sent"],
)
def test_beyond_a_gap_the_position_has_the_leader_epoch_of_the_record_that_it_waits_for(
    slots: Slots | None, completion: Completion
) -> None:
    """Leaders have changed within the gap: the epoch of the record before it ended further back, so that whoever
    begins there would take the log for truncated, and what is done ahead for lost."""
    sends = completion is ON_ACKNOWLEDGEMENT
    table = Table(slots, completion)
    table.begin(P0)
    table.fetch(P0, 10, epoch=3)
    table.handle(table.take(), sends=sends)
    table.fetch(P0, 500, 501, epoch=4, keys="ab")
    table.take()
    if sends:
        table.deliver()
    assert table.ledger.read(1, 1).consumed == Position(500, 4)


@pytest.mark.parametrize("sends", [False, True])
def test_a_position_of_an_unknown_leader_epoch_has_that_of_the_record_that_it_waits_for(sends: bool) -> None:
    """As where a person has put it. Without one nobody would find that the log was cut behind it while it was halted,
    and what came in place of what is done ahead would be passed over."""
    table = Table(several("key"), ON_ACKNOWLEDGEMENT if sends else ON_RETURN)
    table.start(P0, 1, 10)
    table.table.begin_turn(0)
    table.fetch(P0, 10, 11, epoch=4, keys="ab")
    first, second = table.started()
    table.handle(second, sends=sends)
    if sends:
        table.deliver()
    table.table.give_up(Attempt(first), "why")
    (report,) = table.reports
    assert isinstance(report, Failed)
    assert (report.offset, report.leader_epoch, set(bitmap.read(10, report.done))) == (10, 4, {11})


@pytest.mark.parametrize("slots", [None, several("key")], ids=["runs", "keys"])
def test_a_transaction_commits_a_position_beyond_a_gap_with_the_leader_epoch_of_what_is_there(
    slots: Slots | None,
) -> None:
    table = Table(slots, ON_COMMIT)
    table.begin(P0)
    table.fetch(P0, 10, epoch=3)
    first = table.take()
    table.handle(first, sends=True)
    table.fetch(P0, 500, epoch=4)
    table.take()
    assert first.tracker.position_with({first: 11})[:2] == (500, 4)


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_what_lies_behind_a_stop_is_never_consumed(slots: Slots | None) -> None:
    table = Table(slots)
    table.start(P0, 1, 3, stop=3)
    table.table.begin_turn(0)
    table.client.told = 5
    table.table.begin_turn(LATER)
    assert table.consumed() == 3, "the client is at 5, but 3 and 4 were dropped"


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_after_a_delay_a_partition_is_fetched_from_behind_what_has_arrived_with_its_leader_epoch(
    slots: Slots | None,
) -> None:
    table = Table(slots)
    table.begin(P0, 40)
    table.fetch(P0, 41, epoch=3)
    grant = table.table.delay(P0, "why")
    assert grant is not None
    table.table.begin_turn(0)
    assert table.client.assigned == {}
    table.table.end_delay(grant)
    table.table.begin_turn(0)
    assert table.client.assigned == {P0: (42, 3)}, "what is kept is not fetched twice"


@pytest.mark.parametrize("slots", [None, several("partition", 2)], ids=["runs", "records"])
def test_a_record_that_waits_keeps_nothing_in_memory_of_what_was_fetched_with_it(slots: Slots | None) -> None:
    """A quiet partition's record comes with megabytes of a busy one's, and waits for its next try for hours."""
    columns = compiled()
    decoder = columns.Decoder(read_committed=True, max_unpacked=1 << 24)
    held = decoder.held()
    table = Table(slots)
    table.begin(P0)
    busy, quiet = b"busy".ljust(16), b"quiet".ljust(16)
    decoder.place(busy, 0, "busy", 0)
    decoder.place(quiet, P0.partition, P0.topic, 0)
    megabyte = fetched.partition(17, 0, [fetched.batch([fetched.record(0, bytes(1 << 20))])])
    alone = fetched.partition(17, P0.partition, [fetched.batch([fetched.record(0, b"small", headers=[(b"h", b"1")])])])
    response = decoder.decode(fetched.body(17, {busy: [megabyte], quiet: [alone]}), 17)
    table.table.feed(P0, 5, response.rows.cut(1, 1, 5), 0)
    del response
    failed = table.take()
    assert decoder.held() - held > 1 << 20
    table.table.park(Attempt(failed), "retry", "why")
    # A run is an answer of its own then, which takes a few kilobytes beside its rows.
    assert decoder.held() - held < 1 << 12
    table.table.try_again(failed)
    (message,) = table.take().messages
    assert (message.topic(), message.partition(), message.offset()) == (*P0, 0)
    assert (message.value(), message.headers(), message.leader_epoch()) == (b"small", [("h", b"1")], 5)


@pytest.mark.parametrize("slots", [None, several("partition", 2)], ids=["runs", "records"])
def test_a_partition_set_aside_is_fetched_from_the_first_record_that_was_let_go_of(slots: Slots | None) -> None:
    table = Table(slots, ahead_bytes=2400)
    table.begin(P0, 0)
    for offset in range(1, 6):
        table.fetch(P0, offset, epoch=offset)
    failed = table.take()
    table.table.park(Attempt(failed), "retry", "why")
    table.turn()
    assert table.client.assigned == {}, "nothing may start, and no room is left"
    table.table.try_again(failed)
    handled = table.handle_until_fetched_again()
    ((offset, epoch),) = table.client.assigned.values()
    assert 1 < offset < 6
    assert epoch in (offset - 1, offset), "of the last record that is done, or of the first that comes again"
    table.fetch(P0, *range(offset, 6))
    handled += table.handle_all()
    assert handled == list(range(6))
    assert table.consumed() == 6


@pytest.mark.parametrize("slots", [None, several("partition", 2)], ids=["runs", "records"])
def test_what_was_let_go_of_is_fetched_again_also_where_its_partition_is_put_off_before_it_has_come(
    slots: Slots | None,
) -> None:
    """The clock was set back: what was ripe when it was taken in is not when it comes again."""
    table = Table(slots, ahead_bytes=2400)
    table.begin(P0, *range(6))
    failed = table.take()
    table.table.park(Attempt(failed), "retry", "why")
    table.turn()
    table.table.try_again(failed)
    handled = table.handle_until_fetched_again()
    grant = table.table.delay(P0, "why")
    assert grant is not None
    table.table.begin_turn(0)
    table.table.end_delay(grant)
    table.table.begin_turn(0)
    ((offset, _),) = table.client.assigned.values()
    assert offset == len(handled) < 6
    table.fetch(P0, *range(offset, 6))
    handled += table.handle_all()
    assert (handled, table.consumed()) == (list(range(6)), 6)


def test_of_a_run_that_is_as_large_as_all_there_is_the_end_is_let_go_of_and_other_partitions_go_on() -> None:
    table = Table(ahead_bytes=3000)
    table.begin(P0, 0)
    failed = table.take()
    table.table.park(Attempt(failed), "retry", "why")
    table.fetch(P0, *range(1, 100))
    assert table.table.full
    table.table.balance(0)
    assert table.table.bytes == 2 * 501, "what waits and one more: its share are 1500 bytes, as others have some"
    table.table.begin_turn(0)
    table.table.try_again(failed)
    handled = table.handle_until_fetched_again()
    assert table.client.assigned == {P0: (2, 0)}
    table.fetch(P0, *range(2, 100))
    handled += table.handle_all()
    assert handled == list(range(100))


def test_what_stays_of_a_run_that_is_let_go_of_keeps_none_of_the_rest_in_memory() -> None:
    columns = compiled()
    decoder = columns.Decoder(read_committed=True, max_unpacked=1 << 24)
    held = decoder.held()
    table = Table(ahead_bytes=100_000)
    table.begin(P0)
    topic = b"topic".ljust(16)
    decoder.place(topic, P0.partition, P0.topic, 0)
    records = [fetched.record(at, bytes(10_000)) for at in range(100)]
    response = decoder.decode(
        fetched.body(17, {topic: [fetched.partition(17, P0.partition, [fetched.batch(records)])]}), 17
    )
    table.table.feed(P0, 5, response.rows.cut(0, 1, 5), 0)
    table.table.park(Attempt(table.take()), "retry", "why")
    table.table.feed(P0, 5, response.rows.cut(1, 99, 5), 0)
    del response
    assert decoder.held() - held > 900_000
    table.table.balance(0)
    assert decoder.held() - held < 100_000


@pytest.mark.parametrize("most", [2, 50], ids=["some are queued", "all wait"])
def test_a_partition_whose_records_all_wait_is_fetched_no_further_and_the_others_go_on(most: int) -> None:
    table = Table(several(most=most), ahead_bytes=60_000)
    table.begin(P0)
    table.begin(P1)
    waiting: list[InFlight] = []
    fetched_to = 0
    while P0 in table.client.assigned:
        table.fetch(P0, *range(fetched_to, fetched_to + 3))
        fetched_to += 3
        for flight in table.started():
            table.table.park(Attempt(flight), "rate_limit", "why")
            waiting.append(flight)
        assert sum(flight.size for flight in waiting) < 60_000, "without a bound"
        table.turn()
    assert set(table.client.assigned) == {P1}
    table.fetch(P1, *range(10))
    assert not table.table.full
    for flight in waiting:
        table.table.try_again(flight)
    while P0 not in table.client.assigned:
        table.handle(table.take())
        table.turn()
    offset, _ = table.client.assigned[P0]
    assert offset == fetched_to if most == 50 else offset < fetched_to
    table.fetch(P0, *range(offset, fetched_to))
    table.handle_all()
    assert (table.consumed(1), table.consumed(2)) == (fetched_to, 10)


def test_one_record_that_waits_on_after_an_outage_keeps_its_partition_from_being_fetched_no_longer() -> None:
    """It is larger than a quarter of a partition's share, which is little where there are many partitions."""
    table = Table(several(most=50), ahead_bytes=60_000)
    table.begin(P0)
    table.begin(P1)
    table.table.feed(P0, 0, messages(P0, *range(6), size=6000), 0)
    waiting = table.started()
    for flight in waiting:
        table.table.park(Attempt(flight), "wait", "why")
    table.turn()
    assert set(table.client.assigned) == {P1}, "all six wait"
    for flight in waiting[1:]:
        table.table.try_again(flight)
    table.handle_all()
    table.turn()
    assert table.client.assigned[P0] == (6, 0)


@pytest.mark.parametrize("fetched_first", [10, 1], ids=["much", "little"])
@pytest.mark.parametrize("waits", [1, 25], ids=["a record waits", "a batch waits"])
def test_a_partition_that_stands_still_is_not_fetched_again_and_again(waits: int, fetched_first: int) -> None:
    """What was dropped would come again, be too much once more, and be dropped."""
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(waits, None, 0, 0)), ahead_bytes=70_000)
    for partition in range(6):
        table.begin(TopicPartition("t", partition))
    table.fetch(P0, *range(waits))
    table.table.park(Attempt(table.take()), "wait", "why")
    table.fetch(P0, *range(waits, waits + fetched_first))
    table.fetch(P0, *range(waits + fetched_first, 200))
    assert table.table.full
    table.turn()
    table.turn()
    assert P0 not in table.client.assigned


def test_one_batch_that_waits_leaves_room_for_others_however_large_it_is() -> None:
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(100, None, 0, 0)), ahead_bytes=3000)
    table.begin(P0, *range(100))
    table.begin(P1)
    waiting = table.take()
    waiting.failures = 1
    table.table.park(Attempt(waiting), "retry", "why")
    table.table.balance(0)
    assert not table.table.full
    table.fetch(P1, 0)
    table.handle(table.take())
    assert table.consumed(2) == 1
    table.table.try_again(waiting)
    assert table.take() is waiting
    assert table.table.bytes == 0


@pytest.mark.parametrize("slots", [None, several("partition")], ids=["runs", "records"])
def test_what_waits_keeps_nothing_of_its_partition_in_memory_once_that_is_stopped(slots: Slots | None) -> None:
    table = Table(slots)
    with nothing_stays_in_memory():
        table.begin(P0, *range(10))
        waiting = table.take()
        table.table.park(Attempt(waiting), "wait", "for a day")
        queued = [*waiting.tracker.order, *waiting.lane.queue]
        table.table.stop([1])
        assert [flight.offset for flight in queued if flight.messages] == []
        del queued
        assert not [*waiting.tracker.order, *waiting.lane.queue]
        del waiting


@pytest.mark.parametrize("lost", [False, True], ids=["stopped", "lost"])
@pytest.mark.parametrize("in_hand", [False, True], ids=["nothing in hand", "a record in hand"])
@pytest.mark.parametrize("slots", ["runs", "partition", "key", "none"])
def test_nothing_stays_in_memory_of_what_is_queued_of_a_partition_that_ends(
    slots: str, in_hand: bool, lost: bool
) -> None:
    table = Table(None if slots == "runs" else several(slots))
    table.slots.pace.size = 1
    with nothing_stays_in_memory():
        for number in (1, 2):
            table.start(P0, number)
            table.table.begin_turn(0)
            table.fetch(P0, *range(6), keys="abacad")
            flight = table.take() if in_hand else None
            table.table.stop([number], lost=lost)
            table.table.begin_turn(0)
            if flight is not None:
                table.table.put_back(flight)
            table.table.balance(0)
            del flight
    assert len(table.reports) == 2


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_records_of_a_stopped_partition_are_not_handed_to_the_handler(slots: Slots | None) -> None:
    table = Table(slots)
    table.begin(P0, 0, 1)
    table.table.stop([1])
    table.start(P0, 2, 3)
    table.fetch(P0, 2)
    assert table.started() == [], "what the client holds is from before"
    table.table.begin_turn(0)
    table.fetch(P0, 3)
    assert [(flight.offset, flight.tracker.grant) for flight in table.started()] == [(3, 2)]


# -- what is told ----------------------------------------------------------------------------------------------------


def test_what_is_in_hand_is_told_with_its_age() -> None:
    table = Table()
    table.begin(P0, 0, 1, 2)
    assert table.table.in_hand(0) is None
    flight = table.take()
    flight.since_ns = 1_000_000_000
    hand = table.table.in_hand(3_500_000_000)
    assert hand is not None
    assert (hand.offset, hand.count, hand.age) == (0, len(flight.messages), 2.5)


def test_where_a_run_in_hand_ends_is_told_also_where_it_has_gaps() -> None:
    table = Table()
    table.begin(P0, 7, 17, 57)
    table.slots.pace.size = 3
    flight = table.take()
    reading = table.ledger.read(1, 1)
    assert (reading.hand_offset, reading.hand_count, reading.hand_end) == (7, 3, 58)
    rest = table.table.failed(flight, 1, 10, OfSome(ValueError("two of them"), count=2))
    assert rest is not None
    reading = table.ledger.read(1, 1)
    assert (reading.hand_offset, reading.hand_count, reading.hand_end) == (17, 2, 58)


def test_what_records_take_is_told_under_their_grant_and_a_new_one_begins_at_nothing() -> None:
    table = Table()
    table.begin(P0, 0, 1)
    table.slots.pace.size = 1
    table.table.returned(table.take(), 1, 700, 1)
    table.table.park(Attempt(table.take(), nanoseconds=300), "retry", "")
    assert table.ledger.busy_ns(1) == 1000, "a failed call took its time, too"
    table.table.stop([1])
    table.start(P0, 1)
    assert table.ledger.busy_ns(1) == 0


def test_a_record_among_several_counts_for_its_part_of_what_the_worker_does_at_a_time() -> None:
    table = Table(several(most=4))
    table.begin(P0, 0)
    flight = table.take()
    flight.since_ns -= 4_000_000_000
    table.handle(flight)
    assert 1_000_000_000 <= table.ledger.busy_ns(1) < 1_500_000_000


def test_all_that_is_overdue_of_a_partition_is_told_at_once_and_nothing_else() -> None:
    table = Table(several())
    table.begin(P0, *range(4))
    for since, flight in zip((100, 200, 300, 400), table.started(), strict=True):
        flight.since_ns = since
    assert [flight.offset for flight in table.table.overdue(1, 0, 300)] == [0, 1, 2]
    assert [flight.offset for flight in table.table.overdue(1, 3, 0)] == [3], "the one that is named"
    assert table.table.overdue(2, 0, 300) == [], "another grant's"
    (told,) = counts_of(*table.counters.take())
    assert told.timed_out == 2, "the supervisor counts those that it names"


def test_a_record_that_fails_when_its_drain_budget_is_over_waits_for_nobody() -> None:
    table = Table(several())
    table.begin(P0, 0, 1)
    one, other = table.started()
    table.table.put_down(one)
    table.table.stop([1])
    assert table.table.let_go([1]) == [other]
    assert table.reports == []
    table.table.put_down(other)
    assert [each.offset for each in table.reports[0].partitions] == [0]  # type: ignore[union-attr]
    assert not table.table.take_up(one, 0), "it is the next owner's"


def test_each_of_several_records_that_killed_workers_is_kept_from_the_handler() -> None:
    table = Table(several())
    more = [PoisonTold(1, "2 workers died with 1", 2)]
    table.start(P0, 1, 0, poison="4 workers died with 3", poison_deaths=4, poison_offset=3, more_poison=more)
    table.table.begin_turn(0)
    table.fetch(P0, 0, 1, 2, 3)
    told = {}
    for _ in range(4):
        flight = table.take()
        told[offsets_of(flight)[0]] = (flight.poison, flight.poison_deaths)
        table.handle(flight)
    assert told == {0: ("", 0), 1: ("2 workers died with 1", 2), 2: ("", 0), 3: ("4 workers died with 3", 4)}


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_headers_count_as_memory_of_records_that_are_queued(slots: Slots | None) -> None:
    table = Table(slots, ahead_bytes=20_000)
    table.begin(P0)
    large = Message(topic="t", partition=0, offset=0, value=b"", headers=[("large", bytes(20_000))])
    table.table.feed(P0, 0, [large], 0)
    assert table.table.full


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_a_record_behind_a_gap_that_killed_workers_is_kept_from_the_handler(slots: Slots | None) -> None:
    """The partition starts in the gap: at a transaction's marker, or where records were compacted away."""
    table = Table(slots)
    table.start(P0, 1, 50, poison="2 workers died", poison_deaths=2, poison_offset=51)
    table.table.begin_turn(0)
    table.fetch(P0, 51, 52)
    flight = table.take()
    assert (flight.poison, offsets_of(flight), flight.poison_deaths) == ("2 workers died", [51], 2)
    table.handle(flight)
    assert table.take().poison == ""


def test_records_before_one_that_killed_workers_are_in_no_call_with_it() -> None:
    table = Table()
    table.start(P0, 1, 50, poison="2 workers died", poison_deaths=2, poison_offset=52)
    table.table.begin_turn(0)
    table.fetch(P0, 50, 51, 52, 53)
    calls = []
    for _ in range(4):
        flight = table.take()
        calls.append((offsets_of(flight), flight.poison))
        table.handle(flight)
    assert calls == [([50], ""), ([51], ""), ([52], "2 workers died"), ([53], "")]


@pytest.mark.parametrize("named", [50, 51], ids=["the first", "a later one"])
@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_a_record_that_killed_workers_and_was_compacted_away_speaks_against_no_other(
    slots: Slots | None, named: int
) -> None:
    table = Table(slots)
    table.start(P0, 1, 50, poison="2 workers died", poison_deaths=2, poison_offset=named)
    table.table.begin_turn(0)
    table.fetch(P0, 52, 53)
    assert table.take().poison == ""


# -- errors in place of records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [None, several("partition", 1)], ids=["runs", "records"])
def test_what_was_fetched_before_an_error_is_handled_first_and_of_several_errors_the_first_counts(
    slots: Slots | None,
) -> None:
    table = Table(slots)
    table.begin(P0, 0, 1)
    table.begin(P1)
    table.slots.pace.size = 1
    for error in ("damaged", "gone"):
        table.table.broken(P0, FailureKind.PARTITION, error)
    table.table.balance(0)
    table.handle(table.take())
    table.table.balance(0)
    second = table.take()
    table.table.balance(0)
    assert table.reports == [], "it is in hand"
    table.handle(second)
    table.table.balance(0)
    assert table.reports == [Failed(1, FailureKind.PARTITION, 2, 0, "damaged", "")]
    table.table.begin_turn(0)
    assert set(table.client.assigned) == {P1}


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_a_record_that_waits_for_its_next_try_is_handled_before_the_clients_error_behind_it_ends_the_partition(
    slots: Slots | None,
) -> None:
    table = Table(slots)
    table.begin(P0, 0)
    failed = table.take()
    table.table.park(Attempt(failed), "retry", "why")
    table.table.broken(P0, FailureKind.PARTITION, "damaged")
    table.table.balance(0)
    assert table.reports == [], "the error is not record 0's"
    table.table.try_again(failed)
    table.table.balance(0)
    table.handle(table.take())
    table.table.balance(0)
    assert table.reports == [Failed(1, FailureKind.PARTITION, 1, 0, "damaged", "")]


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_a_record_in_hand_keeps_its_tries_while_the_clients_error_behind_it_is_to_end_the_partition(
    slots: Slots | None,
) -> None:
    table = Table(slots)
    table.begin(P0, 0)
    in_hand = table.take()
    table.table.broken(P0, FailureKind.PARTITION, "damaged")
    table.table.balance(0)
    table.table.put_down(in_hand)
    table.table.balance(0)
    assert table.table.take_up(in_hand, 0)
    in_hand.failures += 1
    assert table.table.park(Attempt(in_hand), "retry", "why"), "it is tried again here"
    table.table.balance(0)
    assert table.reports == [], "the next owner would begin to count anew"
    table.table.try_again(in_hand)
    again = table.take()
    assert again.failures == 1
    table.handle(again)
    table.table.balance(0)
    assert table.reports == [Failed(1, FailureKind.PARTITION, 1, 0, "damaged", "")]


@pytest.mark.parametrize("slots", [None, several()], ids=["runs", "records"])
def test_a_record_that_its_handler_gives_up_halts_no_partition_that_is_another_members_next(
    slots: Slots | None,
) -> None:
    table = Table(slots)
    table.begin(P0, 0, 1)
    failed = table.take()
    table.table.stop([1])
    table.table.give_up(Attempt(failed), "a person has to look")
    (report,) = table.reports
    assert isinstance(report, FetcherStopped)
    assert [each.offset for each in report.partitions] == [0], "its next owner begins with that record"


def test_an_error_is_of_no_interest_once_the_partition_is_given_up() -> None:
    table = Table()
    table.begin(P0, 0, 1)
    table.table.broken(P0, FailureKind.PARTITION, "damaged")
    table.table.stop([1])
    table.table.balance(0)
    assert table.reports == [FetcherStopped([Stopped(1, 0, -1)])]


def done(table: Table) -> tuple[int, set[int]]:
    """What the supervisor would take from the ledger."""
    return table.consumed(), set(table.ledger.done(1).from_offset(table.consumed()))


def test_a_record_that_was_compacted_away_leaves_no_mark_of_what_was_done_behind_it() -> None:
    table = Table(several())
    table.begin(P0, 0, 1, 2, 3)
    first, second, third, fourth = table.started()
    table.handle(fourth)
    for flight in (second, third):
        table.table.put_back(flight)
    table.table._scheduler.shed(second.tracker, 0)
    table.handle(first)
    table.handle(table.take())
    assert done(table) == (2, {3}), "record 2 was dropped, and is to be fetched again; 1, the lowest, stayed"
    for offset in range(4, 4200):
        table.table.feed(P0, 0, messages(P0, offset), 0)
        table.handle(table.take())
    assert done(table) == (4200, set()), "8194 and 8195 have not come yet"


def test_while_the_first_record_of_a_partition_that_was_idle_is_in_hand_its_age_is_told_and_no_older_ones() -> None:
    table = Table(several())
    table.begin(P0, 0)
    table.handle_all()
    late = Message(topic="t", partition=0, offset=1, value=b"", timestamp=(1, 5000), leader_epoch=0)
    table.table.feed(P0, 0, [late], 0)
    table.take()
    assert table.ledger.read(1, 1).timestamp_ms == 5000


def test_of_topics_that_come_and_go_no_more_is_kept_than_that_there_were_several() -> None:
    table = Table()
    for day in range(1, 5):
        table.start(TopicPartition(f"day-{day}", 0), day, 0)
        assert table.table.several_topics == (day > 1)
    assert len(table.table._grants._topics) == 2


def test_what_a_batch_has_done_ahead_is_told_of_a_partition_that_is_stopped_while_the_next_one_waits() -> None:
    table = Table(Slots("partition", 1, runs=True, bounds=Bounds(10, None, 0, 1 << 20)))
    table.begin(P0, 5, 6, 7, 8)
    failed = table.table.failed(table.take(), 0, 10, OfSome(ValueError(), ahead={6}, count=1))
    assert failed is not None
    failed.failures = 1
    table.table.put_down(failed)
    assert table.table.take_up(failed, 0)
    table.table.park(Attempt(failed), "retry", "why")
    table.table.try_again(failed)
    table.handle(table.take())
    waiting = table.take()
    assert offsets_of(waiting) == [7, 8], "6 is done"
    table.table.put_down(waiting)
    assert table.table.take_up(waiting, 0)
    table.table.park(Attempt(waiting), "retry", "why")
    table.table.stop([1])
    (report,) = table.reports
    assert isinstance(report, FetcherStopped)
    (stopped,) = report.partitions
    assert bitmap.read(stopped.offset, stopped.done) >= set(range(stopped.offset, 7)), (
        "6 would be handled a second time"
    )
