"""Grants, hand-outs and take-backs, with real ledgers and workers that are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from uuid import UUID

import pytest

from kunicorn.group.states import PartitionEvent, PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import HAND_OFFSET
from kunicorn.ipc.messages import (
    DrainOver,
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    Ping,
    StopFetcher,
    Stopped,
)
from kunicorn.positions import NO_OFFSET, Position, TopicPartition
from kunicorn.supervisor.workers.process import FENCED
from tests.fakes.driver import until
from tests.fakes.stage import PlayedTopics, Stage, consumed, tps


@pytest.fixture
def stage() -> Stage:
    return Stage()


class CreatedTopic:
    """The topic of all partitions: its id is another one whenever it is created anew."""

    def __init__(self) -> None:
        self.id = UUID(int=1)

    def create_anew(self) -> None:
        self.id = UUID(int=self.id.int + 1)


@pytest.fixture
def topic(stage: Stage) -> CreatedTopic:
    created = CreatedTopic()
    stage.topics.topic_id = lambda _: created.id
    return created


_NEXT_YEAR = clock.now_ns() + 365 * 24 * 3600 * clock.NANOSECONDS


async def drained(stage: Stage, partitions: Collection[int], seconds: float = 5.0) -> asyncio.Task[None]:
    now = clock.now()
    task = asyncio.create_task(stage.assignment.revoke(tps(*partitions), now + seconds, now + seconds + 1))
    await asyncio.sleep(0)
    return task


async def lost(stage: Stage, number: int) -> asyncio.Task[None]:
    now = clock.now()
    task = asyncio.create_task(stage.assignment.lose(tps(number), now + 5, now + 6))
    await asyncio.sleep(0)
    return task


async def renewed(stage: Stage, number: int) -> asyncio.Task[None]:
    now = clock.now()
    task = asyncio.create_task(stage.assignment.renew(tps(number), now + 5, now + 6))
    await asyncio.sleep(0)
    return task


async def created_anew_while_ours(stage: Stage, topic: CreatedTopic) -> None:
    """Partition 0 was handled up to 105 when its topic was created anew."""
    stage.give(0)
    start = stage.start_of(0)
    topic.create_anew()
    renewing = await renewed(stage, 0)
    stage.stopped(start, 105)
    await renewing


@pytest.mark.parametrize("how", ["deleted", "created anew"])
async def test_where_workers_commit_a_partition_of_a_topic_that_is_gone_is_given_up_and_the_others_drain(
    how: str,
) -> None:
    ids = {"orders": UUID(int=1), "gone": UUID(int=2)}
    gone: set[str] = set()
    stage = Stage(topics=PlayedTopics(ids.get, gone.__contains__))
    stage.assignment.table.workers_commit = True
    of_gone, other = TopicPartition("gone", 0), TopicPartition("orders", 0)
    stage.assignment.assign([of_gone, other])
    stage.assignment.resolved({tp: Position(100, 3) for tp in (of_gone, other)}, {})
    starts = stage.workers[0].starts()
    if how == "deleted":
        gone.add("gone")
    else:
        ids["gone"] = UUID(int=3)
    now = clock.now()
    revoking = asyncio.create_task(stage.assignment.revoke([of_gone, other], now + 5, now + 6))
    await asyncio.sleep(0)
    stops = {
        grant: each.lost for each in stage.workers[0].told if isinstance(each, StopFetcher) for grant in each.grants
    }
    assert stops == {starts[of_gone].grant: True, starts[other].grant: False}
    for start in starts.values():
        stage.stopped(start, 105)
    await revoking
    assert of_gone not in stage.assignment.table
    assert stage.assignment.table[other].state is PartitionState.RELEASED


async def test_where_workers_commit_a_topic_that_turns_out_to_be_deleted_while_it_drains_is_given_up_then() -> None:
    """Brokers with the consumer protocol take its partitions away before our metadata says why."""
    deleted = False
    topics = PlayedTopics(is_gone=lambda _: deleted)
    stage = Stage(topics=topics)
    stage.assignment.table.workers_commit = True
    stage.give(0)
    revoking = await drained(stage, [0])
    told = stage.workers[0].told
    assert [each.lost for each in told if isinstance(each, StopFetcher)] == [False]
    deleted = True
    stage.assignment.table.changed.notify()
    await until(lambda: topics.doubts and [each.lost for each in told if isinstance(each, StopFetcher)][-1])
    stage.stopped(stage.start_of(0), 105)
    await revoking
    assert stage.assignment.table == {}


@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
async def test_where_workers_commit_a_partition_that_may_be_read_again_goes_on_where_the_brokers_say(
    paused: bool,
) -> None:
    """The last transaction with its offset may have been committed behind its worker's report."""
    stage = Stage()
    stage.assignment.table.workers_commit = True
    stage.give(0)
    partition, start = stage.assignment.table[tps(0)[0]], stage.start_of(0)
    stage.workers[0].consume(start, 105)
    if paused:
        partition.read_ledger()
        partition.advance(PartitionEvent.PAUSE, "by a person")
    stage.assignment.worker_failed(stage.workers[0], Failed(start.grant, FailureKind.DENIED, 105, 3, "no right"))
    await asyncio.sleep(0)
    stage.resolving.clear()
    stage.assignment.resume([partition], "the right is back")
    assert stage.resolving == [partition]
    stage.assignment.resolved({partition.tp: Position(107, 3)}, {partition.tp: 107})
    assert stage.start_of(0).offset == 107


