"""A new group under `latest` begins at the logs' ends, and what is added later at its beginning; whatever fails.

Each story has a seed: members that start at different moments, partitions that move between them, answers that are
late, lost, or an error for a partition or for all, and partitions that are added once the group has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

import pytest

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer, Committed, EpochEnd, LogOffset, OffsetFetchAnswer
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import EARLIEST, Position, TopicPartition
from kunicorn.supervisor.membership.source import StartLookup
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.start_offsets import Starts, look_up
from kunicorn.supervisor.tasks import ServiceTasks
from tests.fakes.driver import until
from tests.fakes.stage import Stage, settings_with
from tests.fakes.virtual_loop import in_virtual_time

OLD = 500
"""Where the logs ended before anybody consumed them."""
TROUBLE = 20.0
"""Seconds until everything goes well."""
UNSTABLE, UNKNOWN_TOPIC_OR_PARTITION, NO_LEADER, LOADING = 88, 3, 5, 14


class Cluster:
    """The brokers: logs that grow, and what the group has committed."""

    def __init__(self, rng: Random, partitions: int) -> None:
        self.rng = rng
        self.began = asyncio.get_running_loop().time()
        self.logs = {TopicPartition("orders", number): OLD for number in range(partitions)}
        self.first = partitions
        self.committed: dict[TopicPartition, Position] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.clumsiness = rng.choice((0.0, 0.1, 0.5))

    @property
    def troubled(self) -> bool:
        return asyncio.get_running_loop().time() - self.began < TROUBLE

    def fails(self) -> bool:
        return self.troubled and self.rng.random() < self.clumsiness

    async def answering(self) -> None:
        await asyncio.sleep(self.rng.expovariate(50.0))
        if self.fails():
            await asyncio.sleep(self.rng.choice((0.0, 3.0)))
            raise PeerError("unanswered")

    def add(self, partitions: int) -> None:
        self.logs |= {TopicPartition("orders", len(self.logs) + number): 0 for number in range(partitions)}

    def produce(self) -> None:
        self.logs = {tp: end + self.rng.randrange(3) for tp, end in self.logs.items()}

    def take(self, tp: TopicPartition, position: Position) -> None:
        self.starts.setdefault(tp, position.offset)
        self.committed[tp] = position


class Member:
    """Real look-ups, partition table and committer. An `Offsets`, an `AssignmentSource` and a `CommitTarget`."""

    may_commit = goes_by_ids = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen = len(cluster.logs)
        self.stage = Stage(workers=0)
        self.tasks = ServiceTasks()
        table = self.stage.assignment.table
        self.commits = OffsetCommitter(self, table.consumed, table.committed, Metrics())
        source: Any = self
        self.start_lookup = StartLookup(settings_with("latest"), source, self, self.stage.assignment, self.tasks)
        self.tasks.start(self.start_lookup.run(table.without_start))
        self.timer = asyncio.create_task(self.commits.commit_every(1.0))

    @property
    def table(self) -> dict[TopicPartition, Any]:
        return self.stage.assignment.table

    async def look_up(self, partitions: Collection[TopicPartition]) -> Starts:
        return await look_up(self, partitions, "latest")

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        await self.cluster.answering()
        if self.cluster.fails():
            return OffsetFetchAnswer(LOADING)
        return OffsetFetchAnswer(0, {tp: self._committed(tp) for tp in sorted(partitions) if not self.cluster.fails()})

    def _committed(self, tp: TopicPartition) -> Committed:
        if self.cluster.fails():
            return Committed(UNSTABLE)
        found = self.cluster.committed.get(tp)
        return Committed(0) if found is None else Committed(0, found.offset, found.leader_epoch, found.done)

    async def list_offsets(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, LogOffset]:
        known = {tp for tp in queries if tp.partition < self.seen}
        self.seen = len(self.cluster.logs)
        await self.cluster.answering()
        return {tp: self._log_offset(tp, at) if tp in known else LogOffset(NO_LEADER) for tp, at in queries.items()}

    def _log_offset(self, tp: TopicPartition, at: int) -> LogOffset:
        if self.cluster.fails():
            return LogOffset(NO_LEADER)
        beginning = 100 if tp.partition < self.cluster.first else 0
        return LogOffset(0, beginning if at == EARLIEST else self.cluster.logs[tp], 3)

    async def epoch_ends(self, queries: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        return {tp: EpochEnd(0, epoch, self.cluster.logs[tp]) for tp, epoch in queries.items()}

    async def confirm_ids(self, topics: Collection[str]) -> None: ...

    def is_of_another_topic(self, topic: str, committed: Committed) -> bool:
        return False

    def created_anew(self, topic: str) -> bool:
        return False

    def partitions_of(self, topics: Collection[str]) -> list[TopicPartition]:
        return list(self.cluster.logs)[: self.seen]

    @property
    def changed(self) -> Notifier:
        return self.stage.assignment.table.changed

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        await self.cluster.answering()
        errors = {tp: UNKNOWN_TOPIC_OR_PARTITION if self.cluster.fails() else 0 for tp in offsets}
        for tp, position in offsets.items():
            if not errors[tp]:
                self.cluster.take(tp, position)
        if self.cluster.fails():
            raise PeerError("the answer was lost")
        return CommitAnswer(errors)

    def commit_refused(self, error: int) -> None:
        pass

    def is_gone(self, topic: str) -> bool:
        return False

    def handle(self) -> None:
        """Some of its partitions are handled up to their ends."""
        for tp, partition in self.table.items():
            if partition.position is not None and self.cluster.rng.random() < 0.3:
                partition.position = Position(self.cluster.logs[tp], 3)

    async def give_back(self, tp: TopicPartition) -> None:
        await self.commits.wait_answered()
        await self.stage.assignment.revoke([tp], float("inf"), float("inf"))
        self.stage.assignment.forget([tp])

    async def vanish(self) -> None:
        self.start_lookup.stop()
        self.timer.cancel()
        await asyncio.gather(self.timer, return_exceptions=True)
        assert self.tasks.error is None


class HeldBack(Member):
    """Its look-ups are answered when they are released."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.held: list[asyncio.Event] = []

    async def fetch_committed(self, partitions: Collection[TopicPartition]) -> OffsetFetchAnswer:
        answer = await super().fetch_committed(partitions)
        self.held.append(asyncio.Event())
        await self.held[-1].wait()
        return answer


