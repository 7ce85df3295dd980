"""Tables of grants on a real client that has no broker."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer

from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FetcherStart, FromWorker
from kunicorn.positions import TopicPartition
from kunicorn.worker.delivery import SettlingFetcher
from kunicorn.worker.partitions import SequentialTable
from kunicorn.worker.produce.outbox import Limits, Outbox
from kunicorn.worker.progress import Grant
from tests.fakes.parts import parts

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LATER = 10_000_000_000


class Table:
    """A fetcher and what it reported."""

    def __init__(self, delays: Mapping[str, int] | None = None) -> None:
        self.consumer = Consumer({"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0})
        self.ledger = Ledger.create(64)
        self.reports: list[FromWorker] = []
        made = parts(self.consumer, self.ledger, self.reports.append, delays=delays)
        self.counters = made.counters
        self.fetcher = SequentialTable(made)

    def start(self, tp: TopicPartition, grant: int, offset: int = 0) -> None:
        self.fetcher.start([FetcherStart(grant, grant, *tp, offset, -1)])

    def fetch(self, tp: TopicPartition, grant: int, offset: int = 0) -> None:
        self.start(tp, grant, offset)
        self.fetcher.begin_turn(0)

    def take(self, tp: TopicPartition, offset: int = 0, count: int = 1) -> Grant:
        grant = self.fetcher.begin(tp, range(offset + 1, offset + count + 1), 0, 0)
        assert grant is not None
        return grant

    def assigned(self) -> list[tuple[str, int, int]]:
        return sorted((p.topic, p.partition, p.offset) for p in self.consumer.assignment())


class SettlingTable(Table):
    """A fetcher whose outputs the test delivers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.outbox = Outbox(Limits(1000, 1000, 0.0), lambda: self.now)
        self.settling = SettlingFetcher(parts(self.consumer, self.ledger, self.reports.append), self.outbox)
        self.fetcher = self.settling
