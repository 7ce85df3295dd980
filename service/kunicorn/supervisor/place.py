"""A worker's place in the pool, 0 … count−1, which outlives its processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kunicorn.supervisor.worker import WorkerProcess


@dataclass(slots=True)
class Place:
    """Usually one process. While it is replaced there are two: the successor starts, then the predecessor drains."""

    number: int
    process: WorkerProcess | None = None
    """Takes the place's partitions, now or as soon as it is ready."""
    successor: WorkerProcess | None = None
    """Starts, to take over from `process`."""
    predecessor: WorkerProcess | None = None
    """Hands its partitions over to `process` and exits."""
    restarts: int = 0
    handled_before: int = 0
    barren: int = 0
    """Deaths in a row, each with nothing handled and nothing in hand."""
    backing_off: bool = False
    turn: int = 0
    """Of its two transactional ids, the one that its process has; a successor beside it takes the other."""
    last_exit: str | None = None
    _left: asyncio.Event = field(default_factory=asyncio.Event)

    def processes(self) -> list[WorkerProcess]:
        """All that live."""
        return [p for p in (self.process, self.successor, self.predecessor) if p is not None]

    @property
    def handled(self) -> int:
        """Records finished by all its processes, as far as they told."""
        return self.handled_before + sum(p.handled for p in self.processes())

    def promote(self) -> WorkerProcess | None:
        """Let the successor take over; returns the process that held the place, if it lives."""
        self.predecessor, self.process, self.successor = self.process, self.successor, None
        self.turn += 1
        return self.predecessor

    def remove(self, process: WorkerProcess) -> None:
        """It is dead. A successor that is under way takes over from the one that held the place."""
        self.handled_before += process.handled
        if process is self.process:
            self.turn += 1 if self.successor is not None else 0
            self.process, self.successor = self.successor, None
        elif process is self.successor:
            self.successor = None
        else:
            self.predecessor = None
        self._left.set()

    async def vacant(self) -> None:
        """Until nobody holds the place."""
        while self.process is not None:
            self._left.clear()
            await self._left.wait()
