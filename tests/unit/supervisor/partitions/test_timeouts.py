"""Since when a handler has had its record, and which of them have been there for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kunicorn.ipc import clock
from kunicorn.ipc.ledger import HAND_SINCE, SlotReading
from kunicorn.ipc.messages import InHand, Pong, TimedOut
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.facts import TopicHandling
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.partitions.watchdog import Timeouts, began
from kunicorn.supervisor.workers.process import WorkerProcess, escalate
from tests.fakes.played_workers import PlayedPool, PlayedWorker
from tests.fakes.stage import Stage


def reading(consumed: int, hand_offset: int = 100, since: float = 50.0) -> SlotReading:
    """Ten records from `hand_offset` on were taken in hand at `since` seconds."""
    return SlotReading(Position(consumed, 1), hand_offset, 10, round(since * clock.NANOSECONDS), -1, 0)


def test_the_first_record_in_hand_began_when_it_was_taken() -> None:
    assert began(reading(100), seen=None, now=70.0) == 50.0
    assert began(reading(100), seen=60.0, now=70.0) == 50.0


def test_a_later_one_is_not_charged_for_those_before_it() -> None:
    """A hundred fast records are taken in hand at once; the last of them has not been there from the beginning."""
    assert began(reading(107), seen=None, now=70.0) == 70.0
    assert began(reading(107), seen=68.5, now=70.0) == 68.5


class Unkillable(PlayedWorker):
    """Whose death is not played."""

    def abort(self) -> None:
        """Nothing."""

    def kill(self) -> None:
        """Nothing."""


class Pressing(PlayedPool):
    """A pool with one worker, which climbs the real ladder."""

    def __init__(self, worker: PlayedWorker) -> None:
        super().__init__({0: worker})
        self.changed = Notifier()

    def processes(self) -> list[WorkerProcess]:
        return list(self.workers.values())

    async def escalate(
        self, process: WorkerProcess, reason: str, until: Callable[[], bool], interrupt: Callable[[], None]
    ) -> None:
        await escalate(process, reason, until, self.changed, interrupt)


@dataclass
class Limits:
    """The settings in force: handler_timeout_ms by topic."""

    limits: Mapping[str, int | None]

    def handling(self, topic: str) -> TopicHandling:
        return TopicHandling(timeout_ms=self.limits[topic])


class Watched:
    """One worker that has partition 0 of these topics, and what it is told of overdue records."""

    def __init__(self, limits: Mapping[str, int | None]) -> None:
        self.worker = Unkillable(0)
        self.pool = Pressing(self.worker)
        untyped: Any = self.pool
        self.stage = Stage(workers=0, pool=untyped)
        self.assignment = self.stage.assignment
        self.tps = [TopicPartition(topic, 0) for topic in limits]
        self.assignment.assign(self.tps)
        self.assignment.resolved({tp: Position(100, 3) for tp in self.tps}, dict.fromkeys(self.tps, 100))
        # It tells of one record only: that of the first topic, which it has had for the longest.
        first = InHand(self.tps[0].topic, 0, 100, len(self.tps), 700.0)
        self.worker.pong = Pong(1, 1, 0, first, 0, paused_by_lease=False, logs_dropped=0)
        in_force: Any = Limits(limits)
        self.timeouts = Timeouts(untyped, self.assignment, in_force, Metrics())

    def holds(self, topic: str, seconds: float) -> None:
        """The handler has had its record of the topic for so long, as the ledger says."""
        start = self.worker.starts()[TopicPartition(topic, 0)]
        self.worker.consume(start, 100, in_hand=1)
        at = self.worker.ledger.index(start.slot)
        self.worker.ledger.cells[at + HAND_SINCE] = clock.now_ns() - round(seconds * clock.NANOSECONDS)

    def lets_go(self) -> None:
        for tp in self.tps:
            self.worker.consume(self.worker.starts()[tp], 101)
        self.pool.changed.notify()

    def timed_out(self) -> set[str]:
        topics = {start.grant: tp.topic for tp, start in self.worker.starts().items()}
        return {topics[message.grant] for message in self.worker.told if isinstance(message, TimedOut)}


async def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = clock.now() + 60
    while not condition():
        assert clock.now() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


async def watch_until(watched: Watched, topics: set[str]) -> None:
    """Until those are told of, and no ladder is climbed any more."""
    task = asyncio.create_task(watched.timeouts.watch())
    try:
        await eventually(lambda: watched.timed_out() >= topics, "the worker to be told of the overdue records")
        watched.lets_go()
        await eventually(lambda: watched.worker.killed_by_us is None, "the ladder to end")
    finally:
        task.cancel()


async def test_a_record_without_a_limit_hides_no_other_of_the_same_worker() -> None:
    watched = Watched({"reports": None, "orders": 30_000})
    watched.holds("reports", 700)
    watched.holds("orders", 600)
    await watch_until(watched, {"orders"})
    assert watched.timed_out() == {"orders"}


async def test_everything_that_is_overdue_is_interrupted_at_once_and_nothing_else() -> None:
    """Each rung of the ladder takes a second: one after the other, the last of many would wait for minutes."""
    watched = Watched({"orders": 30_000, "bills": 5_000, "mails": 900_000})
    for topic in ("orders", "bills", "mails"):
        watched.holds(topic, 600)
    await watch_until(watched, {"orders", "bills"})
    told = [message for message in watched.worker.told if isinstance(message, TimedOut)]
    assert watched.timed_out() == {"orders", "bills"}
    assert len(told) == 2, "all of them in one go: the ladder's first rung is climbed once"
    ages = sorted((clock.now_ns() - message.overdue_ns) // 10**9 for message in told)
    assert ages[0] >= 5
    assert ages[1] >= 30


async def test_a_worker_that_has_to_die_for_one_of_two_overdue_records_dies_for_that_one() -> None:
    watched = Watched({"orders": 30_000, "bills": 5_000})
    watched.holds("orders", 600)
    watched.holds("bills", 600)
    task = asyncio.create_task(watched.timeouts.watch())
    try:
        await eventually(lambda: watched.timed_out() == {"orders", "bills"}, "both to be interrupted")
        assert watched.worker.blamed == set(watched.tps)
        watched.worker.consume(watched.worker.starts()[watched.tps[0]], 101)
        watched.pool.changed.notify()
        await eventually(lambda: watched.worker.blamed == {watched.tps[1]}, "the one that is left")
    finally:
        task.cancel()


async def test_a_worker_that_is_held_up_by_its_first_record_before_it_ever_answered_is_interrupted() -> None:
    """In C code that holds the GIL no thread of it answers: nothing but its ledger tells what it has in hand."""
    watched = Watched({"orders": 700})
    watched.holds("orders", 20)
    watched.worker.pong, watched.worker.unanswered = None, 4
    await watch_until(watched, {"orders"})