async def test_where_the_supervisor_commits_a_partition_of_a_deleted_topic_drains_as_any_other(stage: Stage) -> None:
    stage.give(0)
    stage.topics.is_gone = lambda _: True
    revoking = await drained(stage, [0])
    (stop,) = (each for each in stage.workers[0].told if isinstance(each, StopFetcher))
    assert not stop.lost, "its outputs are delivered"
    stage.stopped(stage.start_of(0), 105)
    await revoking


def test_a_partition_is_handed_out_from_its_start_offset_under_a_grant_of_its_own(stage: Stage) -> None:
    stage.give(0, 1)
    zero, one = stage.start_of(0), stage.start_of(1)
    assert (zero.offset, zero.leader_epoch) == (100, 3)
    assert zero.grant != one.grant
    assert zero.slot != one.slot


def test_a_partition_without_a_start_offset_is_not_handed_out(stage: Stage) -> None:
    stage.assignment.assign(tps(0))
    stage.assignment.distribute()
    assert stage.workers[0].told == []
    assert stage.state(0) is PartitionState.RESOLVING


def test_it_runs_once_the_ledger_shows_that_the_worker_opened_the_slot(stage: Stage) -> None:
    stage.give(0)
    assert stage.state(0) is PartitionState.STARTING
    stage.workers[0].consume(stage.start_of(0), 100)
    stage.assignment.worker_reported(stage.workers[0])
    assert stage.state(0) is PartitionState.RUNNING


def test_invariant_1_what_is_committable_is_what_the_ledger_says_and_never_an_unfinished_record(stage: Stage) -> None:
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 107, in_hand=3)
    assert consumed(stage) == {0: 107}
    stage.assignment.table.committed(TopicPartition("orders", 0), Position(107))
    assert consumed(stage) == {}


def test_invariant_3_a_late_report_under_an_old_grant_is_refused(stage: Stage) -> None:
    stage.give(0)
    old = stage.start_of(0)
    stage.workers[0].consume(old, 120)
    stage.stopped(old, 120)
    new = stage.start_of(0)
    assert new.grant != old.grant
    stage.stopped(old, 999)
    assert consumed(stage) == {0: 120}
    assert stage.state(0) is PartitionState.STARTING


def test_invariant_3_a_report_by_another_worker_under_the_current_grant_is_refused() -> None:
    stage = Stage(workers=2)
    stage.give(0, 1)
    start = stage.start_of(0, 0) if TopicPartition("orders", 0) in stage.workers[0].starts() else stage.start_of(1, 0)
    stage.assignment.worker_stopped(stage.workers[1], FetcherStopped([Stopped(start.grant, 999, 3)]))
    assert 999 not in consumed(stage).values()


def test_invariant_6_a_killed_worker_goes_on_in_its_successor_at_the_record_in_hand(stage: Stage) -> None:
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 142, in_hand=1)
    assert stage.die_and_revive()
    assert stage.start_of(0).offset == 142


