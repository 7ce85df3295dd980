"""Who deals in partitions, as the pool sees it."""

from __future__ import annotations

from typing import Protocol

from kunicorn.pipes.messages import CommitOver, CommitWanted, Failed, FetcherStopped
from kunicorn.supervisor.worker import WorkerProcess


class PoolListener(Protocol):
    """Told what the workers say, and that they died; on the loop."""

    def worker_ready(self, worker: WorkerProcess) -> None:
        """It takes partitions now."""

    def worker_late(self, worker: WorkerProcess) -> None:
        """It takes long to be ready: `Pool.expected` leaves it out until it is."""

    def worker_stopped(self, worker: WorkerProcess, report: FetcherStopped) -> None:
        """Grants it let go of."""

    def worker_failed(self, worker: WorkerProcess, report: Failed) -> None:
        """A grant that ended by itself."""

    def worker_commits(self, worker: WorkerProcess, message: CommitWanted | CommitOver) -> None:
        """It is about to commit a transaction, or through with it."""

    def worker_retires(self, worker: WorkerProcess) -> None:
        """It is about to let go of all it has; its successor takes partitions already."""

    def worker_reported(self, worker: WorkerProcess) -> None:
        """Fresh evidence: a good moment to look into its ledger."""

    def worker_died(self, worker: WorkerProcess, how: str) -> bool:
        """It is dead and its ledger final; returns whether it had something in hand, or had
        handled something of what it held."""
