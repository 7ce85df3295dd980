"""A group's broker and a member's workers, played in any order, around the real assignment, committer and hand-over.

It knows what was really handled, and holds that against every hand-out and every commit. Offsets are the next one to
handle, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from kunicorn.errors import PeerError
from kunicorn.group.protocol import CommitAnswer
from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import FetcherStart, FetcherStopped, StartFetcher, StopFetcher, Stopped
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import NO_OFFSET, Position, TopicPartition
from kunicorn.settings import Settings
from kunicorn.supervisor.actions import Actions, Life
from kunicorn.supervisor.membership.revoke import Revocation
from kunicorn.supervisor.notifier import Notifier
from kunicorn.supervisor.offsets.commits import OffsetCommitter
from kunicorn.supervisor.offsets.seek import Seeker
from kunicorn.supervisor.partitions.balance import Move, Reason
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.tasks import ServiceTasks
from kunicorn.supervisor.workforce import Workforce
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import Stage

FIRST = 100
"""Where partitions begin."""
HOURS = 10_000_000
"""Milliseconds: no deadline comes; only the steps of the test happen."""
SETTINGS = Settings.model_validate(
    {
        "kafka": {"bootstrap_servers": ["127.0.0.1:9"]},
        "group": {
            "id": "orders",
            "topics": ["orders"],
            "drain_timeout_ms": HOURS,
            "commit_timeout_ms": HOURS,
            "max_poll_interval_ms": 3 * HOURS,
        },
        "handler": {"entrypoint": "shop:handle"},
    }
)


@dataclass
class Held:
    """One grant in a worker's hands."""

    start: FetcherStart
    position: int
    in_hand: bool = False
    opened: bool = False
    stop_asked: bool = False
    lost: bool = False

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.start.topic, self.start.partition)


