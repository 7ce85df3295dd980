"""One story: members that are put together as the service puts them, beside two brokers and workers that do what chance
says. First everything goes wrong that may, for a while. Then nothing does any more, and the group has to come to rest:
every partition in one worker's hands, every record handled, and committed.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock
from uuid import UUID

from kunicorn.errors import PeerError
from kunicorn.group.states import PartitionState
from kunicorn.ipc import clock
from kunicorn.observe.requests import Goal
from kunicorn.positions import TopicPartition
from kunicorn.supervisor.partitions.balance import Move, Reason
from kunicorn.supervisor.partitions.balancer import settled
from kunicorn.supervisor.partitions.partition import Partition
from tests.contract.supervisor.brokers import LATEST, Cloud, StoryBroker
from tests.contract.supervisor.plan import (
    AWAY_FROM,
    BUSY_FROM,
    LATE_FROM,
    PERSONS_FROM,
    Plan,
    drawn,
    with_absences,
    with_busy_workers,
    with_late_brokers,
    with_persons,
)
from tests.contract.supervisor.seat import SESSION, Seat
from tests.contract.supervisor.truth import Log, Violation
from tests.contract.supervisor.workers import Habits, StoryWorker
from tests.contract.worker.choices import Choices, by_seed
from tests.fakes.classic_group import ClassicGroup
from tests.fakes.consumer_group import ConsumerGroup
from tests.fakes.simulation import TOPIC
from tests.fakes.virtual_loop import in_virtual_time

_BEAT = 0.1
"""Seconds between two moments of a worker's life."""
_REST_WITHIN = 150.0
"""Seconds: a session of one that is gone, a rebalance timeout spent on it, joins, and look-ups with their patience."""


