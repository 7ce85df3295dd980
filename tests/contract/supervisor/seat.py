"""One member of a story: put together as the service puts it, with workers that the story plays, and a person who looks
after it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol
from unittest import mock

from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.ipc.messages import Drain
from kunicorn.positions import TopicPartition
from kunicorn.settings import WorkerSettings
from kunicorn.supervisor.actions import Actions, Life
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.process import WorkerState
from kunicorn.supervisor.workforce import Workforce
from tests.contract.supervisor.brokers import Cloud
from tests.contract.supervisor.plan import Plan
from tests.contract.supervisor.truth import Log, Violation
from tests.contract.supervisor.workers import StoryWorker
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.driver import Driver
from tests.fakes.played_workers import PlayedPool, PlayedWorker

SESSION, REBALANCE, DRAIN, COMMIT = 10.0, 8.0, 1.0, 2.0
_TRIED = COMMIT - 0.25
"""Seconds, less what it takes until the story looks."""
_REBALANCE_BESIDE_AWAY = 24.0
"""Three quarters of it outlast a coordinator that is away, and the look-up of its successor."""


class Around(Protocol):
    """The story, as far as its members are concerned."""

    plan: Plan
    cloud: Cloud
    workers: list[StoryWorker]
    """All there ever were."""

    def excuse(self) -> None:
        """Somebody has lost partitions: what was not committed is handled again."""

    def knows_it_by_another_id(self, error: Exception) -> bool:
        """Whether a static member is refused for good though nobody has its name."""


class Pool(PlayedPool):
    """Whoever does not let go in time is killed; one that is stuck is not dead for that, until it is free again."""

    def __init__(self, seat: Seat, *, cooperative: bool) -> None:
        """`cooperative`: whether the next join can name as owned what a worker clings to. Else the group goes on
        without the member at that moment, and another one handles the record in hand, too."""
        super().__init__({})
        self._seat, self._cooperative = seat, cooperative

    def extend_lease(self, until_ns: int) -> None:
        super().extend_lease(until_ns)
        for worker in self._seat.living:
            worker.extend_lease(until_ns)

    async def escalate(
        self, worker: PlayedWorker, reason: str, until: Callable[[], bool], interrupt: Callable[[], None]
    ) -> None:
        assert isinstance(worker, StoryWorker)
        if until() or worker.dead:
            return
        worker.killed = True
        if not worker.stuck:
            self._seat.kill(worker)
        elif not self._cooperative:
            worker.stray()


class _Seeker(Seeker):
    """It says when a partition is where a person has put it."""

    def __init__(self, seat: Seat) -> None:
        driver = seat.driver
        super().__init__(driver.settings, driver.assignment, driver.source.commits, driver.brokers)
        self._seat = seat

    async def _commit(self, put: Collection[Partition]) -> Collection[TopicPartition]:
        for partition in put:
            log, position = self._seat.log(partition.tp), partition.position
            if log is not None and position is not None:
                log.sought(position.offset)
                if self._seat.is_out:  # Whoever has it by now goes on where it was committed before.
                    log.excuse()
        return await super()._commit(put)


class Seat:
    """One member, its workers, and a person who looks after it."""

    def __init__(self, story: Around, number: int) -> None:
        self.story, self.number = story, number
        self.plan = plan = story.plan
        cooperative = plan.protocol == "classic" and plan.assignor != "range"
        pool: Any = Pool(self, cooperative=cooperative)
        self.driver = driver = Driver(
            story.cloud.coordinating,
            pool=pool,
            client_id=str(self),
            group_protocol=plan.protocol,
            partition_assignment_strategy=[plan.assignor],
            auto_offset_reset=plan.policy,
            session_timeout_ms=int(SESSION * 1000),
            max_poll_interval_ms=int((_REBALANCE_BESIDE_AWAY if plan.away else REBALANCE) * 1000),
            drain_timeout_ms=int(DRAIN * 1000),
            commit_timeout_ms=int(COMMIT * 1000),
            commit_interval_ms=1000,
            group_instance_id=f"pod-{number}" if plan.static else None,
        )
        driver.stage.in_force.workers = WorkerSettings(max_crashes=1_000_000)
        driver.assignment.table.workers_commit = plan.in_transactions
        self.seeker = _Seeker(self)
        workforce, life = mock.Mock(spec=Workforce), mock.Mock(spec=Life)
        self.actions = Actions(driver.assignment, workforce, self.seeker, driver.tasks, life)
        self.workers: dict[int, StoryWorker] = {}
        self.retiring: list[StoryWorker] = []
        """They hand over to a successor of theirs."""
        for at in range(plan.workers):
            self._employ(at)
        self.leaving = self.fenced = False
        self._lost = self._unfinished = self._lease = 0
        self._given_up: set[TopicPartition] = set()
        """What left with something handled and not committed, since it was last looked at."""
        count = driver.source._revocation._count

        def counted(uncommitted: Collection[Partition]) -> None:
            self._given_up.update(each.tp for each in uncommitted)
            count(uncommitted)

        driver.source._revocation._count = counted  # type: ignore[method-assign]
        self.is_out = False
        """The coordinator had expelled it when it was last looked at."""

    def __str__(self) -> str:
        return f"member {self.number}"

    def certain(self) -> bool:
        """Whether the lease, which workers look at before each record, holds."""
        return clock.now_ns() < self._lease_ns

    @property
    def _lease_ns(self) -> int:
        leases = self.driver.leases
        return leases[-1] if leases else 0

    @property
    def assignment(self) -> Assignment:
        return self.driver.assignment

    def revive(self) -> None:
        """Whatever worker is dead has a successor."""
        for number in sorted(set(range(self.story.plan.workers)) - self.workers.keys()):
            self._employ(number)
            self.driver.assignment.worker_ready(self.workers[number])

    @property
    def living(self) -> list[StoryWorker]:
        """Those that retire, too."""
        return [*self.workers.values(), *self.retiring]

    def recycle(self, number: int) -> None:
        """A worker hands over to its successor."""
        if any(each.number == number for each in self.retiring):
            return
        assignment, old = self.driver.assignment, self.workers[number]
        self.retiring.append(old)
        self._employ(number)
        assignment.worker_ready(self.workers[number])
        assignment.worker_retires(old)
        old.send(Drain(clock.now() + DRAIN))

    def kill(self, worker: StoryWorker, how: str = "SIGKILL") -> None:
        """One of its workers ends, with all that it had in hand."""
        worker.die()
        if worker in self.retiring:
            self.retiring.remove(worker)
            worker.state = WorkerState.DEAD
            self.driver.assignment.worker_died(worker, how)
        else:
            del self.workers[worker.number]
            self.driver.stage.die(worker.number, how)

    def bury(self) -> None:
        """Whatever was killed while it was stuck, and is free, dies; so does what retires and has let go of all."""
        for worker in self.living:
            if worker.killed and not worker.stuck:
                self.kill(worker)
        for worker in [worker for worker in self.retiring if not worker.has_work]:
            self.kill(worker, "exit 0")

    def look(self) -> None:
        """Nothing is lost that was certain."""
        driver = self.driver
        if driver.fatal:
            if self.story.knows_it_by_another_id(driver.fatal[0]):
                self.fenced = True
                return
            raise driver.fatal[0]
        out, self.is_out = self.is_out, self._expelled
        if self.is_out and not out:
            if self.certain():
                raise Violation(f"{self} is expelled while its membership is certain")
            self._part()
        if driver.lost > self._lost:
            self._lost = driver.lost
            # A member that is told to leave while the answer to its join is late cannot commit under a generation that
            # it does not know, and lets go.
            if clock.now_ns() < self._lease and not self.leaving:
                raise Violation(f"{self} lost partitions while its membership was certain")
            self._part()
        if self.leaving and driver.source.unfinished > self._unfinished:
            self.story.excuse()  # Whoever stops has a budget.
        for tp in [tp for tp in self._given_up if self._may_give_up(tp)]:
            if (log := self.story.cloud.logs.get(tp)) is not None:
                log.excuse()
        self._given_up.clear()
        self._let_cling()
        self._unfinished = driver.source.unfinished
        self._lease = self._lease_ns

    def _may_give_up(self, tp: TopicPartition) -> bool:
        """Whether the partition may leave with something handled and not committed: the brokers have taken no commit of
        it for as long as one is tried, and were asked; or they have refused the member. A coordinator that is away is
        waited for."""
        cloud, now = self.story.cloud, clock.now()
        refused_at = cloud.refused_at.get(self.driver.member.member_id, float("-inf"))
        in_vain = cloud.taken_at.get(tp, float("-inf")) <= now - _TRIED and cloud.unserved_at >= now - REBALANCE
        return not self.story.plan.away and (in_vain or refused_at >= now - REBALANCE)

    def _let_cling(self) -> None:
        """Once it has left, the group goes on without whoever outlives SIGKILL."""
        if self.leaving and self.driver.member.member_id not in self.story.cloud.group.members:
            for worker in self.living:
                if worker.killed:
                    worker.stray()

    @property
    def _expelled(self) -> bool:
        """Whether the coordinator gives its partitions to others. A member that reaches no broker hears of it later."""
        group, member_id = self.story.cloud.group, self.driver.member.member_id
        missing = isinstance(group, ClassicGroup) and member_id in group.missing
        return bool(self.driver.owned) and (missing or member_id not in group.members)

    def _part(self) -> None:
        """Others may handle what it had."""
        for worker in self.living:
            worker.stray()
        self.story.excuse()

    @property
    def rests(self) -> bool:
        """Whether nothing is under way."""
        table = self.driver.assignment.table
        running = all(each.state is PartitionState.RUNNING for each in table.values())
        return self.driver.stable and running and not self.retiring and table.keys() == self.driver.owned

    def _employ(self, number: int) -> None:
        worker = StoryWorker(number, self)
        worker.extend_lease(self._lease_ns)
        self.story.workers.append(worker)
        self.workers[number] = self.driver.stage.pool.workers[number] = worker

    def log(self, tp: TopicPartition) -> Log | None:
        """What a grant is good for: nothing until the member knows which topic has the name now.

        What librdkafka reads of that one meanwhile, from the old one's position, is not handled for good: it is handled
        again from the beginning, where commits by id let nothing pass of what was done before.
        """
        cloud, partition = self.story.cloud, self.driver.assignment.table[tp]
        return cloud.logs.get(tp) if partition.topic_id in (None, cloud.topic_id) else None

    def may_commit(self) -> bool:
        member, group = self.driver.member, self.story.cloud.group
        if self.story.cloud.away:
            return False
        if isinstance(group, ClassicGroup):
            return not group.commit(member.member_id, member.generation, member.instance_id, clock.now())
        return not group.commit(member.member_id, member.generation, clock.now())
