"""Workers with several records in hand: what is done ahead is kept, and who is to blame for a death is found out."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

import pytest

from kunicorn.group.states import PartitionState
from kunicorn.ipc.bitmap import read, topic_in, written
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, Stopped
from kunicorn.positions import Position, TopicPartition
from kunicorn.text import topic_id_text
from tests.fakes.stage import PlayedTopics, Stage, consumed, tps

ZERO = TopicPartition("orders", 0)


@pytest.fixture
def stage() -> Stage:
    return Stage(poison_halts=False)


def handle(stage: Stage, number: int, consumed: int, done: Collection[int], in_hand: Collection[int]) -> FetcherStart:
    """The worker's ledger says so, of one partition."""
    worker, start = stage.workers[0], stage.start_of(number)
    worker.ledger.use_marks(start.slot)
    worker.consume(start, consumed, in_hand=len(in_hand))
    for offset in done:
        worker.ledger.done(start.slot).mark(offset)
    for offset in in_hand:
        worker.ledger.in_hand(start.slot).mark(offset)
    return start


def next_life(stage: Stage) -> FetcherStart:
    stage.die_and_revive()
    return stage.start_of(0)


def test_what_is_done_ahead_is_kept_over_lives_and_forgotten_once_it_lies_behind(stage: Stage) -> None:
    stage.give(0)
    handle(stage, 0, 105, {107, 109}, ())
    next_life(stage)
    handle(stage, 0, 105, {110}, ())
    assert read(105, next_life(stage).done) == {107, 109, 110}
    handle(stage, 0, 108, (), ())
    assert read(108, next_life(stage).done) == {109, 110}


def test_a_done_record_that_the_worker_stops_in_front_of_stays_done(stage: Stage) -> None:
    stage.give(0)
    handle(stage, 0, 105, {106, 107}, {105})
    next_life(stage)
    handle(stage, 0, 106, (), ())  # Record 105 is done, and 106 has not come again yet.
    assert read(106, next_life(stage).done) == {106, 107}


def test_what_is_done_ahead_is_committed_with_the_offset_and_anew_when_only_it_has_changed(stage: Stage) -> None:
    stage.give(0)
    start = handle(stage, 0, 105, {107}, {105})
    table = stage.assignment.table
    position = table.consumed()[ZERO]
    assert position.offset == 105
    assert read(105, position.done) == {107}
    table.committed(ZERO, position)
    assert table.consumed() == {}
    stage.workers[0].ledger.done(start.slot).mark(108)
    assert read(105, table.consumed()[ZERO].done) == {107, 108}


def test_a_start_offset_brings_along_what_another_member_had_done(stage: Stage) -> None:
    stage.assignment.assign(tps(0))
    stage.assignment.resolved({ZERO: Position(100, 3, written(100, {103}))}, {ZERO: 100})
    assert read(100, stage.start_of(0).done) == {103}
    assert consumed(stage) == {}, "that is committed already"


@pytest.mark.parametrize("moved_to", [61, 99, 101, 250])
def test_an_offset_that_others_have_moved_brings_nothing_along_that_was_done(stage: Stage, moved_to: int) -> None:
    """MirrorMaker and `committed()` with `commit()` of a client take the metadata along: what is marked there lies at
    other offsets, and 100 is not done."""
    stage.assignment.assign(tps(0))
    told = written(100, range(101, 400))
    stage.assignment.resolved({ZERO: Position(moved_to, 3, told)}, {ZERO: moved_to})
    assert (stage.start_of(0).offset, read(moved_to, stage.start_of(0).done)) == (moved_to, frozenset())


def test_what_was_done_of_another_cluster_s_topic_is_not_done_of_this_one() -> None:
    ours, theirs = UUID(int=1), UUID(int=2)
    for named, done in ((ours, {103}), (theirs, set[int]())):
        stage = Stage(topics=PlayedTopics(lambda _: ours))
        stage.assignment.assign(tps(0))
        told = written(100, {103}, topic_id_text(named))
        stage.assignment.resolved({ZERO: Position(100, 3, told)}, {ZERO: 100})
        assert read(100, stage.start_of(0).done) == done


def test_a_commit_names_the_topic_that_the_records_are_of_whoever_commits() -> None:
    stage = Stage(topics=PlayedTopics(lambda _: UUID(int=1)))
    stage.give(0)
    start = handle(stage, 0, 105, {107}, {105})
    assert topic_in(stage.assignment.table.consumed()[ZERO].done) == topic_id_text(UUID(int=1))
    assert start.topic_id == topic_id_text(UUID(int=1)), "for workers that commit in transactions"


def test_a_report_of_a_stopped_fetcher_says_what_is_done_ahead(stage: Stage) -> None:
    stage.give(0)
    start = stage.start_of(0)
    stopped = Stopped(start.grant, 104, 3, written(104, {106}))
    stage.assignment.worker_stopped(stage.workers[0], FetcherStopped([stopped]))
    assert read(104, stage.start_of(0).done) == {106}


async def test_what_was_done_of_a_log_that_was_truncated_is_forgotten(stage: Stage) -> None:
    stage.give(0)
    start = handle(stage, 0, 104, {106}, ())
    stage.assignment.worker_failed(stage.workers[0], Failed(start.grant, FailureKind.TRUNCATED, 104, 3, "cut"))
    stage.resolve(0)
    assert stage.start_of(0).done == ""