def test_a_worker_that_died_before_it_opened_the_slot_repeats_from_the_start_offset(stage: Stage) -> None:
    stage.give(0)
    assert not stage.die_and_revive()
    assert stage.start_of(0).offset == 100


def test_the_second_death_with_the_same_record_in_hand_halts_that_partition_alone(stage: Stage) -> None:
    stage.give(0, 1)
    for _ in range(2):
        stage.workers[0].consume(stage.start_of(0), 150, in_hand=1)
        stage.workers[0].consume(stage.start_of(1), 160)
        stage.die_and_revive()
    assert stage.state(0) is PartitionState.HALTED
    assert stage.start_of(1).offset == 160
    assert stage.assignment.table[TopicPartition("orders", 0)].reason is not None


def die_with(stage: Stage, offset: int, in_hand: int, times: int) -> FetcherStart:
    """So many workers die with these in hand; what the next one is told."""
    for _ in range(times):
        stage.workers[0].consume(stage.start_of(0), offset, in_hand=in_hand)
        stage.die_and_revive()
    return stage.start_of(0)


def die_in_run(stage: Stage, offset: int, run: tuple[int, int], records: int) -> FetcherStart:
    """A worker dies that is at `offset` of a run: of so many records from the one to before the other offset."""
    worker, start = stage.workers[0], stage.start_of(0)
    worker.consume(start, offset, in_hand=records, end=run[1])
    worker.ledger.cells[worker.ledger.index(start.slot) + HAND_OFFSET] = run[0]
    stage.die_and_revive()
    return stage.start_of(0)


def test_where_records_are_not_to_halt_the_third_worker_is_told_which_one_killed_two() -> None:
    stage = Stage(poison_halts=False)
    stage.give(0)
    assert die_with(stage, 150, 700, times=1).poison == ""
    start = die_with(stage, 150, 700, times=1)
    assert (start.offset, start.poison_deaths) == (150, 2)
    assert start.poison == "2 workers died (SIGKILL) with offset 150 in hand"


def test_deaths_with_a_record_behind_a_gap_are_its_own_wherever_the_gap_begins() -> None:
    """The first worker had 150 and 152 in hand, and says 151 of the second one; the next worker says 152."""
    stage = Stage(poison_halts=False)
    stage.give(0)
    assert die_in_run(stage, 151, run=(150, 153), records=2).poison == ""
    start = die_in_run(stage, 151, run=(152, 153), records=1)
    assert (start.offset, start.poison_offset, start.poison_deaths) == (151, 152, 2)


def test_a_record_that_was_compacted_away_meanwhile_leaves_its_death_to_no_other() -> None:
    stage = Stage(poison_halts=False)
    stage.give(0)
    die_in_run(stage, 151, run=(151, 155), records=3)
    assert die_in_run(stage, 151, run=(152, 155), records=2).poison == ""


def test_a_death_behind_a_gap_within_a_run_has_the_next_record_tried_before_any_is_kept_from_the_handler() -> None:
    """The worker is done with 150 and dies with the next of its chunk: 153, which may be compacted away by then."""
    stage = Stage(max_crashes=1, poison_halts=False)
    stage.give(0)
    start = die_in_run(stage, 151, run=(150, 155), records=3)
    assert (start.offset, start.poison) == (151, "")
    start = die_in_run(stage, 151, run=(153, 155), records=2)
    assert (start.poison_offset, start.poison_deaths) == (153, 1)


@pytest.mark.parametrize("max_crashes", [1, 2])
def test_where_each_worker_begins_before_the_run_the_record_behind_a_gap_is_found_all_the_same(
    max_crashes: int,
) -> None:
    """Its handler keeps offsets, and has stored none of the run's: 153 is never the first one of a run."""
    stage = Stage(max_crashes=max_crashes, poison_halts=False)
    stage.give(0)
    deaths = 0
    while not stage.start_of(0).poison and deaths < 10:
        singly = stage.start_of(0).singly_until > 153
        die_in_run(stage, 151, *(((153, 154), 1) if singly else ((100, 155), 53)))
        deaths += 1
    assert (deaths, stage.start_of(0).poison_offset) == (max_crashes + 1, 153)


