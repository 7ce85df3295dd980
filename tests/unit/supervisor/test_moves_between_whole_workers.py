"""Partitions that go to and fro between two whole workers: supervisor's table, runners and crews are the real ones, the
brokers are in memory. Each record is handled once, in its order, whatever a worker handles beside it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kunicorn.group.states import PartitionState
from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc import clock
from kunicorn.ipc.messages import (
    Configure,
    FetcherStopped,
    FromWorker,
    Ping,
    StartFetcher,
    StopFetcher,
    ToWorker,
)
from kunicorn.positions import Position, TopicPartition
from kunicorn.supervisor.partitions.balance import Move, Reason
from kunicorn.supervisor.partitions.partition import is_at_its_end
from kunicorn.testing import record
from kunicorn.testing.memory import MemoryConsumer, MemoryLog, message_of, placed
from kunicorn.worker.assembly import Assembled, Makers, assemble
from tests.fakes.played_workers import PlayedWorker
from tests.fakes.stage import Stage
from tests.unit.worker import crowded_handlers
from tests.unit.worker.whole import order
from tests.waiting import wait_until

TOPICS = ("orders", "refunds")
RECORDS, KEYS, STOP = 150, 7, 120
ORDERS, REFUNDS = (TopicPartition(topic, 0) for topic in TOPICS)


class WholeWorker(PlayedWorker):
    """Does what it is told, in a thread of its own."""

    def __init__(self, number: int, log: MemoryLog, handlers: Sequence[HandlerConfig], reports: Reports) -> None:
        super().__init__(number)
        self.extend_lease(clock.now_ns() + 10**12)
        self._log = log
        self._configure = Configure(number, "g", list(handlers), {}, [], "info", "text", ahead_bytes=10_000)
        self._reports = reports
        self.unread: list[ToWorker] | None = None
        """What it is told while it reads late."""
        self._assembled: Assembled | None = None
        self._thread = threading.Thread(target=self._live)
        self._thread.start()
        self._parts = wait_until(lambda: self._assembled, "the worker's parts")

    def send(self, message: ToWorker) -> None:
        """As the control thread passes it on; while it reads late, at `read`."""
        super().send(message)
        if self.unread is None:
            self._read(message)
        else:
            self.unread.append(message)

    def read(self) -> None:
        """All that it has not read yet."""
        unread, self.unread = self.unread or [], None
        for message in unread:
            self._read(message)

    def _read(self, message: ToWorker) -> None:
        if isinstance(message, StartFetcher):
            self._parts.hooks.start(message.partitions)
        elif isinstance(message, StopFetcher):
            self._parts.hooks.stop(message.grants, lost=message.lost)
        elif isinstance(message, Ping):
            self.answer(message.sequence)

    def go_round(self) -> None:
        """Its loop has looked at the lease, and begun what it may."""
        turns = self._parts.runner.progress
        wait_until(lambda: self._parts.runner.progress > turns + 5, "the loop to go round")

    def end(self) -> None:
        """Drain."""
        self._parts.hooks.drain()
        self._thread.join(60)
        for handling in self._parts.handlings.every:
            handling.tear_down()

    def _live(self) -> None:
        consumer: Any = MemoryConsumer(self._log, lambda seconds: time.sleep(min(seconds, 0.01)))
        makers = Makers(consumer=lambda properties, logger: consumer)
        made = assemble(self._configure, self.ledger, lambda said: self._reports.put((self, said)), makers)
        self._assembled = made
        made.runner.run()


Reports = queue.SimpleQueue[tuple[WholeWorker, FromWorker]]


class Pair:
    """Two workers, and the supervisor's table of both topics' only partition, which worker 0 has at first."""

    def __init__(self, handlers: Sequence[HandlerConfig]) -> None:
        given = [record("v", key=f"k{n % KEYS}", topic=topic) for n in range(RECORDS) for topic in TOPICS]
        log, self._reports = MemoryLog(map(message_of, placed(given, ""))), Reports()
        self.stage = Stage(workers=2)
        self.workers = {number: WholeWorker(number, log, handlers, self._reports) for number in range(2)}
        self.stage.pool.workers = dict(self.workers)
        self.table = self.stage.assignment.table
        self.stage.assignment.assign([ORDERS, REFUNDS])
        self.table[ORDERS].stop = STOP
        self.stage.assignment.resolved({ORDERS: Position(0, 1), REFUNDS: Position(0, 1)}, {})

    def hear(self) -> None:
        """What workers have reported since."""
        while not self._reports.empty():
            worker, said = self._reports.get()
            assert isinstance(said, FetcherStopped)
            self.stage.assignment.worker_stopped(worker, said)
        for partition in self.table.values():
            partition.read_ledger()

    def move(self, tp: TopicPartition) -> bool:
        """To the other worker, if it is fetched; whether it moves."""
        self.hear()
        partition = self.table[tp]
        if partition.state is not PartitionState.RUNNING:
            return False
        assert partition.worker is not None
        giver = partition.worker.number
        self.stage.assignment.distribution.move(Move(tp, giver, 1 - giver, Reason.LOAD, 0.5, 1.0, 0.5))
        return True

    def consumed(self, tp: TopicPartition) -> int:
        """The next offset to handle, and what is done beyond it does not count."""
        self.hear()
        position = self.table[tp].position
        return position.offset if position is not None else 0


@contextmanager
def pair(*handlers: HandlerConfig) -> Iterator[Pair]:
    """Drained at the end."""
    both = Pair(handlers)
    try:
        yield both
    finally:
        for worker in both.workers.values():
            worker.end()


@pytest.fixture(autouse=True)
def notes() -> None:
    crowded_handlers.forget()


def handled(topic: str) -> list[int]:
    """Offsets of every call, in the order in which they began."""
    return [offset for of, offset in crowded_handlers.begun if of == topic]


def in_order_of_keys(topic: str) -> bool:
    by_key = [[offset for offset in handled(topic) if offset % KEYS == key] for key in range(KEYS)]
    return all(offsets == sorted(offsets) for offsets in by_key)


BY_KEY = [order("wait", "key", 5, "orders"), order("wait_async", "key", 3, "refunds")]
ONE_BY_ONE = [order("wait", "partition", None, "orders"), order("wait", "partition", None, "refunds")]


@pytest.mark.parametrize("handlers", [BY_KEY, ONE_BY_ONE], ids=["several in hand, by key", "one in hand"])
def test_what_moves_amid_its_records_is_handled_once_in_order_up_to_its_stop(
    handlers: tuple[HandlerConfig, ...],
) -> None:
    moves = 0
    with pair(*handlers) as both:
        ends = {ORDERS: STOP, REFUNDS: RECORDS}

        def through() -> bool:
            nonlocal moves
            moves += sum(both.move(tp) for tp in ends if both.consumed(tp) < ends[tp])
            return all(both.consumed(tp) == end for tp, end in ends.items())

        wait_until(through, "all to be handled")
        assert is_at_its_end(both.table[ORDERS])
    assert moves > 5
    assert sorted(handled("orders")) == list(range(STOP)), "each once, and none behind the stop"
    assert sorted(handled("refunds")) == list(range(RECORDS))
    assert all(map(in_order_of_keys, TOPICS))


async def test_a_partition_that_is_taken_back_while_it_moves_goes_to_nobody() -> None:
    with pair(*BY_KEY) as both:
        wait_until(lambda: both.consumed(ORDERS) > STOP // 2, "half of it")
        assert both.move(ORDERS)
        partition = both.table[ORDERS]
        leaving = asyncio.ensure_future(both.stage.assignment.revoke([ORDERS], clock.now() + 20, clock.now() + 30))
        while not leaving.done():
            both.hear()
            await asyncio.sleep(0.005)
        assert partition.state is PartitionState.RELEASED
        assert partition.position is not None
        assert {*range(partition.position.offset), *partition.done.offsets()} == set(handled("orders"))
    told = [message for worker in both.workers.values() for message in worker.told]
    starts = [start for message in told if isinstance(message, StartFetcher) for start in message.partitions]
    assert sum(start.topic == "orders" for start in starts) == 1


async def test_invariant_4_a_worker_that_reads_late_begins_nothing_of_what_was_lost_though_the_member_is_back() -> None:
    with pair(*ONE_BY_ONE) as both:
        worker, stage = both.workers[0], both.stage
        wait_until(lambda: both.consumed(ORDERS) > 5, "some records")
        worker.unread = []
        losing = asyncio.ensure_future(stage.assignment.lose([ORDERS, REFUNDS], clock.now() + 20, clock.now() + 30))
        await asyncio.sleep(0)
        begun = len(crowded_handlers.begun)
        worker.go_round()
        assert len(crowded_handlers.begun) <= begun + 1, "one had passed the lease already"
        begun = len(crowded_handlers.begun)
        worker.extend_lease(clock.now_ns() + 10**12)
        worker.go_round()
        assert len(crowded_handlers.begun) == begun
        worker.read()
        while not losing.done():
            both.hear()
            await asyncio.sleep(0.005)
        stage.assignment.assign([ORDERS])
        stage.assignment.resolved({ORDERS: Position(20, 1)}, {})
        wait_until(lambda: len(crowded_handlers.begun) > begun, "it to go on with what is ours again")
