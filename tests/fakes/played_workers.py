"""Workers whose part the test plays, with real ledgers, and the pool of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kunicorn.ipc import clock
from kunicorn.ipc.ledger import CONSUMED, HAND_COUNT, HAND_END, HAND_OFFSET, Ledger
from kunicorn.ipc.messages import FetcherStart, Ping, Pong, StartFetcher, StopFetcher, ToWorker
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.workers.pool import WorkerSlot
from kunicorn.supervisor.workers.process import Child, WorkerProcess, WorkerState


class PlayedWorker(WorkerProcess):
    """A worker whose part the test plays: it keeps what it is told and writes a real ledger."""

    def __init__(self, number: int) -> None:
        super().__init__(number, Child(-1, -1), Ledger.create(64))
        self.told: list[ToWorker] = []
        self.state = WorkerState.READY

    def send(self, message: ToWorker) -> None:
        self.told.append(message)

    def starts(self) -> dict[TopicPartition, FetcherStart]:
        """Every hand-out so far, the latest of each partition."""
        return {
            TopicPartition(start.topic, start.partition): start
            for message in self.told
            if isinstance(message, StartFetcher)
            for start in message.partitions
        }

    def pings(self) -> list[int]:
        """Sequence of every Ping so far."""
        return [message.sequence for message in self.told if isinstance(message, Ping)]

    def answer(self, ping: int) -> None:
        """It has read that Ping, and has nothing else to tell."""
        self.note_pong(Pong(ping, 0, 0, None, 0, paused_by_lease=False, logs_dropped=0), clock.now())

    def asked_to_stop(self) -> list[int]:
        return [grant for message in self.told if isinstance(message, StopFetcher) for grant in message.grants]

    def consume(self, start: FetcherStart, offset: int, *, in_hand: int = 0, end: int | None = None) -> None:
        """Open the slot if need be; have consumed up to `offset`, with so many records in hand, the last one before
        `end`, or else without gaps."""
        if not self.ledger.read(start.slot, start.grant).started:
            self.ledger.open_slot(start.slot, start.grant, Position(start.offset, start.leader_epoch))
        at = self.ledger.index(start.slot)
        self.ledger.cells[at + CONSUMED] = offset
        self.ledger.cells[at + HAND_OFFSET] = offset
        self.ledger.cells[self.ledger.busy_index(start.slot) + HAND_END] = offset + in_hand if end is None else end
        self.ledger.cells[at + HAND_COUNT] = in_hand


@dataclass
class PlayedPool:
    """The workers there are."""

    workers: dict[int, PlayedWorker]
    slots: list[Any] = field(default_factory=lambda: [WorkerSlot(0), WorkerSlot(1)])
    escalated: list[int] = field(default_factory=list)
    leases: list[int] = field(default_factory=list)

    def want(self, workers: int) -> None:
        pass

    def expected(self) -> list[int]:
        return sorted(self.workers)

    def accepting(self, number: int) -> PlayedWorker | None:
        return self.workers.get(number)

    def extend_lease(self, until_ns: int) -> None:
        self.leases.append(until_ns)

    async def escalate(
        self, worker: PlayedWorker, reason: str, until: Callable[[], bool], interrupt: Callable[[], None]
    ) -> None:
        self.escalated.append(worker.number)
        interrupt()
