"""The partition table with a pool of played workers: what a test assigns, hands out and takes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from uuid import UUID

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import FetcherStart, FetcherStopped, Stopped
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.settings import Settings, WorkerSettings
from kunicorn.supervisor.facts import TopicHandling
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.partitions.table import PartitionTable
from kunicorn.supervisor.workers.process import WorkerState
from tests.fakes.complete_settings import settings_of
from tests.fakes.played_workers import PlayedPool, PlayedWorker


def tps(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("orders", n) for n in numbers]


@dataclass
class PlayedTopics:
    """Which topic has a name now."""

    topic_id: Callable[[str], UUID | None] = lambda _: None
    is_gone: Callable[[str], bool] = lambda _: False
    created_anew: Callable[[str], bool] = lambda _: False
    doubts: int = 0
    """How often somebody wanted to know anew."""

    def doubt(self) -> None:
        self.doubts += 1


@cache
def settings_with(policy: str) -> Settings:
    """Of a group whose partitions start by that policy where nothing is committed. Checked once, as
    `driver._settings`: each stage has them."""
    return settings_of(group={"auto_offset_reset": policy})


@dataclass
class PlayedSettings:
    """What partitions go by of the settings in force."""

    workers: WorkerSettings
    rules: TopicHandling
    keeps_offsets: Callable[[str], bool] = lambda _: False
    settings: Settings = field(default_factory=lambda: settings_with("earliest"))

    def handling(self, topic: str) -> TopicHandling:
        return self.rules

    def delay_ms(self, topic: str) -> int:
        return self.settings.delay_ms_of(topic)


class Stage:
    """Assignment with a pool of played workers; start offsets are 100 everywhere."""

    def __init__(
        self, workers: int = 1, max_crashes: int = 2, *, pool: Any = None, topics: Any = None, **more: Any
    ) -> None:
        self.workers = {number: PlayedWorker(number) for number in range(workers)}
        self.pool = PlayedPool({}) if pool is None else pool
        self.pool.workers |= self.workers
        self.topics = PlayedTopics() if topics is None else topics
        self.in_force = PlayedSettings(WorkerSettings(max_crashes=max_crashes), TopicHandling(**more))
        in_force: Any = self.in_force
        untyped: Any = self.pool
        names: Any = self.topics
        self.metrics = Metrics()
        self.assignment = Assignment(PartitionTable(names, in_force), untyped, in_force, self.metrics)
        self._resolving: list[Partition] = []

    @property
    def resolving(self) -> list[Partition]:
        """Partitions whose start was to be looked up, since the test has last cleared this."""
        waiting = self.assignment.table.without_start
        while not waiting.empty():
            self._resolving += waiting.get_nowait()
        return self._resolving

    def give(self, *numbers: int) -> None:
        """Assign these partitions and resolve their starts."""
        self.assignment.assign(tps(*numbers))
        self.resolve(*numbers)

    def resolve(self, *numbers: int) -> None:
        self.assignment.resolved({tp: Position(100, 3) for tp in tps(*numbers)}, dict.fromkeys(tps(*numbers), 100))

    def tell_uncut(self) -> None:
        """Answer whether logs were cut while nobody fetched them: they were not."""
        held = {p.tp: at for p in self.resolving if (at := p.reached()) is not None}
        self._resolving = [p for p in self._resolving if p.tp not in held]
        self.assignment.resolved(held, {})

    def state(self, number: int) -> PartitionState | None:
        partition = self.assignment.table.get(TopicPartition("orders", number))
        return partition.state if partition is not None else None

    def start_of(self, number: int, worker: int = 0) -> FetcherStart:
        return self.workers[worker].starts()[TopicPartition("orders", number)]

    def stopped(self, start: FetcherStart, offset: int, worker: int = 0) -> None:
        self.assignment.worker_stopped(self.workers[worker], FetcherStopped([Stopped(start.grant, offset, 3)]))

    def die(self, worker: int = 0, how: str = "SIGKILL") -> bool:
        dead = self.pool.workers.pop(worker)
        dead.state = WorkerState.DEAD
        return self.assignment.worker_died(dead, how)

    def revive(self, worker: int = 0) -> None:
        self.workers[worker] = self.pool.workers[worker] = PlayedWorker(worker)
        self.assignment.worker_ready(self.workers[worker])

    def die_and_revive(self, worker: int = 0, how: str = "SIGKILL") -> bool:
        """Its successor is there at once; see `die`."""
        opened = self.die(worker, how)
        self.revive(worker)
        return opened


def consumed(stage: Stage) -> dict[int, int]:
    return {tp.partition: position.offset for tp, position in stage.assignment.table.consumed().items()}