class Story:
    """Told once, by `tell`."""

    def __init__(self, choices: Choices, plan: Plan, trace: list[str] | None) -> None:
        self.choices, self.plan, self.trace = choices, plan, trace
        self.cloud = Cloud(choices, self._group(), UUID(int=1))
        self.seats: list[Seat] = []
        self.workers: list[StoryWorker] = []
        """All there ever were."""
        self.quiet = False
        self._joined = count()
        self._gone_numbers: set[int] = set()
        self._moved = False
        """A coordinator has taken over from what was in the log."""
        self._away_again = 0.0
        """No coordinator is away before: one absence behind the other would outlast a rebalance timeout."""
        self._topics = count(2)
        self._started: list[asyncio.Task[None]] = []

    def _group(self) -> ClassicGroup | ConsumerGroup:
        if self.plan.protocol == "classic":
            return ClassicGroup()
        interval = 1.0 if self.plan.late and self.choices.chance(50) else 0.0
        return ConsumerGroup(TOPIC, UUID(int=1), self.plan.partitions, SESSION, assignment_interval=interval)

    async def tell(self) -> None:
        """Raises `Violation`, or whatever the service broke by."""
        self._note(f"{self.plan}")
        cloud, plan = self.cloud, self.plan
        for number in range(plan.partitions):
            self._add_log(number, self.choices.below(20))
        async with StoryBroker(1, cloud) as first, StoryBroker(2, cloud):
            first.group = cloud.group
            for each in cloud.brokers:
                each.coordinator = first
            background = [asyncio.create_task(self._keep_time()), asyncio.create_task(self._work())]
            try:
                await self._through(background)
            finally:
                for task in [*background, *self._started]:
                    task.cancel()
                await asyncio.gather(*background, *self._started, return_exceptions=True)
                await asyncio.gather(*(seat.driver.vanish() for seat in self.seats), return_exceptions=True)
                for worker in self.workers:
                    worker.ledger.close()

    async def _through(self, background: Sequence[asyncio.Task[None]]) -> None:
        self.cloud.failing, self.cloud.percent = self.plan.failing, self.plan.failing_percent
        for _ in range(self.plan.members):
            await self._join()
            await self._pass(self.choices.pick((0, 0.003, 0.03, 0.3, 3.0)), background)
        for _ in range(self.plan.acts):
            if not self.seats:  # The only one was refused for good, and is started anew.
                await self._join()
            act = self.choices.pick(self.plan.mix)
            await getattr(self, f"_{act}")()
            await self._pass(self.choices.pick((0.3, 0.01, 0.1, 1.0, 4.0, 12.0)), background)
        self._calm()
        began = clock.now()
        while not self._rests():
            if clock.now() > began + _REST_WITHIN:
                raise Violation(f"it does not come to rest: {self._standing()}")
            await self._pass(0.5, background)

    async def _pass(self, seconds: float, background: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.sleep(seconds)
        for violation in self.cloud.violations:
            raise violation
        for task in background:
            if task.done():
                task.result()

    # -- in the background -----------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            if not self.cloud.away:  # A successor starts all of a group's timers anew.
                self.cloud.group.tick(clock.now())

    async def _work(self) -> None:
        habits = Habits(self._keeps)
        if self.plan.failing_records_percent:
            habits = replace(habits, fails=self._fails)
        if self.plan.busy_percent:
            habits = replace(habits, reads=self._reads)
        while True:
            await asyncio.sleep(_BEAT)
            for seat in self.seats:
                seat.look()
            for seat in [seat for seat in self.seats if seat.fenced]:
                await self._end(seat)
            for seat in self.seats:
                for worker in seat.living:
                    worker.go_on(habits)
                    if not worker.dead:
                        seat.driver.assignment.worker_reported(worker)
                seat.bury()

    def _keeps(self) -> bool:
        return not self.quiet and self.choices.chance(self.plan.slow_percent)

    def _fails(self) -> bool:
        return not self.quiet and self.choices.chance(self.plan.failing_records_percent)

    def _reads(self) -> bool:
        return self.quiet or not self.choices.chance(self.plan.busy_percent)

    # -- what happens ----------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        if len(self.seats) < 3:
            seat = Seat(self, self._number())
            self._note(f"{seat} comes")
            self.seats.append(seat)
            while True:
                try:
                    await seat.driver.start()
                    return
                except PeerError:
                    await asyncio.sleep(_BEAT)

    def _number(self) -> int:
        """Of a member that comes: of one that has gone, where they have names."""
        gone = sorted(self._gone_numbers)
        if not self.plan.static or not gone or self.choices.chance(30):
            return next(self._joined)
        number = self.choices.pick(gone)
        self._gone_numbers.remove(number)
        return number

    async def _leave(self) -> None:
        staying = [seat for seat in self.seats if not seat.leaving]
        if len(staying) > 1:
            seat = self.choices.pick(staying)
            seat.leaving = True
            self._note(f"{seat} is told to leave")
            seat.driver.source.leave("the story has it so")
            self._started.append(asyncio.create_task(self._gone(seat)))

    async def _gone(self, seat: Seat) -> None:
        while not seat.driver.source.over:  # noqa: ASYNC110 - the clock is turned
            await asyncio.sleep(_BEAT)
        if seat in self.seats:
            seat.look()
            self.seats.remove(seat)
            self._note(f"{seat} has left, {seat.driver.source.unfinished} not committed")
            await seat.driver.vanish()
            self._gone_numbers.add(seat.number)

    async def _crash(self) -> None:
        staying = [seat for seat in self.seats if not seat.leaving]
        if len(staying) > 1:
            seat = self.choices.pick(staying)
            self._note(f"{seat} crashes")
            await self._end(seat)

    async def _end(self, seat: Seat) -> None:
        self.seats.remove(seat)
        for worker in seat.living:
            worker.die()
        self.excuse()
        await seat.driver.vanish()
        self._gone_numbers.add(seat.number)

    async def _move(self) -> None:
        orderly, self._moved = self.choices.chance(50), True
        self._note(f"the coordinator {'moves' if orderly else 'dies'}")
        self.cloud.move(orderly=orderly, loading=self.choices.pick((0.0, 0.3, 1.5)))

    async def _shake(self) -> None:
        """A rebalance, and a coordinator that moves in the middle of it."""
        await self._join()
        await asyncio.sleep(self.choices.below(30) * 0.05)
        await self._move()

    async def _away(self) -> None:
        """A rebalance: before it, or in the middle of it, the coordinator dies, and has a successor seconds later."""
        if clock.now() < self._away_again:
            return
        seconds, loading = self.choices.pick((3.0, 5.0, 8.0)), self.choices.pick((0.0, 0.3, 1.5))
        self._away_again, self._moved = clock.now() + 30.0, True
        await self._write()
        if self.choices.chance(60):
            await self._join()
        await asyncio.sleep(self.choices.below(40) * 0.05)
        self._note(f"the coordinator is away for {seconds:g} s")
        self.cloud.part(named=self.choices.chance(50))
        self._started.append(asyncio.create_task(self._succeeded(seconds, loading)))
        if self.choices.chance(60):
            await asyncio.sleep(self.choices.below(20) * 0.05)
            await self._grow()

    async def _succeeded(self, seconds: float, loading: float) -> None:
        await asyncio.sleep(seconds)
        self._note("the coordinator has a successor")
        self.cloud.move(orderly=False, loading=loading)

    async def _kill(self) -> None:
        seat = self.choices.pick(self.seats)
        if seat.workers:
            number = self.choices.pick(sorted(seat.workers))
            self._note(f"worker {number} of {seat} dies")
            seat.kill(seat.workers[number])

    async def _revive(self) -> None:
        for seat in self.seats:
            seat.revive()

    async def _stick(self) -> None:
        seat = self.choices.pick(self.seats)
        if seat.workers:
            worker = seat.workers[self.choices.pick(sorted(seat.workers))]
            worker.stuck = not worker.stuck
            self._note(f"worker {worker.number} of {seat} is {'stuck' if worker.stuck else 'free again'}")
            seat.bury()

    async def _write(self) -> None:
        for log in self.cloud.logs.values():
            log.end += self.choices.below(5)

    async def _retain(self) -> None:
        log = self.choices.pick(list(self.cloud.logs.values()))
        if self.plan.policy == "earliest":
            log.retain(min(log.end, log.begin + self.choices.below(8)))
            self._note(f"{log.tp} begins at {log.begin}")

    async def _deny(self) -> None:
        log = self.choices.pick(list(self.cloud.logs.values()))
        log.denied = not log.denied
        self._note(f"{log.tp} may {'not ' if log.denied else ''}be read")

    async def _cut(self) -> None:
        """A member is not heard of until its session is over, and then at once. Meanwhile there is more to handle."""
        seat, seconds = self.choices.pick(self.seats), self.choices.pick((0.1, 0.3, 1.0, 3.0))
        self._note(f"nothing of {seat} gets through until {seconds:g} s after its session")
        self.cloud.unheard[str(seat)] = clock.now() + SESSION + seconds
        self._started.append(asyncio.create_task(self._written_later(SESSION)))

    async def _written_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._write()

    async def _pause(self) -> None:
        seat = self.choices.pick(self.seats)
        self._note(f"{seat} is paused")
        seat.actions.pause([])

    async def _resume(self) -> None:
        for seat in self.seats:
            seat.actions.resume([])

    async def _seek(self) -> None:
        """A person puts a partition elsewhere, of which the group has begun."""
        seat = self.choices.pick(self.seats)
        logs = [log for log in self.cloud.logs.values() if log.owed_from is not None and log.committed >= 0]
        held = [log for log in logs if log.tp in seat.driver.assignment.table]
        if held and not self.plan.in_transactions:
            log = self.choices.pick(held)
            goal = self.choices.pick((Goal(edge="earliest"), Goal(edge="latest"), Goal(offset=self._within(log))))
            self._note(f"{seat} is to go on with {log.tp} at {goal}")
            partition = seat.driver.assignment.table[log.tp]
            self._started.append(asyncio.create_task(self._sought(seat, partition, goal)))

    def _within(self, log: Log) -> int:
        return log.begin + self.choices.below(log.end - log.begin + 1)

    async def _sought(self, seat: Seat, partition: Partition, goal: Goal) -> None:
        done = await seat.seeker.seek([partition], goal, execute=True)
        self._note(f"{seat} says: {done.said}")

    async def _replace_code(self) -> None:
        seat = self.choices.pick(self.seats)
        self._note(f"the code of {seat} is replaced")
        seat.driver.assignment.code_replaced("other code")

    async def _shift(self) -> None:
        """As the balancer does."""
        seat = self.choices.pick(self.seats)
        table = seat.driver.assignment.table
        running = [each for each in table.values() if each.state is PartitionState.RUNNING and not each.lost]
        others = sorted(seat.workers)
        if running and len(others) > 1 and settled(table.values()):
            partition = self.choices.pick(running)
            giver = partition.worker.number if partition.worker is not None else 0
            receiver = next(number for number in others if number != giver)
            self._note(f"{partition.tp} moves to worker {receiver} of {seat}")
            move = Move(partition.tp, giver, receiver, Reason.LOAD, 1.0, 1.0, 0.0)
            seat.driver.assignment.distribution.move(move)

    async def _recycle(self) -> None:
        seat = self.choices.pick(self.seats)
        if seat.workers:
            number = self.choices.pick(sorted(seat.workers))
            self._note(f"worker {number} of {seat} hands over to a successor")
            seat.recycle(number)

    async def _fetch_anew(self) -> None:
        seat = self.choices.pick(self.seats)
        self._note(f"{seat} fetches anew")
        seat.driver.assignment.distribution.fetch_anew(list(seat.driver.assignment.table.values()))

    async def _grow(self) -> None:
        if self._topic_may_change and len(self.cloud.logs) < 6:
            self._topic_changes()
            self._add_log(
                len(self.cloud.logs), 0, after_all=any(log.committed >= 0 for log in self.cloud.logs.values())
            )
            self._note(f"there are {len(self.cloud.logs)} partitions")
            if isinstance(self.cloud.group, ConsumerGroup):
                self.cloud.group.grow(1, clock.now())
            self._doubt()

    async def _recreate(self) -> None:
        if not self._topic_may_change:
            return
        self._topic_changes()
        self._note("the topic is created anew")
        self.cloud.topic_id = UUID(int=next(self._topics))
        for number, log in enumerate(list(self.cloud.logs.values())):
            log.gone = True
            self._add_log(number, 0)
        if isinstance(self.cloud.group, ConsumerGroup):
            self.cloud.group.create_anew(self.cloud.topic_id, clock.now())
        self._doubt()

    @property
    def _topic_may_change(self) -> bool:
        return self.plan.protocol == "classic" or self.plan.late

    def _topic_changes(self) -> None:
        if self.plan.late:
            self.cloud.topic_changes()

    async def _looked_when_all_know(self) -> None:
        """A classic group finds what has changed as it refreshes its metadata, after five minutes where it has asked a
        broker that was late (`metadata_max_age_ms`); a story does not wait for so long. With the consumer protocol the
        coordinator tells: there nothing has members look."""
        await asyncio.sleep(LATEST)
        for seat in self.seats:
            seat.driver.topics.doubt()

    def _doubt(self) -> None:
        """Something has its members look again; where brokers are late, it may be that nothing does."""
        if not self.plan.late or self.choices.chance(70):
            for seat in self.seats:
                seat.driver.topics.doubt()

    def _add_log(self, number: int, end: int, *, after_all: bool = False) -> None:
        """`after_all`: the group has begun, so that it owes all of it whatever the policy. (Of a topic that is created
        anew nobody can tell who was not there to see.)"""
        tp = TopicPartition(TOPIC, number)
        owed_from = 0 if after_all or self.plan.policy == "earliest" else None
        self.cloud.logs[tp] = Log(tp, 0, end, owed_from=owed_from)

    def knows_it_by_another_id(self, error: Exception) -> bool:
        """Whether a static member is refused for good though nobody has its name: a coordinator that takes over knows
        the id under which it was in the last plan, not the one that it joined with since. It ends, and is started anew.
        """
        return self.plan.static and self._moved and "FENCED_INSTANCE_ID" in str(error)

    # -- at rest -----------------------------------------------------------------------------------------------------

    def excuse(self) -> None:
        """Somebody has lost partitions: what was not committed is handled again."""
        for log in self.cloud.logs.values():
            log.excuse()

    def _calm(self) -> None:
        self._note("-- nothing goes wrong any more")
        self.quiet, self.cloud.failing = True, ()
        for log in self.cloud.logs.values():
            log.denied = False
        for seat in self.seats:
            for worker in seat.living:
                worker.stuck = False
            seat.bury()
            seat.revive()
            seat.actions.resume([])
        if self.plan.late and self.plan.protocol == "classic":
            self._started.append(asyncio.create_task(self._looked_when_all_know()))

    def _rests(self) -> bool:
        for seat in self.seats:
            # A drain of the last rebalances may end with its worker killed, as any other.
            seat.revive()
            seat.actions.resume([])
        if not all(seat.rests for seat in self.seats) or any(not task.done() for task in self._started):
            return False
        if sorted(tp for seat in self.seats for tp in seat.driver.owned) != sorted(self.cloud.logs):
            return False
        return all(log.committed == log.end == log.unfinished for log in self.cloud.logs.values())

    def _standing(self) -> str:
        said = [
            f"{seat} is {seat.driver.member.state.value}, has "
            + ", ".join(f"{p.tp} {p.state.value} ({p.reason})" for p in seat.driver.assignment.table.values())
            for seat in self.seats
        ]
        logs = [
            f"{log.tp} committed {log.committed}, first unfinished {log.unfinished}, ends at {log.end}"
            for log in self.cloud.logs.values()
        ]
        return "; ".join([*said, *logs])

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{clock.now():12.3f}  {text}")


def tell(seed: int, number: int, trace: list[str] | None = None, noted: Sequence[int] | None = None) -> None:
    """That story. What it raises has the choices made as `choices`."""
    choices = Choices(by_seed(f"{seed}:{number}", noted))

    plan = drawn(choices)
    if seed >= BUSY_FROM:
        plan = with_busy_workers(choices, plan)
    elif seed >= LATE_FROM:
        plan = with_late_brokers(choices, plan)
    elif seed >= AWAY_FROM:
        plan = with_absences(plan)
    elif seed >= PERSONS_FROM:
        plan = with_persons(choices, plan)
    story, members = Story(choices, plan, trace), count(1)

    async def planned(work: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(story.plan.planning)
        return work(*args)

    try:
        with (
            mock.patch.object(random, "Random", side_effect=lambda *_: _Seeded(number)),
            mock.patch.object(asyncio, "to_thread", planned),
            # A member of the consumer protocol makes its own id, and partitions are dealt out in the order of ids.
            mock.patch.object(uuid, "uuid4", side_effect=lambda: UUID(int=next(members))),
        ):
            in_virtual_time(story.tell, sockets=False)
    except Exception as error:
        error.choices = choices.made  # type: ignore[attr-defined]
        raise


_Seeded = random.Random