def test_a_death_within_a_run_without_gaps_is_that_record_s_own() -> None:
    stage = Stage(max_crashes=1, poison_halts=False)
    stage.give(0)
    start = die_in_run(stage, 151, run=(150, 153), records=3)
    assert (start.poison_offset, start.poison_deaths) == (151, 1)


def test_a_record_behind_a_run_that_is_done_is_in_nobody_s_hand() -> None:
    """The last one of the run is stored, and the worker dies before it says that it has nothing in hand."""
    stage = Stage(max_crashes=1, poison_halts=False)
    stage.give(0)
    start = die_in_run(stage, 153, run=(150, 153), records=3)
    assert (start.offset, start.poison) == (153, "")


def test_behind_the_record_that_killed_workers_nothing_is_kept_from_the_handler() -> None:
    stage = Stage(poison_halts=False)
    stage.give(0)
    start = die_with(stage, 150, 1, times=2)
    stage.workers[0].consume(start, 151)
    stage.stopped(start, 151)
    assert stage.start_of(0).poison == ""


def test_a_batch_that_killed_workers_is_looked_through_record_by_record_for_the_one() -> None:
    stage = Stage(poison_halts=False, batches=True)
    stage.give(0)
    start = die_with(stage, 150, 5, times=2)
    assert (start.offset, start.poison, start.singly_until) == (150, "", 155)
    assert die_with(stage, 153, 1, times=1).poison == ""
    start = die_with(stage, 153, 1, times=1)
    assert (start.offset, start.poison) == (153, "2 workers died (SIGKILL) with offset 153 in hand")


def test_a_record_is_alone_in_its_batch_also_where_those_behind_it_are_done_already() -> None:
    """The batch ends behind 154: so far the position moves once 150 is done."""
    stage = Stage(poison_halts=False, batches=True)
    stage.give(0)
    for _ in range(2):
        stage.workers[0].consume(stage.start_of(0), 150, in_hand=1, end=155)
        stage.die_and_revive()
    assert stage.start_of(0).poison == "2 workers died (SIGKILL) with offset 150 in hand"


def test_a_record_of_a_batch_with_gaps_is_found_by_as_many_deaths_as_one_of_a_batch_without() -> None:
    """Compaction has left every tenth offset."""
    stage = Stage(poison_halts=False, batches=True)
    stage.give(0)
    offsets, killer, deaths = range(100, 1100, 10), 950, 0
    while not stage.start_of(0).poison:
        start = stage.start_of(0)
        batches = [offsets[at : at + 100] for at in range(0, len(offsets), 100)]
        if start.singly_until > start.offset:
            assert start.singly_until > killer, "what comes behind it is a batch again, with it among others"
            batches = [range(offset, offset + 1) for offset in offsets]
        batch = next(batch for batch in batches if killer in batch)
        stage.workers[0].consume(start, batch[0], in_hand=len(batch), end=batch[-1] + 1)
        stage.die_and_revive()
        deaths += 1
    assert deaths == 4
    assert stage.start_of(0).poison == "2 workers died (SIGKILL) with offset 950 in hand"


def test_workers_that_we_killed_say_nothing_against_their_record() -> None:
    stage = Stage(poison_halts=False)
    stage.give(0)
    for _ in range(3):
        stage.workers[0].killed_by_us = "did not exit in time"
        die_with(stage, 150, 1, times=1)
    assert stage.start_of(0).poison == ""


@pytest.mark.parametrize("poison_halts", [True, False])
def test_no_record_is_charged_with_a_worker_whose_producer_the_brokers_take_no_more(poison_halts: bool) -> None:
    stage = Stage(poison_halts=poison_halts)
    stage.give(0)
    for _ in range(5):
        stage.workers[0].consume(stage.start_of(0), 150, in_hand=1)
        assert stage.die(how=FENCED), "a record was in hand"
        stage.revive()
    assert stage.state(0) is PartitionState.STARTING
    start = stage.start_of(0)
    assert (start.offset, start.poison, start.suspects, start.singly_until) == (150, "", [], NO_OFFSET)


def test_two_deaths_at_different_records_halt_nothing(stage: Stage) -> None:
    stage.give(0)
    for offset in (150, 151, 152):
        stage.workers[0].consume(stage.start_of(0), offset, in_hand=1)
        stage.die_and_revive()
    assert stage.state(0) is PartitionState.STARTING


