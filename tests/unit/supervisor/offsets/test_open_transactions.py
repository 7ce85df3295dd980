"""Workers that commit in transactions: as whom, how joins wait for them, and where a dead one's partitions go on."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import CommitAs, CommitOver, CommitWanted, ToWorker
from kunicorn.kafka.metadata import Metadata
from kunicorn.supervisor.facts import MemberState
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workers.transactions import OpenTransactions, TransactionalIds
from kunicorn.supervisor.workforce import Blueprints
from tests.fakes.complete_settings import settings_of
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import Stage, consumed

SETTINGS = settings_of()
PREFIXED = settings_of(producing={"delivery": "transactions", "transactional_id_prefix": "p", "topic": "out"})


def member_of(generation: int = 4, instance_id: str | None = None) -> MemberState:
    """A member that may commit."""
    return MemberState(
        instance_id, member_id="m", generation=generation, coordinator_known=True, generation_commits=True
    )


class ListeningWorker(PlayedWorker):
    """Tells when it is answered."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.answered = asyncio.Event()

    def send(self, message: ToWorker) -> None:
        super().send(message)
        self.answered.set()


def transactions_of(member: MemberState) -> OpenTransactions:
    return OpenTransactions(member, ServiceTasks())


async def test_a_worker_is_told_the_member_and_generation_of_this_moment() -> None:
    worker, member = PlayedWorker(0), member_of(instance_id="pod-0")
    transactions = transactions_of(member)
    transactions.on_message(worker, CommitWanted(1))
    transactions.on_message(worker, CommitOver(1))
    member.generation = 5
    transactions.on_message(worker, CommitWanted(2))
    assert worker.told == [CommitAs(1, 4, "m", "pod-0"), CommitAs(2, 5, "m", "pod-0")]


async def test_between_two_generations_nobody_is_answered_and_in_the_next_one_everybody() -> None:
    worker, member = ListeningWorker(0), member_of()
    member.generation_commits = False
    transactions = transactions_of(member)
    transactions.on_message(worker, CommitWanted(1))
    assert worker.told == []
    member.generation_commits, member.generation = True, 9
    member.changed.notify()
    await asyncio.wait_for(worker.answered.wait(), 60)
    assert worker.told == [CommitAs(1, 9, "m", None)]


async def test_a_join_waits_until_open_transactions_are_over_or_their_workers_dead() -> None:
    done, dead = PlayedWorker(0), PlayedWorker(1)
    transactions = transactions_of(member_of())
    for worker in (done, dead):
        transactions.on_message(worker, CommitWanted(1))
    join = asyncio.create_task(transactions.wait_ended())
    await asyncio.sleep(0)
    transactions.on_message(done, CommitOver(1))
    await asyncio.sleep(0)
    assert not join.done()
    transactions.worker_died(dead)
    await asyncio.wait_for(join, 60)


async def test_a_join_waits_for_each_of_the_windows_that_a_worker_has() -> None:
    worker, member = PlayedWorker(0), member_of()
    transactions = transactions_of(member)
    for number in (1, 2):
        transactions.on_message(worker, CommitWanted(number))
    member.generation_commits = False
    transactions.on_message(worker, CommitWanted(3))
    join = asyncio.create_task(transactions.wait_ended())
    for number in (2, 1):
        await asyncio.sleep(0)
        assert not join.done()
        transactions.on_message(worker, CommitOver(number))
    await asyncio.wait_for(join, 60)
    assert worker.told == [CommitAs(1, 4, "m", None), CommitAs(2, 4, "m", None)], "none opens meanwhile"


async def test_who_waits_does_not_wait_for_windows_that_open_later() -> None:
    worker = PlayedWorker(0)
    transactions = transactions_of(member_of())
    transactions.on_message(worker, CommitWanted(1))
    seek = asyncio.create_task(transactions.wait_ended())
    await asyncio.sleep(0)
    transactions.on_message(worker, CommitWanted(2))
    transactions.on_message(worker, CommitOver(1))
    await asyncio.wait_for(seek, 60)


def test_what_workers_commit_the_supervisor_does_not_commit_and_knows_as_committed() -> None:
    stage = Stage()
    stage.assignment.table.workers_commit = True
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 150)
    assert consumed(stage) == {}
    (partition,) = stage.assignment.table.values()
    assert partition.committed == 150


def test_a_dead_workers_partitions_go_on_where_the_brokers_say_and_not_the_ledger() -> None:
    stage = Stage()
    stage.assignment.table.workers_commit = True
    stage.give(0)
    stage.workers[0].consume(stage.start_of(0), 150)
    stage.die()
    assert stage.state(0) is PartitionState.RESOLVING
    assert [str(partition.tp) for partition in stage.resolving[-1:]] == ["orders-0"]
    stage.revive()
    stage.resolve(0)
    assert stage.start_of(0).offset == 100


def test_places_have_ids_of_their_own_that_successors_take_in_turns() -> None:
    ids = TransactionalIds(PREFIXED)
    assert [ids.of(0, 0), ids.of(0, 1), ids.of(0, 2), ids.of(3, 0)] == ["p-0-0", "p-0-1", "p-0-0", "p-3-0"]


def test_a_worker_that_ends_what_was_left_open_is_told_the_other_id_of_its_place() -> None:
    connections: Any = mock.MagicMock()
    connections.tokens, connections.cluster.metadata = None, Metadata()
    connections.topics.subscribed.return_value = ("orders",)
    rates: Any = mock.Mock()
    rates.first_share.return_value = 1.0
    blueprint = Blueprints(PREFIXED, connections, rates).of(1, PREFIXED, mock.AsyncMock())

    def told(turn: int, *, inherits: bool) -> tuple[object, str]:
        producing = blueprint.configure(3, turn, inherits).producing
        assert producing is not None
        return producing.client["transactional.id"], producing.inherited

    assert told(0, inherits=True) == ("p-3-0", "p-3-1")
    assert told(1, inherits=True) == ("p-3-1", "p-3-0")
    assert told(1, inherits=False) == ("p-3-1", "")
    assert blueprint.transactional_id(3, 1) == "p-3-1"


def test_two_members_on_one_host_have_different_ids_and_a_restart_finds_its_own_again() -> None:
    first, second = TransactionalIds(SETTINGS), TransactionalIds(SETTINGS)
    ids = (first.of(0, 0), second.of(0, 0))
    assert len(set(ids)) == 2
    first.close()
    assert TransactionalIds(SETTINGS).of(0, 0) == ids[0]


def test_a_static_member_is_named_by_its_instance_id() -> None:
    static = settings_of(group={"id": "orders", "group_instance_id": "pod-7"})
    assert TransactionalIds(static).of(1, 0) == "orders-pod-7-1-0"
