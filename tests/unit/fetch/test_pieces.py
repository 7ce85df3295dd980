"""An answer is taken in piece by piece, as there is room, and meanwhile its partitions move to other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from kunicorn.columns.decoding import Decoder, Response
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.queue import FetchQueue
from kunicorn.fetch.table import Fetching, News, Topic
from kunicorn.kafka.versions import Api
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes import fetched
from tests.fakes.broker import Asked, FakeBroker, cluster_of
from tests.fakes.virtual_loop import in_virtual_time
from tests.unit.fetch.played_brokers import BY_NAME, LIMITS, MB, OLD, framed, offsets_of, running

VERSION, ID = 17, b"i" * 16
P0, P1 = (TopicPartition("orders", number) for number in range(2))
BATCH = 10


def batch(base_offset: int, epoch: int = 0) -> bytes:
    return fetched.batch(fetched.records(BATCH), base_offset=base_offset, epoch=epoch)


def batches(first: int, behind: int) -> list[bytes]:
    return [batch(at) for at in range(first, behind, BATCH)]


THREE_PIECES = [batch(0, epoch=0), batch(10, epoch=1), batch(20, epoch=2)]
"""A piece ends where the leader epoch does."""


def answer(of: Mapping[TopicPartition, Sequence[bytes]], version: int = VERSION) -> bytes:
    parts = [fetched.partition(version, tp.partition, records) for tp, records in of.items()]
    return fetched.body(version, {b"orders" if version == BY_NAME else ID: parts}, session_id=7)


class Consumer:
    """Both partitions, of which broker 1 is asked."""

    def __init__(self, decoder: type[Decoder], topic_id: bytes = ID) -> None:
        self.table = Fetching(1 << 20, lambda: 0.5)
        self.decoder = decoder(read_committed=False, max_unpacked=MB)
        self.offsets: dict[TopicPartition, list[int]] = {P0: [], P1: []}
        for tp in (P0, P1):
            self.table.place(tp, tp.partition, 0, -1)
        self.led(1, 1, topic_id=topic_id)

    def led(self, *leaders: int, epoch: int = 0, topic_id: bytes = ID) -> None:
        topic = Topic(topic_id, {number: (leader, epoch) for number, leader in enumerate(leaders)})
        assert self.table.learn({"orders": topic}, 0.0) == []

    def asked(self, node: int) -> dict[TopicPartition, int]:
        return {tp: ask.offset for tp, ask in self.table.sent(node).asks.items()}

    def piece(self, node: int, body: bytes, first: int = 0, version: int = VERSION) -> int:
        """Take the next piece in; where the one behind it begins."""
        self.table.known(node).tell(self.decoder)
        response = self.decoder.decode(body, version, first)
        if first:
            news = self.table.meet_more(node, response.partitions, 0.0)
        else:
            news = self.table.meet(node, response.session_id, response.partitions, 0.0)
        self.hand_out(news, response)
        return response.more

    def hand_out(self, news: Sequence[News], response: Response) -> None:
        for each in news:
            rows: Any = response.rows.cut(each.first, each.rows, each.epoch)
            self.offsets[each.tp] += rows.offsets()

    def rest(self, node: int, body: bytes, first: int = 0, version: int = VERSION) -> None:
        """Take all of it in from there on."""
        while first := self.piece(node, body, first, version):
            pass


def moved_amid_an_answer(decoder_class: type[Decoder]) -> tuple[Consumer, bytes, int]:
    """Two pieces of broker 1's answer are taken in, P1 moves to broker 2 between them, which answers with ten records;
    that answer, and where its third piece begins."""
    consumer = Consumer(decoder_class)
    consumer.asked(1)
    late = answer({P0: THREE_PIECES, P1: batches(0, 30)})
    first = consumer.piece(1, late)
    consumer.led(1, 2, epoch=1)
    assert consumer.asked(2) == {P1: 0}
    first = consumer.piece(1, late, first)
    consumer.rest(2, answer({P1: batches(0, 10)}))
    return consumer, late, first


@pytest.mark.parametrize("behind", [30, 60])
def test_no_later_piece_of_the_leader_that_led_before_passes_over_what_the_next_one_has_not_sent_yet(
    decoder_class: type[Decoder], behind: int
) -> None:
    """Broker 2's second answer ends where broker 1's does, or beyond."""
    consumer, late, first = moved_amid_an_answer(decoder_class)
    consumer.rest(1, late, first)
    assert consumer.asked(2) == {P1: 10}
    consumer.rest(2, answer({P1: batches(10, behind)}))
    assert consumer.offsets == {P0: list(range(30)), P1: list(range(behind))}
    assert consumer.asked(2) == {P1: behind}


def test_a_partition_that_moves_back_amid_an_answer_is_asked_for_again_before_anything_of_it_counts(
    decoder_class: type[Decoder],
) -> None:
    consumer, late, first = moved_amid_an_answer(decoder_class)
    consumer.led(1, 1, epoch=2)
    consumer.rest(1, late, first)
    assert consumer.offsets[P1] == list(range(10))
    assert consumer.asked(1) == {P0: 30, P1: 10}
    consumer.rest(1, answer({P1: batches(10, 60)}))
    assert consumer.offsets[P1] == list(range(60))


def test_what_is_placed_anew_between_two_answers_is_kept_from_no_piece_of_the_next_one(
    decoder_class: type[Decoder],
) -> None:
    """What was asked before the request was sent is forgotten once."""
    consumer = Consumer(decoder_class)
    consumer.asked(1)
    consumer.rest(1, answer({P1: batches(0, 10)}))
    consumer.table.place(P1, 2, 10, 0)
    assert consumer.asked(1) == {P1: 10}
    consumer.rest(1, answer({P0: THREE_PIECES, P1: batches(10, 30)}))
    assert consumer.offsets == {P0: list(range(30)), P1: list(range(30))}


def test_an_answer_that_names_the_topic_counts_for_no_other_broker_that_is_asked_by_its_id(
    decoder_class: type[Decoder],
) -> None:
    """Amid an upgrade from before 2.8: the topic has got an id, and another leader, since broker 1 was asked."""
    consumer = Consumer(decoder_class, topic_id=b"")
    consumer.asked(1)
    consumer.led(1, 2, epoch=1)
    assert consumer.asked(2) == {P1: 0}
    consumer.rest(2, answer({P1: batches(0, 10)}))
    consumer.rest(1, answer({P0: batches(0, 10), P1: batches(0, 30)}, BY_NAME), version=BY_NAME)
    assert consumer.asked(2) == {P1: 10}
    consumer.rest(2, answer({P1: batches(10, 60)}))
    assert consumer.offsets[P1] == list(range(60))


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
def test_a_leader_that_moves_while_its_answer_waits_for_room_costs_no_record(
    decoder_class: type[Decoder], behind: int
) -> None:
    """The fetcher itself; broker 2 has less of orders-1 than was in broker 1's answer, or more."""

    async def story() -> tuple[list[int], int]:
        found: list[int] = []
        async with FakeBroker(1, OLD) as one, FakeBroker(2, OLD) as two:
            cluster = Cluster(one, two, behind)
            async with fetching(one, decoder_class(read_committed=True, max_unpacked=2 * MB)) as queue:
                for _ in range(60):
                    await asyncio.sleep(0.25)
                    head = queue.get(0)
                    if head is not None and head.news.tp == P1 and head.rows is not None:
                        found += head.rows.offsets()
        return found, len(cluster.asked_of_two)

    found, times = in_virtual_time(story)
    assert found == list(range(behind))
    assert times < 60, "it is asked for the same again and again"
