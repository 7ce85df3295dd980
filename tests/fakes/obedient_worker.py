"""A worker that does at once what it is told, in the loop of whoever tells it; what it has consumed the test says."""

from __future__ import annotations

import asyncio

from kunicorn.ipc.ledger import CONSUMED, HAND_OFFSET
from kunicorn.ipc.messages import (
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    StartFetcher,
    StopFetcher,
    Stopped,
    ToWorker,
)
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.partitions.assignment import Assignment
from tests.fakes.played_workers import PlayedWorker


class ObedientWorker(PlayedWorker):
    """Fetches what it is given, and lets go of what is taken away."""

    def __init__(self, number: int, assignment: Assignment) -> None:
        super().__init__(number)
        self._assignment = assignment
        self._held: dict[int, FetcherStart] = {}

    def send(self, message: ToWorker) -> None:
        if isinstance(message, StartFetcher):
            for start in message.partitions:
                self.ledger.open_slot(start.slot, start.grant, Position(start.offset, start.leader_epoch))
                self._held[start.grant] = start
        elif isinstance(message, StopFetcher):
            held = [self._held.pop(grant) for grant in message.grants if grant in self._held]
            stopped = FetcherStopped(
                [Stopped(start.grant, self._consumed(start), start.leader_epoch) for start in held]
            )
            asyncio.get_running_loop().call_soon(self._assignment.worker_stopped, self, stopped)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Consumed so far, of what it holds."""
        return {TopicPartition(start.topic, start.partition): self._consumed(start) for start in self._held.values()}

    def go_on(self) -> None:
        """One record more of everything that it holds."""
        for start in self._held.values():
            at = self.ledger.index(start.slot)
            self.ledger.cells[at + CONSUMED] += 1
            self.ledger.cells[at + HAND_OFFSET] = self.ledger.cells[at + CONSUMED]

    def fall_out_of_range(self) -> None:
        """The log does not hold what it is to fetch next, of anything."""
        held, self._held = list(self._held.values()), {}
        for start in held:
            failed = Failed(start.grant, FailureKind.OUT_OF_RANGE, self._consumed(start), 1, "offset out of range")
            self._assignment.worker_failed(self, failed)

    def _consumed(self, start: FetcherStart) -> int:
        return int(self.ledger.cells[self.ledger.index(start.slot) + CONSUMED])