async def test_a_handler_that_gave_up_halts_the_partition_at_the_failing_record(stage: Stage) -> None:
    stage.give(0, 1)
    start = stage.start_of(0)
    stage.assignment.worker_failed(stage.workers[0], Failed(start.grant, FailureKind.HANDLER, 133, 3, "ValueError: no"))
    assert stage.state(0) is PartitionState.HALTED
    assert consumed(stage)[0] == 133
    assert stage.state(1) is PartitionState.STARTING


@pytest.mark.parametrize(("end", "then"), [(100, 134), (500, 500), (None, None)])
async def test_a_record_that_halts_its_partition_is_not_behind_the_logs_end(
    stage: Stage, end: int | None, then: int | None
) -> None:
    stage.give(0)
    start, partition = stage.start_of(0), stage.assignment.table[TopicPartition("orders", 0)]
    partition.end_seen(end, 0)
    stage.assignment.worker_failed(stage.workers[0], Failed(start.grant, FailureKind.HANDLER, 133, 3, "ValueError: no"))
    assert partition.log_end == then


async def test_after_a_reload_only_what_the_handler_has_halted_is_tried_again(stage: Stage) -> None:
    stage.give(0, 1, 2, 3)
    kinds = {0: FailureKind.HANDLER, 1: FailureKind.PARTITION, 2: FailureKind.HANDLER}
    for number, kind in kinds.items():
        start = stage.start_of(number)
        stage.assignment.worker_failed(stage.workers[0], Failed(start.grant, kind, 100, 3, "why"))
    assert [stage.state(number) for number in kinds] == [PartitionState.HALTED] * 3
    stage.resolving.clear()
    assert stage.assignment.code_replaced("tried again with revision 2") == 2
    assert [p.tp.partition for p in stage.resolving] == [0, 2]
    stage.resolve(0, 1, 2)
    assert [stage.state(number) for number in kinds] == [
        PartitionState.STARTING,
        PartitionState.HALTED,
        PartitionState.STARTING,
    ]
    assert stage.start_of(0).offset == 100
    assert stage.assignment.code_replaced("tried again with revision 3") == 0


@pytest.mark.parametrize(("kind", "doubts"), [(FailureKind.PARTITION, 1), (FailureKind.HANDLER, 0)])
async def test_brokers_that_refuse_a_partition_are_asked_for_its_topic_at_once(kind: FailureKind, doubts: int) -> None:
    """It may have been created anew: fetchers hear of that first, and metadata is asked for every five minutes."""
    topics = PlayedTopics()
    stage = Stage(topics=topics)
    stage.give(0)
    start = stage.start_of(0)
    stage.assignment.worker_failed(stage.workers[0], Failed(start.grant, kind, 100, 3, "created anew"))
    assert stage.state(0) is PartitionState.HALTED
    assert topics.doubts == doubts


def test_a_record_that_killed_workers_is_tried_again_with_the_deaths_of_a_new_one(stage: Stage) -> None:
    stage.give(0)
    for _ in range(2):
        stage.workers[0].consume(stage.start_of(0), 100, in_hand=1)
        stage.die_and_revive()
    assert stage.state(0) is PartitionState.HALTED
    assert stage.assignment.code_replaced("tried again with revision 2") == 1
    stage.resolve(0)
    stage.workers[0].consume(stage.start_of(0), 100, in_hand=1)
    stage.die_and_revive()
    assert stage.state(0) is PartitionState.STARTING


async def test_an_offset_out_of_range_is_resolved_anew_and_not_halted(stage: Stage) -> None:
    stage.give(0)
    stage.resolving.clear()
    report = Failed(stage.start_of(0).grant, FailureKind.OUT_OF_RANGE, 100, 3, "Offset out of range")
    stage.assignment.worker_failed(stage.workers[0], report)
    await asyncio.sleep(0)
    assert stage.state(0) is PartitionState.RESOLVING
    assert [p.tp.partition for p in stage.resolving] == [0]


async def test_invariant_3_a_position_outside_the_log_is_not_committed_behind_the_one_that_takes_its_place(
    stage: Stage,
) -> None:
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 102)
    assert consumed(stage) == {0: 102}
    report = Failed(stage.start_of(0).grant, FailureKind.OUT_OF_RANGE, 102, 3, "Offset out of range")
    stage.assignment.worker_failed(stage.workers[0], report)
    await asyncio.sleep(0)
    assert consumed(stage) == {}


