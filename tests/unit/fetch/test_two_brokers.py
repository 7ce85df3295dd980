"""Two brokers, partitions that move between them, and answers that come late, in every order there is: each record is
handed out once, in order, and none is passed over.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

import pytest

from kunicorn.columns import reference
from kunicorn.fetch.sessions import Ask, Request
from kunicorn.fetch.table import REPLICA_SECONDS, Fetching, News, Topic
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import TopicPartition
from tests.fakes import fetched
from tests.fakes.messages import nested

VERSION, ID = 17, b"i" * 16
PARTITIONS = [TopicPartition("orders", number) for number in range(2)]
BATCH = 3
"""Records of each batch, as it stands in the log."""
MAX_UNPACKED = 150
"""An answer is decoded in pieces of two batches, and of one leader epoch."""
LEADER = nested(nested(nested(fetched.VERSIONS[VERSION].FetchResponse, "responses"), "partitions"), "current_leader")
STORIES, STEPS = 300, 40


def epoch_of(offset: int) -> int:
    """In which leader epoch the log has its record."""
    return offset // (4 * BATCH)


@lru_cache(maxsize=1000)
def batch(base_offset: int) -> bytes:
    return fetched.batch(fetched.records(BATCH), base_offset=base_offset, epoch=epoch_of(base_offset))


class PlayedBroker:
    """One broker's fetch session, and the request that is in its hands."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.session: dict[TopicPartition, Ask] = {}
        self.is_asked = False
        self.body: bytes | None = None
        """What it has answered, and is not taken in yet, or not all of it."""
        self.begun = 0
        """What of it is taken in next, as the decoder says."""

    def take(self, request: Request) -> None:
        """Begin or go on with a session, as `FetchSession.scala` does."""
        if request.epoch == 0:
            self.session.clear()
        self.session |= request.asks
        for tp, _ in request.forgotten:
            del self.session[tp]
        self.is_asked = True

    def end(self) -> None:
        """The request is answered, or lost."""
        self.is_asked, self.body, self.begun = False, None, 0


