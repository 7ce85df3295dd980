"""The partition table with a pool of played workers: what a test assigns, hands out and takes back."""

from __future__ import annotations

from typing import Any

from kunicorn.group.states import PartitionState
from kunicorn.ipc.messages import FetcherStart, FetcherStopped, Stopped
from kunicorn.observe.metrics import Metrics
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.partitions.assignment import Fetchers, TopicHandling
from kunicorn.supervisor.partitions.partition import Partition
from kunicorn.supervisor.workers.process import WorkerState
from tests.fakes.played_workers import PlayedPool, PlayedWorker


def tps(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("orders", n) for n in numbers]


class Stage:
    """Fetchers with a pool of played workers; start offsets are 100 everywhere."""

    def __init__(self, workers: int = 1, max_crashes: int = 2, **more: bool) -> None:
        self.workers = {number: PlayedWorker(number) for number in range(workers)}
        self.pool = PlayedPool(dict(self.workers))
        self.fetchers = Fetchers(max_crashes, Metrics(), lambda _: TopicHandling(**more))
        untyped: Any = self.pool
        self.fetchers.pool = untyped
        self.resolving: list[Partition] = []
        self.fetchers.resolve = self.resolving.extend

    def give(self, *numbers: int) -> None:
        """Assign these partitions and resolve their starts."""
        self.fetchers.assign(tps(*numbers))
        self.resolve(*numbers)

    def resolve(self, *numbers: int) -> None:
        self.fetchers.resolved({tp: Position(100, 3) for tp in tps(*numbers)}, dict.fromkeys(tps(*numbers), 100))

    def state(self, number: int) -> PartitionState | None:
        partition = self.fetchers.table.get(TopicPartition("orders", number))
        return partition.state if partition is not None else None

    def start_of(self, number: int, worker: int = 0) -> FetcherStart:
        return self.workers[worker].starts()[TopicPartition("orders", number)]

    def stopped(self, start: FetcherStart, offset: int, worker: int = 0) -> None:
        self.fetchers.worker_stopped(self.workers[worker], FetcherStopped([Stopped(start.grant, offset, 3)]))

    def die(self, worker: int = 0) -> bool:
        dead = self.pool.workers.pop(worker)
        dead.state = WorkerState.DEAD
        return self.fetchers.worker_died(dead, "SIGKILL")

    def revive(self, worker: int = 0) -> None:
        self.workers[worker] = self.pool.workers[worker] = PlayedWorker(worker)
        self.fetchers.worker_ready(self.workers[worker])


def consumed(stage: Stage) -> dict[int, int]:
    return {tp.partition: position.offset for tp, position in stage.fetchers.table.consumed().items()}