async def test_a_position_outside_the_log_is_handed_out_as_the_one_to_take_until_a_worker_has_taken_it(
    stage: Stage,
) -> None:
    stage.give(0)
    assert not stage.start_of(0).reset
    report = Failed(stage.start_of(0).grant, FailureKind.OUT_OF_RANGE, 100, 3, "Offset out of range")
    stage.assignment.worker_failed(stage.workers[0], report)
    stage.resolve(0)
    again = stage.start_of(0)
    assert again.reset, "a handler that keeps offsets would give the old one for ever"
    stage.workers[0].consume(again, 101)
    stage.stopped(again, 101)
    assert not stage.start_of(0).reset


def test_nothing_is_committed_of_a_topic_whose_handler_keeps_its_offsets(stage: Stage) -> None:
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 110)
    assert consumed(stage) == {0: 110}
    stage.in_force.keeps_offsets = lambda topic: topic == "orders"
    assert consumed(stage) == {}


async def test_a_revoke_waits_for_the_record_in_hand_and_leaves_the_final_offset_to_commit(stage: Stage) -> None:
    stage.give(0)
    start = stage.start_of(0)
    stage.workers[0].consume(start, 110, in_hand=1)
    revoke = await drained(stage, [0])
    assert stage.workers[0].asked_to_stop() == [start.grant]
    assert not revoke.done()
    stage.workers[0].consume(start, 111)
    stage.stopped(start, 111)
    await revoke
    assert stage.state(0) is PartitionState.RELEASED
    assert consumed(stage) == {0: 111}
    stage.assignment.forget(tps(0))
    assert stage.assignment.table == {}


async def test_a_revoke_of_partitions_in_no_workers_hands_completes_at_once(stage: Stage) -> None:
    stage.assignment.assign(tps(0))
    stage.pool.workers.clear()
    stage.give(1)
    await asyncio.wait_for(await drained(stage, [0, 1]), 60)
    assert stage.state(0) is stage.state(1) is PartitionState.RELEASED


async def test_a_revoke_does_not_touch_the_partitions_that_stay(stage: Stage) -> None:
    stage.give(0, 1)
    revoke = await drained(stage, [0])
    assert stage.workers[0].asked_to_stop() == [stage.start_of(0).grant]
    stage.stopped(stage.start_of(0), 100)
    await revoke
    assert stage.state(1) is PartitionState.STARTING


async def test_a_worker_that_does_not_let_go_meets_the_ladder_and_the_partition_is_said_to_be_stuck(
    stage: Stage,
) -> None:
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 110, in_hand=1)
    now = clock.now()
    await stage.assignment.revoke(tps(0), now + 0.05, now + 0.1)
    assert stage.pool.escalated == [0]
    assert stage.state(0) is PartitionState.STUCK


async def test_only_what_is_in_hand_of_a_partition_whose_drain_budget_is_over_is_to_be_interrupted(
    stage: Stage,
) -> None:
    """Others of the same worker have longer budgets, or move to another worker without one."""
    stage.give(0, 1, 2, 3)
    worker, meant = stage.workers[0], stage.start_of(0)
    for number in range(4):
        worker.consume(stage.start_of(number), 110, in_hand=1)
    later = await drained(stage, [1])
    stage.assignment.table[tps(2)[0]].halt("by a person")
    stage.assignment.drain([stage.assignment.table[tps(2)[0]]])
    now = clock.now()
    revoke = asyncio.create_task(stage.assignment.revoke(tps(0, 3), now + 0.05, now + 0.1))
    await asyncio.sleep(0)
    stage.stopped(stage.start_of(3), 111)
    await revoke
    assert [message for message in worker.told if isinstance(message, DrainOver)] == [DrainOver([meant.grant])]
    later.cancel()


