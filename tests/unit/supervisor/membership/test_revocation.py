"""The revoke hook: what it waits for, what it commits, and what it says of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import HAND_OFFSET
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.membership.revoke import Revocation
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from tests.fakes.complete_settings import settings_of
from tests.fakes.stage import Stage, consumed, tps
from tests.fakes.virtual_loop import Teller, in_virtual_time, with_scene

SETTINGS = settings_of(group={"drain_timeout_ms": 10_000, "commit_timeout_ms": 3000, "max_poll_interval_ms": 60_000})


class World:
    """One worker with partitions 0 and 1, which start at 100. A `CommitTarget`."""

    def __init__(self) -> None:
        self.may_commit = True
        self.stage = Stage(workers=1)
        self.stage.give(0, 1)
        table = self.stage.assignment.table
        self.commits = OffsetCommitter(self, table.consumed, table.committed, Metrics())
        self.revocation = Revocation(SETTINGS, self.stage.assignment, self.commits, Metrics())
        self.committed: dict[int, int] = {}
        self.refused: list[int] = []
        self.error: int | None = 0
        """What commits are answered with; None: they go unanswered after a second."""
        self.stuck_for = 0.0
        """Seconds until the next commit is given up, unanswered."""

    @property
    def changed(self) -> Notifier:
        return self.stage.assignment.table.changed

    def _coordinator_is_known(self) -> None:
        self.may_commit = True
        self.changed.notify()

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        if self.stuck_for:
            wait, self.stuck_for = self.stuck_for, 0.0
            await asyncio.sleep(wait)
            self.may_commit = False  # the coordinator is looked up
            asyncio.get_running_loop().call_later(1.0, self._coordinator_is_known)
            raise PeerError("unanswered")
        if self.error is None:
            await asyncio.sleep(1.0)
            raise PeerError("unanswered")
        if self.error:
            return CommitAnswer(dict.fromkeys(offsets, self.error))
        self.committed |= {tp.partition: position.offset for tp, position in offsets.items()}
        return CommitAnswer(dict.fromkeys(offsets, 0))

    def commit_refused(self, error: int) -> None:
        self.refused.append(error)

    def is_gone(self, topic: str) -> bool:
        raise AssertionError(topic)

    def escalate(self, how: Callable[..., Awaitable[None]]) -> None:
        """What happens to whoever still has something in hand when the drain budget is over."""
        pool: Any = self.stage.pool
        pool.escalate = how

    def consume(self, number: int, offset: int, in_hand: int = 0) -> None:
        self.stage.workers[0].consume(self.stage.start_of(number), offset, in_hand=in_hand)

    def comes_back_after(self, seconds: float) -> None:
        """The coordinator is away for so long."""
        self.may_commit = False
        asyncio.get_running_loop().call_later(seconds, self._coordinator_is_known)

    async def revoked(self) -> float:
        """Partition 0, of which 110 is the position, is revoked, and drains at once; how long that takes."""
        began = clock.now()
        self.consume(0, 110)
        revoking = asyncio.create_task(self.revocation.revoke(tuple(tps(0)), lambda: False))
        await asyncio.sleep(0.1)
        self.stage.stopped(self.stage.start_of(0), 110)
        await revoking
        return clock.now() - began


def _play(story: Callable[[World], Any], _: object) -> None:
    async def whole() -> None:
        await story(World())

    in_virtual_time(whole, sockets=False)


told: Teller[World] = with_scene(_play)
"""Tests of a world of their own."""


@pytest.mark.parametrize("cooperative", [True, False])
@told
async def test_invariant_4_a_partition_that_cannot_be_taken_from_its_worker_stays_owned_where_it_can_be_named(
    world: World, cooperative: bool
) -> None:
    world.consume(0, 110, in_hand=1)
    held, rest = await world.revocation.revoke(tuple(tps(0)), lambda: cooperative)
    assert world.stage.state(0) is PartitionState.STUCK
    assert held == (frozenset(tps(0)) if cooperative else frozenset())
    if rest is not None:
        await rest
    assert world.committed == {0: 110}


@pytest.mark.parametrize("ends", ["dies", "lets go"])
@told
async def test_invariant_3_nothing_that_a_worker_does_beyond_the_rebalance_timeout_is_committed(
    world: World, ends: str
) -> None:
    world.consume(0, 110, in_hand=1)
    await world.revocation.revoke(tuple(tps(0)), lambda: False)
    start = world.stage.start_of(0)
    world.consume(0, 111)
    assert consumed(world.stage) == {}
    if ends == "dies":
        world.stage.die()
    else:
        world.stage.stopped(start, 112)
    assert consumed(world.stage) == {}
    assert tps(0)[0] not in world.stage.assignment.table


@told
async def test_invariant_7_a_partition_that_comes_back_is_taken_up_when_the_worker_that_clung_to_it_is_gone(
    world: World,
) -> None:
    world.consume(0, 110, in_hand=1)
    await world.revocation.revoke(tuple(tps(0)), lambda: False)
    world.stage.resolving.clear()
    world.stage.assignment.assign(tps(0))
    assert world.stage.state(0) is PartitionState.STUCK
    world.stage.die()
    assert [partition.tp for partition in world.stage.resolving] == tps(0)
    world.stage.revive()
    world.stage.resolve(0)
    world.consume(0, 120)
    assert consumed(world.stage) == {0: 120}


@told
async def test_what_came_back_before_it_was_seen_off_does_not_count_as_left_uncommitted(world: World) -> None:
    """It was lost while it drained, and was assigned again: it goes on here, with its own offsets."""
    stage = world.stage
    world.consume(0, 110, in_hand=1)
    world.may_commit = False
    revoking = asyncio.create_task(world.revocation.revoke(tuple(tps(0, 1)), lambda: False))
    await asyncio.sleep(1.0)
    losing = asyncio.create_task(world.revocation.lose(tuple(tps(0, 1))))
    await asyncio.sleep(1.0)
    before = world.revocation.uncommitted
    for start in (stage.start_of(0), stage.start_of(1)):
        stage.stopped(start, 111)
    stage.give(0, 1)
    world.consume(0, 150, in_hand=1)
    await asyncio.gather(losing, revoking)
    assert world.revocation.uncommitted == before
    assert stage.state(0) is PartitionState.RUNNING


@told
async def test_a_hand_over_tries_to_commit_even_where_a_commit_that_is_stuck_takes_all_of_its_time(
    world: World,
) -> None:
    world.consume(0, 110)
    world.stuck_for = 5.0
    timer = asyncio.create_task(world.commits.commit_every(1.0))
    await asyncio.sleep(1.5)
    world.consume(0, 120)
    revoking = asyncio.create_task(world.revocation.revoke(tuple(tps(0)), lambda: False))
    await asyncio.sleep(0.1)
    world.stage.stopped(world.stage.start_of(0), 120)
    await revoking
    timer.cancel()
    assert world.committed == {0: 120}
    assert world.revocation.uncommitted == 0


@pytest.mark.parametrize("end", ["interrupted", "killed"])
@told
async def test_invariant_8_a_record_that_was_not_handled_to_its_end_is_none_that_was_left_uncommitted(
    world: World, end: str
) -> None:
    async def escalate(*_: Any) -> None:
        if end == "killed":
            world.stage.die()
        else:
            start = world.stage.start_of(0)
            world.consume(0, 110)
            world.stage.stopped(start, 110)

    world.escalate(escalate)
    world.consume(0, 110, in_hand=1)
    world.revocation.begin_leaving()
    await world.revocation.revoke(tuple(tps(0)), lambda: False)
    assert (world.committed, world.revocation.uncommitted) == ({0: 110}, 0)


@pytest.mark.parametrize("ordering", ["partition", "key"])
@pytest.mark.parametrize("transactions", [False, True])
@pytest.mark.parametrize("handled", [0, 1])
@told
async def test_invariant_8_what_is_handled_and_not_delivered_when_its_worker_is_killed_counts_as_uncommitted(
    world: World, ordering: str, transactions: bool, handled: int
) -> None:
    async def escalate(*_: Any) -> None:
        world.stage.die()

    world.escalate(escalate)
    world.stage.assignment.table.workers_commit = transactions
    ledger, start = world.stage.workers[0].ledger, world.stage.start_of(0)
    if ordering == "key":
        ledger.use_marks(start.slot)
        world.consume(0, 110, in_hand=1)
        for offset in range(110, 111 + handled):
            ledger.in_hand(start.slot).mark(offset)
    else:
        ledger.use_runs(start.slot, delivered=True)
        world.consume(0, 110, in_hand=1)
        ledger.cells[ledger.index(start.slot) + HAND_OFFSET] = 110 + handled
    world.revocation.begin_leaving()
    await world.revocation.revoke(tuple(tps(0)), lambda: False)
    assert world.revocation.uncommitted == handled


@pytest.mark.parametrize(("offset", "uncommitted"), [(100, 0), (101, 1)])
@told
async def test_invariant_8_a_record_that_goes_on_to_its_end_when_its_partition_is_lost_counts_as_uncommitted(
    world: World, offset: int, uncommitted: int
) -> None:
    world.consume(0, 100, in_hand=1)
    world.revocation.begin_leaving()
    revoking = asyncio.create_task(world.revocation.revoke(tuple(tps(0, 1)), lambda: False))
    await asyncio.sleep(1.0)
    losing = asyncio.create_task(world.revocation.lose(tuple(tps(0, 1))))
    await asyncio.sleep(1.0)
    start = world.stage.start_of(0)
    world.consume(0, offset)
    world.stage.stopped(start, offset)
    await asyncio.gather(losing, revoking)
    assert world.revocation.uncommitted == uncommitted


@told
async def test_invariant_8_what_a_worker_that_died_long_ago_had_not_delivered_is_handled_here_again(
    world: World,
) -> None:
    ledger, start = world.stage.workers[0].ledger, world.stage.start_of(0)
    ledger.use_runs(start.slot, delivered=True)
    world.consume(0, 110)
    ledger.cells[ledger.index(start.slot) + HAND_OFFSET] = 120
    world.stage.die_and_revive()
    world.consume(0, 120)
    world.revocation.begin_leaving()
    revoking = asyncio.create_task(world.revocation.revoke(tuple(tps(0, 1)), lambda: False))
    await asyncio.sleep(1.0)
    for number, offset in ((0, 120), (1, 100)):
        world.stage.stopped(world.stage.start_of(number), offset)
    await revoking
    assert (world.committed, world.revocation.uncommitted) == ({0: 120}, 0)


@told
async def test_invariant_7_a_partition_that_is_entered_anew_as_it_is_revoked_is_fetched_when_it_comes_again(
    world: World,
) -> None:
    """Its worker lets go of the one that was lost in the turn in which the revoke begins."""
    stage = world.stage
    world.consume(0, 110, in_hand=1)
    start = stage.start_of(0)
    losing = asyncio.create_task(world.revocation.lose(tuple(tps(0))))
    await asyncio.sleep(0)
    stage.assignment.assign(tps(0))
    revoking = asyncio.create_task(world.revocation.revoke(tuple(tps(0)), lambda: False))
    asyncio.get_running_loop().call_soon(stage.stopped, start, 111)
    await asyncio.gather(losing, revoking)
    assert stage.state(0) is None
    stage.resolving.clear()
    stage.assignment.assign(tps(0))
    assert [partition.tp for partition in stage.resolving] == tps(0)


@told
async def test_a_coordinator_that_is_away_for_longer_than_a_commit_may_take_has_nothing_handled_twice(
    world: World,
) -> None:
    world.comes_back_after(12.0)
    assert 12.0 <= await world.revoked() < 12.5
    assert (world.committed, world.revocation.uncommitted) == ({0: 110}, 0)


@pytest.mark.parametrize("error", [7, 14, 15, 16, None])
@told
async def test_a_coordinator_that_moves_loads_or_does_not_answer_is_as_good_as_away(
    world: World, error: int | None
) -> None:
    def is_there() -> None:
        world.error = 0

    world.error = error
    asyncio.get_running_loop().call_later(12.0, is_there)
    assert 12.0 <= await world.revoked() < 14.0
    assert (world.committed, world.revocation.uncommitted) == ({0: 110}, 0)


@told
async def test_a_commit_that_is_refused_by_a_coordinator_that_came_back_has_all_of_its_time(world: World) -> None:
    world.error = -1
    world.comes_back_after(12.0)
    assert 15.0 <= await world.revoked() < 15.5
    assert (world.committed, world.revocation.uncommitted) == ({}, 1)


@pytest.mark.parametrize("how", ["away", "unanswered"])
@told
async def test_a_coordinator_that_stays_away_leaves_room_for_the_join_in_the_rebalance_timeout(
    world: World, how: str
) -> None:
    if how == "away":
        world.may_commit = False
    else:
        world.error = None
    assert 0.65 * 60 < await world.revoked() <= 0.75 * 60
    assert (world.committed, world.revocation.uncommitted) == ({}, 1)


@told
async def test_a_member_that_leaves_the_group_waits_for_no_coordinator(world: World) -> None:
    """A stop has a budget, which orchestrators go by."""
    world.revocation.begin_leaving()
    world.may_commit = False
    assert 3.0 <= await world.revoked() < 3.5
    assert world.revocation.uncommitted == 1


async def waits_for_a_coordinator(world: World) -> asyncio.Task[float]:
    """A revoke whose commit nobody has taken for ten seconds."""
    world.may_commit = False
    waiting = asyncio.create_task(world.revoked())
    await asyncio.sleep(10.0)
    assert not waiting.done()
    return waiting


@told
async def test_a_member_that_is_told_to_leave_while_it_waits_for_a_coordinator_leaves_within_its_budget(
    world: World,
) -> None:
    waiting = await waits_for_a_coordinator(world)
    world.revocation.begin_leaving()
    began = clock.now()
    await world.revocation.revoke(tuple(tps(0)), lambda: False)
    assert 3.0 <= clock.now() - began < 3.5
    assert world.revocation.uncommitted == 1
    assert world.stage.state(0) is None
    await waiting


@told
async def test_partitions_that_are_lost_while_their_commit_waits_for_a_coordinator_are_not_waited_for(
    world: World,
) -> None:
    waiting = await waits_for_a_coordinator(world)
    await world.revocation.lose(tuple(tps(0)))
    assert await waiting < 10.5
    assert (world.committed, world.revocation.uncommitted) == ({}, 1)


@told
async def test_an_offset_that_this_user_may_not_commit_is_not_waited_for(world: World) -> None:
    world.error = 29
    assert await world.revoked() < 0.5
    assert world.revocation.uncommitted == 1
