"""What a worker's table of partitions is made of, where nobody asks for anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FromWorker
from kunicorn.worker.fetching.client import KnownTopics, Librdkafka, Login
from kunicorn.worker.grants import Parts, TableSettings
from kunicorn.worker.progress import Interrupts
from kunicorn.worker.stats import Counters


class NoTopics(KnownTopics):
    """There is no broker to learn them from."""

    def __init__(self) -> None:
        pass

    def learn(self, topics: Iterable[str], seconds: float) -> None:
        """Nothing."""


class Played(Librdkafka):
    """Of a consumer that may say what its records keep in memory."""

    @property
    def shared_bytes(self) -> int:
        """See `Client`."""
        return int(getattr(self.consumer, "shared_bytes", 0))


def parts(
    consumer: Any,
    ledger: Ledger,
    report: Callable[[FromWorker], None] = lambda message: None,
    ahead_bytes: int = 1_000_000,
    delays: Mapping[str, int] | None = None,
) -> Parts:
    """With counters that nobody reads."""
    settings = TableSettings(ahead_bytes, delays or {})
    return Parts(Played(consumer, NoTopics(), Login(None)), ledger, Counters(), report, Interrupts(), settings)
