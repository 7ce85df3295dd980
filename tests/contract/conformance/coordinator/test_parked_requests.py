"""Other members take minutes to drain or to plan: the coordinator answers JoinGroup or SyncGroup only then."""

from __future__ import annotations

import asyncio
from typing import Any

from kunicorn.group.protocol import JoinAnswer, Subscription, SyncAnswer
from kunicorn.group.states import State
from kunicorn.ipc import clock
from kunicorn.kafka.versions import Api
from kunicorn.positions import Position, TopicPartition
from tests.contract.conformance.coordinator.coordinated import PARTITIONS, SESSION, Stage, told
from tests.fakes.broker import Silence
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.coordinator_broker import START
from tests.fakes.driver import Driver, until
from tests.fakes.requests import Join, Sync

MINUTES = 240.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Stranger:
    """A member of another make, slow at whatever it does; it asks the modelled group itself, without a wire."""

    def __init__(self, group: ClassicGroup) -> None:
        self._group = group
        self._wishes = {"cooperative-sticky": Subscription(())}
        self.joined: list[JoinAnswer] = []
        self.synced: list[SyncAnswer] = []
        self.member_id = ""
        self.join()
        self.member_id = self.joined.pop().member_id

    def join(self) -> None:
        request = Join(self.member_id, self._wishes, None, 1_800.0, 300.0)
        self._group.join(request, self.joined.append, now())

    def sync(self, **plan: tuple[TopicPartition, ...]) -> None:
        request = Sync(self.member_id, self._group.generation, plan, None, "cooperative-sticky")
        self._group.sync(request, self.synced.append, now())


async def beside_a_stranger(stage: Stage, **settings: Any) -> tuple[Driver, Stranger]:
    """One of ours that owns everything, and a settled stranger."""
    member = await stage.start(max_poll_interval_ms=300_000, **settings)
    await stage.settled(member)
    assert isinstance(stage.broker.group, ClassicGroup)
    stranger = Stranger(stage.broker.group)
    stranger.join()
    await until(lambda: stranger.joined)
    stranger.sync()
    await until(lambda: member.stable and stranger.synced)
    return member, stranger


async def held_up(stage: Stage) -> Driver:
    """One of ours whose JoinGroup is parked: a third member has come, and the stranger drains."""
    member, _ = await beside_a_stranger(stage)
    assert isinstance(stage.broker.group, ClassicGroup)
    Stranger(stage.broker.group).join()
    await until(lambda: member.member.state is State.JOINING)
    return member


async def handles_on(stage: Stage, member: Driver, api: Api) -> None:
    """For minutes the lease holds, over the connections that there are, and nothing is asked again."""
    await asyncio.sleep(2)
    asked, found = len(stage.asked(api)), len(stage.asked(Api.FIND_COORDINATOR))
    connections, began = stage.broker.connections, now()
    while now() < began + MINUTES:
        await asyncio.sleep(1)
        assert member.leases[-1] / clock.NANOSECONDS > now() + SESSION / 2
    assert stage.broker.connections == connections
    assert len(stage.asked(api)) == asked
    assert len(stage.asked(Api.FIND_COORDINATOR)) == found
    assert len(member.owned) == PARTITIONS


@told
async def test_a_member_whose_join_is_parked_for_minutes_handles_on(stage: Stage) -> None:
    member = await held_up(stage)
    await handles_on(stage, member, Api.JOIN_GROUP)


@told
async def test_a_member_whose_leader_plans_for_minutes_handles_on_and_keeps_its_connections(stage: Stage) -> None:
    member, stranger = await beside_a_stranger(stage)
    group = stage.broker.group
    assert isinstance(group, ClassicGroup)
    group.leader = stranger.member_id
    third = Stranger(group)
    third.join()
    stranger.join()
    await until(lambda: member.member.state is State.SYNCING)
    await handles_on(stage, member, Api.SYNC_GROUP)
    stranger.sync(**{member.member.member_id: tuple(member.owned)})
    await until(lambda: member.stable, 5)
    assert member.lost == 0


@told
async def test_a_member_told_to_stop_while_its_join_is_parked_drains_commits_and_leaves_at_once(stage: Stage) -> None:
    member = await held_up(stage)
    group = stage.broker.group
    assert isinstance(group, ClassicGroup)
    began, member_id, generation = now(), member.member.member_id, group.generation
    for partition in member.assignment.table.values():
        partition.position = Position(START + 5)
    member.source.leave("SIGTERM")
    await until(lambda: member.source.over, 10)
    assert now() - began < 5
    assert member_id not in group.seats
    assert (member.lost, member.source.unfinished) == (0, 0)
    assert stage.broker.commits[-1] == (generation, dict.fromkeys(stage.broker.committed, START + 5))


@told
async def test_a_leader_whom_no_broker_tells_the_topics_plans_with_those_it_knows_before_it_is_expelled(
    stage: Stage,
) -> None:
    first = await stage.start(max_poll_interval_ms=8_000, drain_timeout_ms=1_000, commit_timeout_ms=1_000)
    await stage.settled(first)
    member_id = first.member.member_id
    second = Driver(stage.broker, max_poll_interval_ms=8_000, drain_timeout_ms=1_000, commit_timeout_ms=1_000)
    stage.members.append(second)
    await second.topics.refresh()
    stage.broker.plan(Api.METADATA, *[Silence] * 20)
    await second.start_without_looking()
    await until(lambda: len(second.owned) + len(first.owned) == PARTITIONS and second.stable and first.stable, 30.0)
    assert first.member.member_id == member_id, "it was not expelled"
    assert second.owned
