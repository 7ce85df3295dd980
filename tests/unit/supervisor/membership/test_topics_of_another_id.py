"""Partitions of a topic that has another id by some brokers' answers, in the consumer protocol: its coordinator assigns
topics by their ids, and takes away what is gone.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from kunicorn.group.consumer import ConsumerMember
from kunicorn.group.states import PartitionState
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.membership.driver import GroupDriver
from kunicorn.supervisor.topics import Topics
from tests.fakes.complete_settings import settings_of
from tests.fakes.stage import Stage, consumed

OLD, NEW = UUID(int=1), UUID(int=2)
TP, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Answers:
    """A cluster of which some brokers still answer with the topic that was deleted."""

    def __init__(self) -> None:
        self.now(OLD)

    def now(self, topic_id: UUID) -> None:
        info = SimpleNamespace(topic_id=topic_id, error=0, gone=False, is_internal=False, partitions={0: None})
        self._next = SimpleNamespace(topics={"orders": info})
        self.metadata = self._next

    async def refresh(self, topics: Any) -> None:
        self.metadata = self._next

    def ask_another(self) -> None:
        pass

    async def name_topics(self, topic_ids: Any) -> dict[UUID, str]:
        return dict.fromkeys(topic_ids, "orders")


class Member:
    """One to which the coordinator has assigned a partition of the new topic."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.topics = Topics(["orders"], cluster, brokers_match=True)
        self.stage = Stage(1, topics=self.topics)
        self.renewals: list[Any] = []
        machine = mock.Mock(spec=ConsumerMember)
        machine.topic_id = lambda _: NEW
        self._driver: Any = SimpleNamespace(
            _topics=self.topics,
            _assignment=self.stage.assignment,
            _settings=settings_of(),
            _spawn=self.renewals.append,
            member=machine,
        )

    async def hear(self, topic_id: UUID, times: int) -> None:
        """So many answers with that id."""
        self.cluster.now(topic_id)
        for _ in range(times):
            await self.topics.refresh()
            GroupDriver._drop_recreated(self._driver)

    @property
    def lost(self) -> bool:
        return self.stage.assignment.table[TP].lost


@pytest.fixture
async def member() -> Member:
    member = Member(Answers())
    await member.topics.refresh()
    await member.topics.name([NEW])
    member.topics.recreated.clear()
    member.stage.give(0)
    member.stage.workers[0].consume(member.stage.start_of(0), 150)
    assert consumed(member.stage) == {0: 150}
    member.stage.resolving.clear()
    return member


async def test_what_a_broker_that_is_behind_had_us_disown_is_committed_again_once_all_agree(member: Member) -> None:
    await member.hear(OLD, 10)
    assert (member.lost, consumed(member.stage)) == (True, {})
    await member.hear(NEW, 30)
    member.stage.workers[0].consume(member.stage.start_of(0), 160)
    assert (member.lost, consumed(member.stage)) == (False, {0: 160})


async def test_what_was_lost_to_another_member_meanwhile_stays_lost(member: Member) -> None:
    await member.hear(OLD, 10)
    member.stage.assignment.table[TP].lose()
    await member.hear(NEW, 30)
    assert (member.lost, consumed(member.stage)) == (True, {})


async def test_what_was_lost_before_is_not_had_back_with_its_topic(member: Member) -> None:
    partition = member.stage.assignment.table[TP]
    partition.lose()
    member.stage.assignment.table.disown([TP])
    await member.hear(NEW, 30)
    assert partition.lost


async def test_what_waits_for_its_start_is_looked_up_again_when_it_is_had_back(member: Member) -> None:
    """Its look-up has ended while the topic seemed to be gone."""
    partition = member.stage.assignment.table[TP]
    partition.out_of_range("its position is not in the log")
    await member.hear(OLD, 10)
    member.stage.resolving.clear()
    await member.hear(NEW, 30)
    assert member.stage.resolving == [partition]


async def test_what_runs_is_not_looked_up_again_when_it_is_had_back(member: Member) -> None:
    await member.hear(OLD, 10)
    await member.hear(NEW, 30)
    assert member.stage.resolving == []


@pytest.mark.parametrize("forgotten", [False, True])
async def test_what_is_given_while_a_broker_that_is_behind_is_believed_is_entered_again_once_all_agree(
    member: Member, forgotten: bool
) -> None:
    """The coordinator has given it as the new topic's already, and gives it no second time. `forgotten`: it was
    disowned meanwhile, as another broker was further behind."""
    await member.hear(OLD, 10)
    member.stage.give(1)
    partition = member.stage.assignment.table[SECOND]
    assert partition.topic_id == OLD
    if forgotten:
        partition.disown()
    await member.hear(NEW, 30)
    [renewal] = member.renewals
    stopping = asyncio.create_task(renewal)
    await asyncio.sleep(0)
    member.stage.stopped(member.stage.start_of(1), 100)
    await stopping
    again = member.stage.assignment.table[SECOND]
    assert (again.topic_id, again.lost, again.state) == (NEW, False, PartitionState.RESOLVING)
