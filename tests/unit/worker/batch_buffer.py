"""Records that wait for a fuller batch, on a real client that has no broker."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import OFFSET_INVALID, Consumer, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import FetcherStart, FromWorker
from kunicorn.positions import TopicPartition
from kunicorn.worker.buffering import BatchBuffer, Bounds
from kunicorn.worker.fetch import Run
from kunicorn.worker.partitions import SequentialTable
from tests.fakes.parts import parts
from tests.unit.worker.tables import P0, P1

WAIT = 100
BOUNDS = Bounds(records=3, bytes=None, wait_ns=WAIT, memory=1_000_000)


class Client(Consumer):
    """Says that it is `ahead` by so much."""

    ahead = OFFSET_INVALID

    def position(self, partitions: list[ClientPartition]) -> list[ClientPartition]:
        """The same everywhere."""
        return [ClientPartition(each.topic, each.partition, self.ahead) for each in partitions]


class Scene:
    """A fetcher with two partitions, and what waits of them."""

    def __init__(self) -> None:
        self.consumer = Client({"bootstrap.servers": "127.0.0.1:9", "group.id": "g", "log_level": 0})
        self.ledger = Ledger.create(64)
        self.reports: list[FromWorker] = []
        self.fetcher = SequentialTable(parts(self.consumer, self.ledger, self.reports.append))
        self.fetcher.start([FetcherStart(1, 1, *P0, 0, -1), FetcherStart(2, 2, *P1, 0, -1)])
        self.fetcher.begin_turn(0)
        self.buffer = BatchBuffer(BOUNDS, self.fetcher)

    def add(self, tp: TopicPartition, *offsets: int, now: int = 0, epoch: int = 0) -> list[list[int]]:
        """The batches that are to be handled right away."""
        return shown(self.buffer.add(Run(tp, epoch, messages(tp, *offsets)), now))

    def due(self, now: int) -> list[list[int]]:
        """The batches that have waited for long enough."""
        return shown(self.buffer.due(now))


def messages(tp: TopicPartition, *offsets: int, size: int = 1) -> list[Message]:
    return [Message(topic=tp.topic, partition=tp.partition, offset=offset, value=b"x" * size) for offset in offsets]


def shown(some: Iterable[Run]) -> list[list[int]]:
    return [[message.offset() or 0 for message in run.messages] for run in some]