async def play(seed: int) -> None:
    """One group's first minute."""
    rng = Random(seed)
    cluster = Cluster(rng, rng.randint(1, 12))
    members = [Member(cluster) for _ in range(rng.randint(1, 8))]
    owners: dict[TopicPartition, Member] = {}

    async def assign(tps: Collection[TopicPartition], skew: float) -> None:
        for tp in tps:
            owners[tp] = rng.choice(members)
        for member in members:
            await asyncio.sleep(rng.random() * skew)
            member.stage.assignment.assign([tp for tp in tps if owners[tp] is member and tp not in member.table])

    try:
        await assign(list(cluster.logs), rng.choice((0.0, 0.05, 3.0)))
        adds = rng.randint(0, 2)
        for _ in range(rng.randint(5, 20)):
            await asyncio.sleep(rng.random() * 3)
            cluster.produce()
            rng.choice(members).handle()
            if rng.random() < 0.3:
                tp = rng.choice(list(owners))
                await owners[tp].give_back(tp)
                await assign([tp], 1.0)
            if cluster.committed and adds:
                adds -= 1
                cluster.add(rng.randint(1, 4))
                cluster.produce()
                await assign([tp for tp in cluster.logs if tp not in owners], rng.choice((0.0, 3.0)))
        await until(lambda: len(cluster.starts) == len(cluster.logs), 120.0)
        await until(lambda: all(owners[tp].table[tp].position is not None for tp in owners), 120.0)
    finally:
        for member in members:
            await member.vanish()
    old = {tp: at for tp, at in cluster.starts.items() if tp.partition < cluster.first and at < OLD}
    assert not old, f"story {seed}: {old} begin with old records"
    skipped = {tp: at for tp, at in cluster.starts.items() if tp.partition >= cluster.first and at > 0}
    assert not skipped, f"story {seed}: {skipped} were added later and skip records"


def story(seed: int) -> Callable[[], Any]:
    return lambda: play(seed)


async def came_back_before_its_start_was_committed() -> None:
    cluster = Cluster(Random(0), 1)
    cluster.clumsiness = 0.0
    member, (tp,) = Member(cluster), cluster.logs
    try:
        member.may_commit = False
        member.stage.assignment.assign([tp])
        await asyncio.sleep(1.0)
        await member.give_back(tp)
        member.stage.assignment.assign([tp])
        await asyncio.sleep(1.0)
        assert member.table[tp].position is None
        member.may_commit = True
        member.changed.notify()
        await until(lambda: member.table[tp].position is not None, 10.0)
        assert cluster.starts == {tp: OLD}
    finally:
        await member.vanish()


async def came_back_before_the_look_up_was_answered() -> None:
    cluster = Cluster(Random(0), 1)
    cluster.clumsiness = 0.0
    member, (tp,) = HeldBack(cluster), cluster.logs
    try:
        cluster.logs[tp] = 1_000
        cluster.committed[tp] = Position(510, 3)
        member.stage.assignment.assign([tp])
        await until(lambda: len(member.held) == 1, 10.0)
        await member.give_back(tp)
        cluster.committed[tp] = Position(520, 3)  # by its owner in between
        member.stage.assignment.assign([tp])
        await until(lambda: len(member.held) == 2, 10.0)
        member.held[0].set()
        await asyncio.sleep(1.0)
        assert member.table[tp].position is None
        member.held[1].set()
        await until(lambda: member.table[tp].position is not None, 10.0)
        assert member.table[tp].position.offset == 520
    finally:
        await member.vanish()


def test_a_partition_that_left_and_came_back_does_not_begin_where_nothing_was_committed() -> None:
    in_virtual_time(came_back_before_its_start_was_committed, sockets=False)


def test_a_partition_that_left_and_came_back_does_not_begin_where_it_was_when_it_left() -> None:
    in_virtual_time(came_back_before_the_look_up_was_answered, sockets=False)


def test_a_new_group_under_latest_begins_at_the_ends_and_later_partitions_at_their_beginnings() -> None:
    for seed in range(60):
        in_virtual_time(story(seed), sockets=False)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_new_groups_under_latest_begin_at_the_ends(thousand: int) -> None:
    for seed in range(thousand * 1000, (thousand + 1) * 1000):
        in_virtual_time(story(seed), sockets=False)
