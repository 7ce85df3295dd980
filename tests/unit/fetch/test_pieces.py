"""An answer is taken in piece by piece, as there is room, and meanwhile its partitions move to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from kunicorn.columns.decoding import Decoder
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.queue import FetchQueue
from kunicorn.fetch.table import Fetching
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes import fetched
from tests.fakes.broker import Asked, FakeBroker, cluster_of
from tests.fakes.virtual_loop import virtual_time
from tests.unit.fetch.played_brokers import BY_NAME, LIMITS, MB, OLD, framed, offsets_of, running

BATCH = 10


def batch(base_offset: int, epoch: int = 0) -> bytes:
    return fetched.batch(fetched.records(BATCH), base_offset=base_offset, epoch=epoch)


def batches(first: int, behind: int) -> list[bytes]:
    return [batch(at) for at in range(first, behind, BATCH)]


class Cluster:
    """Broker 1 has all of what it sends of orders-1 in one answer, which is taken in piece by piece. When the first one
    is, orders-1 moves; and broker 2 sends a batch of it at a time first, and then all up to `behind`."""

    def __init__(self, one: FakeBroker, two: FakeBroker, behind: int) -> None:
        self.brokers = (one, two)
        self.behind = behind
        self.asked_of_two: list[int] = []
        self.lead((1, 3), (1, 3), (2, 3))
        one.script[Api.FETCH], two.script[Api.FETCH] = self.by_one, self.by_two

    def lead(self, *leaders: tuple[int, int]) -> None:
        for broker in self.brokers:
            broker.lead(self.brokers, {"orders": dict(enumerate(leaders))})

    async def by_one(self, asked: Asked) -> bytes:
        if 1 not in offsets_of(asked):
            return await self.nothing(asked)
        pieces = [batch(at, epoch=at // BATCH) for at in range(0, 100, BATCH)]
        return framed(asked, [fetched.partition(BY_NAME, 0, pieces), fetched.partition(BY_NAME, 1, batches(0, 200))])

    async def by_two(self, asked: Asked) -> bytes:
        offset = offsets_of(asked).get(1)
        if offset is None:
            # Has the metadata asked for, and the election is over by then.
            self.lead((1, 3), (2, 4), (2, 4))
            return framed(asked, [fetched.partition(BY_NAME, 2, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)])
        self.asked_of_two.append(offset)
        if offset >= self.behind:
            return await self.nothing(asked)
        most = BATCH if len(self.asked_of_two) <= 6 else self.behind
        return framed(asked, [fetched.partition(BY_NAME, 1, batches(offset, min(offset + most, self.behind)))])

    async def nothing(self, asked: Asked) -> bytes:
        await asyncio.sleep(LIMITS.max_wait_ms / 1000)
        return framed(asked, [])


@asynccontextmanager
async def fetching(broker: FakeBroker, decoder: Decoder) -> AsyncIterator[FetchQueue]:
    """There is room for the next piece when the one before is taken."""
    table, queue = Fetching(1 << 20, Random(1).random), FetchQueue(1)
    for number in range(3):
        table.place(TopicPartition("orders", number), number, 0, -1)
    async with running(Fetcher(lambda: cluster_of(broker), table, decoder, LIMITS, queue)):
        yield queue


@pytest.mark.parametrize("behind", [100, 300])
@virtual_time()
async def test_a_leader_that_moves_while_its_answer_waits_for_room_costs_no_record(
    decoder_class: type[Decoder], behind: int
) -> None:
    """The fetcher itself; broker 2 has less of orders-1 than was in broker 1's answer, or more."""
    found: list[int] = []
    async with FakeBroker(1, OLD) as one, FakeBroker(2, OLD) as two:
        cluster = Cluster(one, two, behind)
        async with fetching(one, decoder_class(read_committed=True, max_unpacked=2 * MB)) as queue:
            for _ in range(60):
                await asyncio.sleep(0.25)
                head = queue.get(0)
                if head is not None and head.news.tp == TopicPartition("orders", 1) and head.rows is not None:
                    found += head.rows.offsets()
    assert found == list(range(behind))
    assert len(cluster.asked_of_two) < 60, "it is asked for the same again and again"