@pytest.mark.scenario("0106 do_test_commit_on_lost")
async def test_what_is_lost_is_stopped_and_never_committed(stage: Stage) -> None:
    stage.give(0)
    start = stage.start_of(0)
    stage.workers[0].consume(start, 130, in_hand=1)
    losing = await lost(stage, 0)
    assert stage.workers[0].asked_to_stop() == [start.grant]
    assert consumed(stage) == {}
    stage.stopped(start, 131)
    await losing
    assert consumed(stage) == {}
    assert stage.assignment.table == {}


async def test_invariant_4_a_worker_has_the_lease_again_when_it_has_read_what_was_lost(stage: Stage) -> None:
    stage.give(0)
    start, worker = stage.start_of(0), stage.workers[0]
    worker.extend_lease(_NEXT_YEAR)
    worker.ping()
    (before,) = worker.pings()
    losing = await lost(stage, 0)
    _, behind = worker.pings()
    assert worker.told.index(Ping(behind)) > next(
        at for at, said in enumerate(worker.told) if isinstance(said, StopFetcher)
    )
    assert worker.ledger.lease_ns <= clock.now_ns(), "it sees that at once, and the pipe later"
    worker.extend_lease(_NEXT_YEAR + 1)
    worker.answer(before)
    assert worker.ledger.lease_ns <= clock.now_ns(), "what was asked before was answered before"
    worker.answer(behind)
    assert worker.ledger.lease_ns == _NEXT_YEAR + 1
    worker.extend_lease(_NEXT_YEAR + 2)
    assert worker.ledger.lease_ns == _NEXT_YEAR + 2
    stage.stopped(start, 100)
    await losing


async def test_what_is_revoked_or_of_a_topic_created_anew_is_no_other_members_yet_and_costs_no_lease(
    stage: Stage, topic: CreatedTopic
) -> None:
    stage.give(0, 1)
    worker = stage.workers[0]
    worker.extend_lease(_NEXT_YEAR)
    starts = [stage.start_of(number) for number in range(2)]
    revoking = await drained(stage, [0])
    topic.create_anew()
    renewing = await renewed(stage, 1)
    assert worker.ledger.lease_ns == _NEXT_YEAR
    for start in starts:
        stage.stopped(start, 100)
    await asyncio.gather(revoking, renewing)


async def test_what_is_lost_is_forgotten_when_its_worker_dies_with_it(stage: Stage) -> None:
    stage.give(0, 1)
    stage.workers[0].consume(stage.start_of(0), 130, in_hand=1)
    losing = await lost(stage, 0)
    stage.die()
    await losing
    assert list(stage.assignment.table) == tps(1)


async def test_a_lost_partition_that_its_worker_clings_to_meets_the_ladder_too(stage: Stage) -> None:
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 130, in_hand=1)
    now = clock.now()
    await stage.assignment.lose(tps(0), now + 0.05, now + 0.1)
    assert stage.pool.escalated == [0]


@pytest.mark.scenario("testFencedMemberStopHeartbeatUntilItReleasesAssignmentToRejoin")
async def test_invariant_4_a_lost_partition_that_comes_back_waits_until_its_old_worker_lets_go(stage: Stage) -> None:
    stage.give(0)
    old = stage.start_of(0)
    stage.workers[0].consume(old, 130, in_hand=1)
    losing = await lost(stage, 0)
    stage.resolving.clear()
    stage.assignment.assign(tps(0))
    assert stage.resolving == []
    stage.stopped(old, 131)
    await losing
    assert [p.tp.partition for p in stage.resolving] == [0]
    stage.resolve(0)
    assert stage.start_of(0).grant != old.grant
    assert stage.start_of(0).offset == 100, "the broker's committed offset counts, not what a lost worker did"


def test_a_new_worker_takes_its_share_and_a_moving_partition_is_handed_over_at_its_exact_offset() -> None:
    stage = Stage(workers=1)
    stage.give(0, 1)
    for number in (0, 1):
        stage.workers[0].consume(stage.start_of(number), 110 + number)
    stage.revive(1)
    (moving,) = stage.workers[0].asked_to_stop()
    number = next(n for n in (0, 1) if stage.start_of(n).grant == moving)
    assert stage.workers[1].starts() == {}, "not before the old worker let go (invariant 4)"
    stage.stopped(stage.start_of(number), 150)
    assert stage.start_of(number, worker=1).offset == 150