class Story:
    """One consumer's life. Whoever takes its records knows which offset comes next of each partition."""

    def __init__(self, seed: int) -> None:
        self.choice = Random(seed)
        self.now = 0.0
        self.table = Fetching(1 << 20, lambda: 0.5)
        self.decoder = reference.Decoder(read_committed=False, max_unpacked=MAX_UNPACKED)
        self.brokers = {node: PlayedBroker(node) for node in (1, 2)}
        self.ends = dict.fromkeys(PARTITIONS, 4 * BATCH)
        self.leaders = dict.fromkeys(PARTITIONS, (1, 0))
        self.known = [dict(self.leaders)]
        """What the metadata said, from the first time on."""
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.numbers: dict[TopicPartition, int] = {}
        self.number = 0
        for tp in PARTITIONS:
            self.place(tp)
        self.learn()

    def happen(self) -> None:
        """One step."""
        often = (self.ask, self.answer, self.answer, self.arrive)
        seldom = (self.pause, self.go_on, self.produce, self.move, self.learn, self.learn_late, self.wait, self.fail)
        self.choice.choice(self.choice.choice((often, often, seldom)))()

    @property
    def tp(self) -> TopicPartition:
        return self.choice.choice(PARTITIONS)

    @property
    def broker(self) -> PlayedBroker:
        return self.choice.choice([*self.brokers.values()])

    # -- whoever takes the records

    def place(self, tp: TopicPartition) -> None:
        """Have it fetched from where it was left, in place of what is fetched of it now."""
        self.number += 1
        self.numbers[tp] = self.number
        self.table.place(tp, self.number, self.next[tp], -1)

    def pause(self) -> None:
        tp = self.tp
        if (number := self.numbers.pop(tp, None)) is not None:
            self.table.remove(tp, number)

    def go_on(self) -> None:
        """It is resumed, or goes back."""
        tp = self.tp
        self.next[tp] = max(0, self.next[tp] - self.choice.choice((0, 0, 1, 5)))
        self.place(tp)

    def take(self, news: News, rows: Any) -> None:
        if self.numbers.get(news.tp) != news.number:
            return
        assert news.fault is None, news.fault
        offsets = list(rows.cut(news.first, news.rows, news.epoch).offsets())
        assert offsets == list(range(self.next[news.tp], news.next_offset)), "a gap, or a record twice"
        assert {epoch_of(offset) for offset in offsets} <= {news.epoch}, "another leader's epoch"
        self.next[news.tp] = news.next_offset

    # -- the cluster

    def produce(self) -> None:
        self.ends[self.tp] += BATCH * self.choice.randint(1, 4)

    def move(self) -> None:
        tp = self.tp
        node, epoch = self.leaders[tp]
        self.leaders[tp] = (3 - node, epoch + 1)

    def learn(self) -> None:
        self.known.append(dict(self.leaders))
        self.tell(self.known[-1])

    def learn_late(self) -> None:
        """Of a broker that lags."""
        self.tell(self.choice.choice(self.known))

    def tell(self, leaders: dict[TopicPartition, tuple[int, int]]) -> None:
        told = {"orders": Topic(ID, {tp.partition: leader for tp, leader in leaders.items()})}
        assert self.table.learn(told, self.now) == []

    def wait(self, seconds: float | None = None) -> None:
        self.now += self.choice.choice((0.05, 2.0, REPLICA_SECONDS)) if seconds is None else seconds
        self.table.wake(self.now)

    # -- requests and answers

    def ask(self, broker: PlayedBroker | None = None) -> None:
        broker = broker or self.broker
        if self.table.asks_of(broker.node) and not broker.is_asked:
            broker.take(self.table.sent(broker.node))

    def answer(self, broker: PlayedBroker | None = None) -> None:
        """The broker reads its log. What it has read is on its way for as long as it takes."""
        broker = broker or self.broker
        if broker.is_asked and broker.body is None:
            parts = [self.part(broker, tp, ask) for tp, ask in broker.session.items()]
            broker.body = fetched.body(VERSION, {ID: parts}, session_id=self.choice.choice((0, 7)))

    def part(self, broker: PlayedBroker, tp: TopicPartition, ask: Ask) -> Any:
        leader, epoch = self.leaders[tp]
        follows = leader != broker.node
        # A follower answers whoever was sent to it, and whoever was not looks the same to it.
        if follows and self.choice.random() < 0.3:
            hint = {"current_leader": LEADER(leader_id=leader, leader_epoch=epoch)}
            named = hint if self.choice.random() < 0.5 else {}
            return fetched.partition(VERSION, tp.partition, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, **named)
        if not follows and self.choice.random() < 0.2:
            return fetched.partition(VERSION, tp.partition, preferred_read_replica=3 - leader)
        first = ask.offset - ask.offset % BATCH
        behind = min(self.ends[tp], first + BATCH * self.choice.randrange(5))
        return fetched.partition(VERSION, tp.partition, map(batch, range(first, behind, BATCH)))

    def arrive(self, broker: PlayedBroker | None = None) -> None:
        """A piece of the answer is taken in; there may be no room for the next one yet."""
        broker = broker or self.broker
        if broker.body is None:
            return
        self.table.known(broker.node).tell(self.decoder)
        response = self.decoder.decode(broker.body, VERSION, broker.begun)
        if broker.begun:
            news = self.table.meet_more(broker.node, response.partitions, self.now)
        else:
            news = self.table.meet(broker.node, response.session_id, response.partitions, self.now)
        for each in news:
            self.take(each, response.rows)
        broker.begun = response.more
        if not broker.begun:
            broker.end()

    def fail(self) -> None:
        """A request is lost with its connection, or refused as a whole."""
        broker = self.broker
        if not broker.is_asked or broker.begun:
            return
        broker.end()
        if self.choice.random() < 0.5:
            self.table.unreached(broker.node, self.now)
        else:
            self.table.known(broker.node).tell(self.decoder)
            self.table.refused(broker.node, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, self.now)

    # -- the end

    def end(self) -> None:
        """Nothing more goes wrong: then everything arrives."""
        for tp in PARTITIONS:
            if tp not in self.numbers:
                self.place(tp)
        for _ in range(100):
            if self.next == self.ends:
                return
            self.wait(2.0)
            if self.table.wants_metadata:
                self.learn()
            for broker in self.brokers.values():
                self.ask(broker)
                self.answer(broker)
                while broker.body is not None:
                    self.arrive(broker)
        raise AssertionError(f"{self.next} was handed out of {self.ends}")


def test_whatever_comes_late_each_record_is_handed_out_once_and_in_order() -> None:
    for seed in range(STORIES):
        story = Story(seed)
        try:
            for _ in range(STEPS):
                story.happen()
            story.end()
        except AssertionError as error:
            pytest.fail(f"the story of seed {seed}: {error}")
