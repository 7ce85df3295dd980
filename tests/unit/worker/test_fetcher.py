"""The table of grants between control thread and runner, on a real client that has no broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.retry import End, Reason
from kunicorn.ipc.ledger import CONSUMED, Ledger
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, Parked, Stopped
from kunicorn.testing import record
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, message_of, placed
from kunicorn.worker.partitions import SequentialTable
from kunicorn.worker.progress import Attempt, Grant, GrantState
from tests.fakes.counts import counts_of
from tests.fakes.parts import parts
from tests.unit.worker.tables import LATER, P0, P1, Table


def failed(grant: Grant) -> Attempt[Grant]:
    """The handler raised on offset 0."""
    return Attempt(grant, [Message(topic="t", partition=0, offset=0)], 1, nanoseconds=10)


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.consumer.close()
    made.ledger.close()


def test_a_started_partitions_slot_is_open_at_once_and_the_next_turn_fetches_it(table: Table) -> None:
    table.start(P0, 1, 7)
    assert table.ledger.read(1, 1).consumed.offset == 7
    assert table.assigned() == []
    table.fetcher.begin_turn(0)
    assert table.assigned() == [("t", 0, 7)]


def test_a_start_without_an_offset_is_refused(table: Table) -> None:
    table.start(P0, 1, -1)
    (report,) = table.reports
    assert isinstance(report, Failed)
    assert report.kind is FailureKind.PARTITION
    assert table.assigned() == []


def test_a_grant_with_nothing_in_hand_is_reported_by_stop_itself(table: Table) -> None:
    table.fetch(P0, 1, 7)
    table.fetcher.stop([1])
    assert table.reports == [FetcherStopped([Stopped(1, 7, -1)])]
    table.fetcher.begin_turn(0)
    assert table.assigned() == []


def test_a_grant_in_hand_is_reported_when_the_handler_returns(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    table.fetcher.stop([1])
    assert table.reports == []
    assert table.fetcher.interrupts, "the runner looks around before the next record"
    table.ledger.cells[grant.at + CONSUMED] = 1
    assert not table.fetcher.release(grant, 1, 10, 1)
    assert table.reports == [FetcherStopped([Stopped(1, 1, 0)])]


def test_a_stop_said_twice_is_reported_once(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    table.fetcher.stop([1])
    table.fetcher.stop([1])
    table.fetcher.release(grant, 0, 0, 0)
    table.fetcher.stop([1])
    assert len(table.reports) == 1


def test_records_of_a_stopped_partition_are_not_handed_to_the_handler(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetcher.stop([1])
    assert table.fetcher.begin(P0, range(1, 2), 0, 0) is None


def test_old_records_are_not_handled_under_a_new_grant_of_the_same_turn(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetcher.stop([1])
    table.start(P0, 2, 3)
    assert table.ledger.read(2, 2).started, "the slot speaks for the new grant at once"
    assert table.assigned() == [("t", 0, 0)], "what the client holds is from before"
    assert table.fetcher.begin(P0, range(1, 2), 0, 0) is None
    table.fetcher.begin_turn(0)
    assert table.assigned() == [("t", 0, 3)]
    assert table.take(P0, 3).number == 2


def test_a_grant_stopped_before_its_turn_came_is_never_fetched(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetcher.stop([1])
    table.start(P0, 2)
    table.fetcher.stop([2])
    table.fetcher.begin_turn(0)
    assert table.assigned() == []
    assert len(table.reports) == 2


def test_a_parked_grant_is_not_fetched_and_stops_at_once(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetch(P1, 2)
    grant = table.take(P0)
    assert table.fetcher.park(failed(grant), "retry", "why")
    table.fetcher.begin_turn(0)
    assert table.assigned() == [("t", 1, 0)]
    assert table.fetcher.begin(P0, range(2, 3), 0, 0) is None, "the rest of the batch is fetched again later"
    table.fetcher.stop([1])
    assert table.reports == [FetcherStopped([Stopped(1, 0, 0)])]
    assert not table.fetcher.begin_again(grant, 0)


def test_after_its_retry_a_grant_is_fetched_from_its_next_offset(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    table.fetcher.park(failed(grant), "retry", "why")
    table.fetcher.begin_turn(0)
    assert table.fetcher.begin_again(grant, 0)
    table.ledger.cells[grant.at + CONSUMED] = 1
    assert table.fetcher.release(grant, 1, 10, 1)
    table.fetcher.begin_turn(0)
    assert table.assigned() == [("t", 0, 1)]
    assert grant.state is GrantState.FETCHING


@pytest.mark.parametrize(("end", "counted"), [(End.SKIP, (0, 1, {}, 1)), (End.DEAD_LETTER, (0, 1, {"attempts": 1}, 0))])
def test_a_record_passed_over_is_consumed_and_counted_as_what_it_is(
    table: Table, end: End, counted: tuple[int, int, dict[str, int], int]
) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    assert table.fetcher.pass_over(failed(grant), end, Reason.ATTEMPTS)
    assert table.ledger.read(1, 1).consumed.offset == 1
    assert grant.state is GrantState.FETCHING, "the records behind it are handled right away"
    (told,) = counts_of(*table.counters.take())
    assert (told.records, told.failures, told.dead_letters, told.skipped) == counted


def test_a_record_passed_over_while_stopping_is_consumed_and_the_grant_is_reported(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    table.fetcher.stop([1])
    assert not table.fetcher.pass_over(failed(grant), End.SKIP, Reason.ATTEMPTS)
    assert table.reports == [FetcherStopped([Stopped(1, 1, 0)])]


def test_waiting_partitions_are_told_with_what_they_wait_for(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetcher.park(failed(table.take(P0)), "dead_letter", "not acknowledged")
    assert table.fetcher.parked() == ([Parked(1, "dead_letter", "not acknowledged")], {"dead_letter": 1})
    table.fetcher.stop([1])
    assert table.fetcher.parked() == ([], {})


def test_a_grant_given_up_fails_once_and_frees_its_partition(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetcher.give_up(failed(table.take(P0)), "ValueError")
    table.fetcher.stop([1])
    (report,) = table.reports
    assert isinstance(report, Failed)
    assert (report.kind, report.offset) == (FailureKind.HANDLER, 0)
    table.fetcher.begin_turn(0)
    assert table.assigned() == []


def test_a_failure_while_stopping_is_reported_as_stopped_for_the_next_owner_to_try(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    table.fetcher.stop([1])
    table.fetcher.give_up(failed(grant), "ValueError")
    assert table.reports == [FetcherStopped([Stopped(1, 0, 0)])]


def test_a_broken_partition_fails_and_one_that_is_gone_is_passed_over(table: Table) -> None:
    table.fetch(P0, 1, 5)
    table.fetcher.broken(P0, FailureKind.OUT_OF_RANGE, "gone")
    table.fetcher.broken(P0, FailureKind.OUT_OF_RANGE, "gone")
    assert table.reports == [Failed(1, FailureKind.OUT_OF_RANGE, 5, -1, "gone")]


def test_drained_only_after_the_last_report(table: Table) -> None:
    table.fetch(P0, 1)
    table.fetch(P1, 2)
    grant = table.take(P0)
    table.fetcher.drain()
    assert [table.fetcher.drained, len(table.reports)] == [False, 1]
    table.fetcher.release(grant, 0, 0, 0)
    assert [table.fetcher.drained, len(table.reports)] == [True, 2]


def test_a_partition_is_assigned_once_the_client_has_forgotten_its_position_under_an_older_assignment(
    table: Table,
) -> None:
    class Lagging:
        """librdkafka between an unassign and its reset: it still tells the old position."""

        at = 500

        def __init__(self) -> None:
            self.assigned: list[ClientPartition] = []

        def position(self, partitions: list[ClientPartition]) -> list[ClientPartition]:
            return [ClientPartition(each.topic, each.partition, self.at) for each in partitions]

        def incremental_assign(self, partitions: list[ClientPartition]) -> None:
            self.assigned += partitions

    lagging = Lagging()
    fetcher = SequentialTable(parts(lagging, table.ledger, table.reports.append))
    fetcher.start([FetcherStart(1, 1, "t", 0, 100, -1)])
    fetcher.begin_turn(0)
    assert lagging.assigned == []
    lagging.at = OFFSET_INVALID
    fetcher.begin_turn(0)
    assert [each.offset for each in lagging.assigned] == [100]
    # Whatever is told from here on is of this assignment, also where it is the same as before.
    lagging.at = 500
    fetcher.begin_turn(LATER)
    assert table.ledger.read(1, 1).consumed.offset == 500


def test_what_is_in_hand_is_told_with_its_age(table: Table) -> None:
    table.fetch(P0, 1)
    assert table.fetcher.in_hand(0) is None
    table.fetcher.begin(P0, range(1, 4), 0, 1_000_000_000)
    hand = table.fetcher.in_hand(3_500_000_000)
    assert hand is not None
    assert (hand.offset, hand.count, hand.age) == (0, 3, 2.5)


def test_where_a_run_in_hand_ends_is_told_also_where_it_has_gaps(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.fetcher.begin(P0, [8, 18, 58], 0, 0)
    reading = table.ledger.read(1, 1)
    assert (reading.hand_offset, reading.hand_count, reading.hand_end) == (7, 3, 58)
    assert grant is not None
    held = [Message(topic=P0.topic, partition=P0.partition, offset=offset) for offset in (17, 57)]
    table.fetcher.park(Attempt(grant, held, 58), "retry", "not yet")
    assert table.fetcher.begin_again(grant, 0)
    reading = table.ledger.read(1, 1)
    assert (reading.hand_offset, reading.hand_count, reading.hand_end) == (17, 2, 58)


def test_what_lies_behind_a_stop_is_never_consumed() -> None:
    records = placed([record(str(number)) for number in range(5)], "t")
    consumer: Any = MemoryConsumer(MemoryLog(map(message_of, records)), lambda seconds: None)
    ledger = Ledger.create(4)
    fetcher = SequentialTable(parts(consumer, ledger))
    fetcher.start([FetcherStart(1, 1, *P0, 0, -1, stop=3)])
    fetcher.begin_turn(0)
    assert len(consumer.consume(5, 0)) == 5
    fetcher.begin_turn(LATER)
    assert ledger.read(1, 1).consumed.offset == 3, "the client is at 5, but 3 and 4 were dropped"
    ledger.close()


def test_what_records_take_is_told_under_their_grant_and_a_new_one_begins_at_nothing(table: Table) -> None:
    table.fetch(P0, 1)
    grant = table.take(P0)
    table.fetcher.release(grant, 1, 700, 1)
    grant = table.take(P0, 1)
    table.fetcher.park(Attempt(grant, [Message(topic="t", partition=0, offset=1)], 2, nanoseconds=300), "retry", "")
    assert table.ledger.busy_ns(1) == 1000, "a failed call took its time, too"
    table.fetcher.stop([1])
    table.ledger.done(1).mark(0)
    table.start(P0, 1)
    assert table.ledger.busy_ns(1) == 0
    assert table.ledger.busy_ns(2) == 0


def test_a_record_behind_a_gap_that_killed_workers_is_kept_from_the_handler(table: Table) -> None:
    """The partition starts in the gap: at a transaction's marker, or where records were compacted away."""
    table.fetcher.start([FetcherStart(1, 1, *P0, 50, -1, poison="2 workers died", poison_deaths=2, poison_offset=51)])
    table.fetcher.begin_turn(0)
    grant = table.take(P0, 51)
    assert (grant.poison, grant.poison_at, grant.poison_deaths) == ("2 workers died", 51, 2)