def test_ledger_slots_are_reused_only_after_the_grant_is_over(stage: Stage) -> None:
    stage.give(0, 1)
    slots = {stage.start_of(0).slot, stage.start_of(1).slot}
    stage.stopped(stage.start_of(0), 100)
    assert stage.start_of(0).slot in slots
    assert stage.start_of(0).slot != stage.start_of(1).slot


async def test_a_partition_that_leaves_while_its_topic_is_created_anew_is_not_taken_up_again(stage: Stage) -> None:
    stage.give(0)
    start = stage.start_of(0)
    leaving = await drained(stage, [0])
    renewing = await renewed(stage, 0)
    stage.stopped(start, 105)
    await asyncio.gather(leaving, renewing)
    assert stage.state(0) is None, "it is another member's"


async def test_a_partition_that_was_lost_and_came_back_goes_on_where_its_topic_was_committed_by_others(
    stage: Stage, topic: CreatedTopic
) -> None:
    """Its topic was created anew before, and a worker still had a record of the old one in hand."""
    stage.give(0)
    start = stage.start_of(0)
    topic.create_anew()
    renewing = await renewed(stage, 0)
    losing = await lost(stage, 0)
    stage.assignment.assign(tps(0))
    stage.stopped(start, 105)
    await asyncio.gather(renewing, losing)
    assert stage.state(0) is PartitionState.RESOLVING
    assert not stage.resolving[-1].fresh, "it does not begin with the topic: another member may have"


async def test_what_a_worker_clung_to_goes_on_where_others_committed_when_it_comes_back(
    stage: Stage, topic: CreatedTopic
) -> None:
    stage.give(0)
    topic.create_anew()
    await stage.assignment.renew(tps(0), clock.now(), clock.now())
    assert stage.state(0) is PartitionState.STUCK
    await stage.assignment.revoke(tps(0), clock.now(), clock.now())
    stage.assignment.forget(tps(0))
    stage.assignment.assign(tps(0))
    stage.die()
    assert stage.state(0) is PartitionState.RESOLVING
    assert not stage.resolving[-1].fresh


async def test_one_whose_topic_was_created_anew_while_it_stayed_ours_begins_with_the_topic(
    stage: Stage, topic: CreatedTopic
) -> None:
    await created_anew_while_ours(stage, topic)
    assert stage.resolving[-1].fresh


async def test_of_a_topic_that_was_created_anew_a_handler_that_keeps_offsets_is_told_the_start_until_a_worker_has_it(
    stage: Stage, topic: CreatedTopic
) -> None:
    """What it has stored is of the topic that was deleted: as many records of the new one would be passed over."""
    await created_anew_while_ours(stage, topic)
    stage.resolve(0)
    untold = stage.start_of(0)
    assert untold.reset
    stage.die_and_revive()
    begun = stage.start_of(0)
    assert (begun.grant > untold.grant, begun.reset) == (True, True)
    stage.workers[0].consume(begun, 101)
    stage.stopped(begun, 101)
    assert not stage.start_of(0).reset


async def test_one_that_had_not_begun_when_its_topic_was_created_anew_goes_on_where_it_is_committed(
    stage: Stage, topic: CreatedTopic
) -> None:
    """Our metadata was behind that of the others: it was a partition of the new topic when it came to us."""
    stage.assignment.assign(tps(0))
    topic.create_anew()
    await stage.assignment.renew(tps(0), clock.now() + 60, clock.now() + 60)
    assert (stage.state(0), stage.resolving[-1].fresh) == (PartitionState.RESOLVING, False)


async def test_one_that_is_to_begin_with_its_topic_does_so_though_the_topic_is_created_anew_once_more(
    stage: Stage, topic: CreatedTopic
) -> None:
    await created_anew_while_ours(stage, topic)
    topic.create_anew()
    await stage.assignment.renew(tps(0), clock.now() + 60, clock.now() + 60)
    assert stage.resolving[-1].fresh


async def test_one_that_is_to_begin_with_its_topic_does_so_though_it_is_taken_away_and_given_back_before_it_begins(
    stage: Stage, topic: CreatedTopic
) -> None:
    await created_anew_while_ours(stage, topic)
    await drained(stage, [0])
    stage.assignment.assign(tps(0))
    stage.assignment.forget(tps(0))
    assert stage.resolving[-1].fresh