@pytest.mark.parametrize(("start", "poison"), [(104, ""), (106, "2 workers died (SIGKILL) with offset 107 in hand")])
async def test_a_record_that_took_the_place_of_poison_that_was_cut_off_comes_to_the_handler(
    stage: Stage, start: int, poison: str
) -> None:
    """Where retention alone took the position, the log has the poison still."""
    stage.give(0)
    for _ in range(2):
        handle(stage, 0, 105, {106}, {107})
        next_life(stage)
    grant = stage.start_of(0).grant
    stage.assignment.worker_failed(stage.workers[0], Failed(grant, FailureKind.OUT_OF_RANGE, 105, 3, "not there"))
    stage.assignment.resolved({ZERO: Position(start)}, {ZERO: start})
    assert stage.start_of(0).grant > grant
    assert stage.start_of(0).poison == poison


def test_records_that_were_in_hand_at_two_deaths_are_tried_alone_and_the_others_are_not(stage: Stage) -> None:
    stage.give(0)
    handle(stage, 0, 105, (), {105, 106, 107})
    assert next_life(stage).suspects == []
    handle(stage, 0, 106, {107}, {106, 108})
    start = next_life(stage)
    assert (start.suspects, start.poison) == ([106], "")


def test_where_workers_commit_suspects_stay_although_each_death_has_the_position_looked_up(stage: Stage) -> None:
    stage.assignment.table.workers_commit = True
    stage.give(0)
    for _ in range(2):
        handle(stage, 0, 105, (), {105, 107})
        stage.die()
        stage.assignment.resolved({ZERO: Position(105)}, {ZERO: 105})
        stage.revive()
    assert stage.start_of(0).suspects == [105, 107]


def test_a_record_that_kills_alone_is_poison_wherever_it_is(stage: Stage) -> None:
    stage.give(0)
    for _ in range(2):
        handle(stage, 0, 105, (), {105, 107})
        next_life(stage)
    for _ in range(2):
        handle(stage, 0, 105, {106}, {107})
        next_life(stage)
    start = stage.start_of(0)
    assert (start.poison_offset, start.poison_deaths, start.offset) == (107, 2, 105)
    assert start.poison == "2 workers died (SIGKILL) with offset 107 in hand"


def test_a_record_that_was_found_while_another_waits_for_its_letter_is_told_beside_it(stage: Stage) -> None:
    stage.give(0)
    for killer in (107, 107, 109, 109):
        handle(stage, 0, 105, {106}, {killer})
        next_life(stage)
    start = stage.start_of(0)
    assert (start.poison_offset, [(each.offset, each.deaths) for each in start.more_poison]) == (109, [(107, 2)])
    assert start.more_poison[0].why == "2 workers died (SIGKILL) with offset 107 in hand"
    handle(stage, 0, 108, (), ())
    start = next_life(stage)
    assert (start.poison_offset, start.more_poison) == (109, []), "its letter is delivered"


def test_a_death_that_a_record_shares_with_others_never_makes_it_poison(stage: Stage) -> None:
    stage.give(0)
    for _ in range(5):
        handle(stage, 0, 105, (), {105, 107})
        assert next_life(stage).poison == ""
    handle(stage, 0, 105, (), {105})
    assert next_life(stage).poison == "", "somebody has killed that one worker, perhaps"


def test_a_record_that_kills_while_its_outputs_are_on_their_way_is_poison(stage: Stage) -> None:
    stage.give(0)
    for _ in range(2):
        start = handle(stage, 0, 105, (), ())
        stage.workers[0].ledger.in_hand(start.slot).mark(107)
        next_life(stage)
    assert stage.start_of(0).poison == "2 workers died (SIGKILL) with offset 107 handled and its outputs not delivered"


def test_records_of_two_partitions_are_suspects_of_the_same_death(stage: Stage) -> None:
    stage.give(0, 1)
    for _ in range(2):
        handle(stage, 0, 100, (), {100})
        handle(stage, 1, 100, (), {100})
        next_life(stage)
    assert stage.start_of(0).poison == ""
    assert stage.start_of(0).suspects == stage.start_of(1).suspects == [100]


def test_a_worker_killed_for_the_record_it_had_for_too_long_blames_no_other(stage: Stage) -> None:
    stage = Stage(max_crashes=1, poison_halts=False)
    stage.give(0)
    handle(stage, 0, 105, (), {105, 106, 107})
    stage.workers[0].killed_by_us, stage.workers[0].blamed = "took too long", frozenset({ZERO})
    start = next_life(stage)
    assert (start.poison_offset, start.suspects) == (105, [])


def test_with_on_failure_halt_poison_halts_its_partition_and_what_is_done_is_kept() -> None:
    stage = Stage(max_crashes=1)
    stage.give(0)
    handle(stage, 0, 105, {106}, {107})
    stage.die()
    assert stage.state(0) is PartitionState.HALTED
    assert stage.assignment.table[ZERO].done.offsets() == {106}


def test_a_partition_that_a_person_puts_elsewhere_forgets_what_was_done_and_the_broker_is_told_so(stage: Stage) -> None:
    stage.give(0)
    handle(stage, 0, 105, {107}, ())
    table = stage.assignment.table
    table.committed(ZERO, table.consumed()[ZERO])
    stage.die()
    table[ZERO].begin_at(Position(105))
    assert table.consumed() == {ZERO: Position(105)}, "the same offset, without what lies beyond"
    stage.revive()
    assert stage.start_of(0).done == ""