class World:
    """Everything outside of the classes under test."""

    def __init__(self, workers: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.stage = Stage(workers, max_crashes=1_000_000)
        self.owned: set[TopicPartition] = set()
        self.leaving: dict[TopicPartition, asyncio.Task[Any]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.handled: dict[TopicPartition, int] = {}
        """By this member, as its current owner."""
        self.expected: dict[TopicPartition, int] = {}
        """Where the next hand-out must begin."""
        self.hands: dict[PlayedWorker, dict[int, Held]] = {worker: {} for worker in self.stage.workers.values()}
        self.over: list[tuple[PlayedWorker, int]] = []
        """Grants that are over, for late reports."""
        self.script: list[str] = []
        """What happens to the next commits; those after them are answered well."""
        self.joining = False
        self.in_flight = 0
        self._read: dict[PlayedWorker, int] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self.actions = Actions(
            self.stage.assignment,
            mock.Mock(spec=Workforce),
            mock.Mock(spec=Seeker),
            ServiceTasks(),
            mock.Mock(spec=Life),
        )
        self.commits = OffsetCommitter(
            self, self.stage.assignment.table.consumed, self.stage.assignment.table.committed, Metrics()
        )
        self.revocation = Revocation(SETTINGS, self.stage.assignment, self.commits, Metrics())

    # -- the broker ----------------------------------------------------------------------------------------------

    @property
    def may_commit(self) -> bool:
        return not self.joining

    def join_or_sync(self, *, joining: bool) -> None:
        """Between JoinGroup sent and SyncGroup answered, or not."""
        self.joining = joining
        self.changed.notify()

    @property
    def changed(self) -> Notifier:
        return self.stage.assignment.table.changed

    def commit_refused(self, error: int) -> None:
        pass

    def is_gone(self, topic: str) -> bool:
        return False

    async def send_commit(self, offsets: Mapping[TopicPartition, Position]) -> CommitAnswer:
        assert not self.joining, "invariant 2: a commit between JoinGroup and SyncGroup"
        assert self.in_flight == 0, "two commits in flight"
        for tp, position in offsets.items():
            assert tp in self.owned, f"invariant 3: {tp} is not ours"
            assert position.offset <= self.handled[tp], f"invariant 1: {tp}@{self.handled[tp]} is not finished"
            assert position.offset >= self.committed[tp], f"{tp}: back from {self.committed[tp]} to {position.offset}"
        fate = self.script.pop(0) if self.script else "taken"
        if fate in ("taken", "answer lost"):
            self.committed.update({tp: position.offset for tp, position in offsets.items()})
        self.in_flight += 1
        await asyncio.sleep(0)
        self.in_flight -= 1
        if fate in ("answer lost", "request lost"):
            raise PeerError(fate)
        return CommitAnswer(dict.fromkeys(offsets, 0 if fate == "taken" else int(fate)))

    # -- the group -----------------------------------------------------------------------------------------------

    def assign(self, tps: Collection[TopicPartition]) -> None:
        for tp in tps:
            self.committed.setdefault(tp, FIRST)
            self.handled[tp] = self.expected[tp] = self.committed[tp]
        self.owned |= set(tps)
        self.stage.assignment.assign(tps)
        self.go_on()

    def resolve(self) -> None:
        self.stage.tell_uncut()
        waiting = list(self.stage.resolving)
        self.stage.resolving.clear()
        starts = {p.tp: self.committed[p.tp] for p in waiting}
        self.stage.assignment.resolved({tp: Position(at) for tp, at in starts.items()}, starts)
        self.go_on()

    def revoke(self, tps: Collection[TopicPartition]) -> None:
        self.leaving |= dict.fromkeys(tps, self._begin(self._revoke(tuple(tps))))
        self.go_on()

    async def _revoke(self, tps: tuple[TopicPartition, ...]) -> None:
        held, rest = await self.revocation.revoke(tps, lambda: False)
        assert (held, rest) == (frozenset(), None)
        for tp in tps:
            assert not any(each.tp == tp for hands in self.hands.values() for each in hands.values()), (
                f"invariant 4: {tp} has left, and a worker still has it"
            )
            assert self.committed[tp] == self.handled[tp], f"invariants 2 and 8: {tp} left uncommitted"
            self.owned.discard(tp)
            del self.leaving[tp]

    def lose(self, tps: Collection[TopicPartition], others_handle: int) -> None:
        """Another member has them now, and gets on."""
        self._begin(self.revocation.lose(tuple(tps)))
        self.run(1)
        self.owned -= set(tps)
        for hands in self.hands.values():
            for each in hands.values():
                each.lost = each.lost or each.tp in tps
        for tp in tps:
            self.committed[tp] += others_handle
        self.go_on()

    # -- the workers ---------------------------------------------------------------------------------------------

    def begin_record(self, worker: PlayedWorker, grant: int) -> None:
        held = self.hands[worker][grant]
        held.opened = held.in_hand = True
        worker.consume(held.start, held.position, in_hand=1)

    def finish_record(self, worker: PlayedWorker, grant: int) -> None:
        held = self.hands[worker][grant]
        held.position, held.in_hand = held.position + 1, False
        worker.consume(held.start, held.position)
        if not held.lost:
            self.handled[held.tp] = self.expected[held.tp] = held.position

    def let_go(self, worker: PlayedWorker, grant: int) -> None:
        """A drained fetcher is reported."""
        held = self.hands[worker].pop(grant)
        self.over.append((worker, grant))
        offset = held.position if held.opened else NO_OFFSET
        self.stage.assignment.worker_stopped(worker, FetcherStopped([Stopped(grant, offset, 3)]))
        self.go_on()

    def report_late(self, worker: PlayedWorker, grant: int) -> None:
        """Under a grant that is over; the offset is one that nobody has reached."""
        self.stage.assignment.worker_stopped(worker, FetcherStopped([Stopped(grant, 10**6, 3)]))
        self.go_on()

    def crash(self, number: int) -> None:
        worker = self.stage.workers[number]
        self.over += [(worker, grant) for grant in self.hands.pop(worker)]
        self.stage.die(number)
        self.go_on()

    def replace(self, number: int) -> None:
        self.stage.revive(number)
        self.hands[self.stage.workers[number]] = {}
        self.stage.assignment.worker_ready(self.stage.workers[number])
        self.go_on()

    # -- a person ------------------------------------------------------------------------------------------------

    def movable(self) -> list[Partition]:
        """Those that a worker handles, while there is another worker."""
        table = self.stage.assignment.table
        running = [p for p in table.values() if p.state is PartitionState.RUNNING and p.worker is not None]
        return running if len(self.stage.pool.workers) > 1 else []

    def move(self, partition: Partition) -> None:
        """Loads have it that the partition is better off in the other worker."""
        assert partition.worker is not None
        giver = partition.worker.number
        receiver = next(number for number in self.stage.pool.workers if number != giver)
        self.stage.assignment.distribution.move(Move(partition.tp, giver, receiver, Reason.LOAD, 0.5, 1.0, 0.0))

    def pause_or_resume(self, tps: Collection[TopicPartition], *, pause: bool) -> None:
        """Those of them that are in a state for it."""
        act = self.actions.pause if pause else self.actions.resume
        act([f"{tp.topic}:{tp.partition}" for tp in tps if tp in self.stage.assignment.table])
        self.go_on()

    # -- time ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """What the timer does: everything consumed, once."""
        self._begin(self.commits._commit_once(self.stage.assignment.table.consumed, "timer"))
        self.go_on()

    def go_on(self) -> None:
        """Let the loop run, and take what the workers were told."""
        self.run(30)
        for worker in list(self.hands):
            for message in worker.told[self._read.get(worker, 0) :]:
                self._hear(worker, message)
            self._read[worker] = len(worker.told)

    def run(self, turns: int) -> None:
        """So many turns of the loop; what a task has found wrong is raised here."""

        async def turn() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            task.result()

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self._tasks.append(self.loop.create_task(work))
        return self._tasks[-1]

    def _hear(self, worker: PlayedWorker, message: object) -> None:
        if isinstance(message, StartFetcher):
            for start in message.partitions:
                self._take(worker, start)
        elif isinstance(message, StopFetcher):
            for grant in message.grants:
                if grant in self.hands[worker]:
                    self.hands[worker][grant].stop_asked = True

    def _take(self, worker: PlayedWorker, start: FetcherStart) -> None:
        tp = TopicPartition(start.topic, start.partition)
        others = [each for hands in self.hands.values() for each in hands.values() if each.tp == tp]
        assert not others, f"invariant 4: {tp} is handed out while another grant of it is open"
        assert tp in self.owned, f"{tp} is handed out and not ours"
        assert start.offset == self.expected[tp], f"{tp} goes on at {start.offset}, not at {self.expected[tp]}"
        self.hands[worker][start.grant] = Held(start, start.offset)
