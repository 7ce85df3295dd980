"""Two brokers, partitions that move between them, and answers that come late, in every order there is: each record is
handed out once, in order, and none is passed over.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from random import Random
from typing import Any

import pytest

from kunicorn.columns.decoding import Decoder
from kunicorn.fetch.sessions import Ask, Request
from kunicorn.fetch.table import REPLICA_SECONDS, Fetching, News, Topic
from kunicorn.ipc.messages import FailureKind
from kunicorn.kafka_errors import ErrorCode
from kunicorn.positions import NO_EPOCH, TopicPartition
from tests.fakes import fetched
from tests.fakes.messages import nested

BY_NAME, BY_ID = 12, 17
"""Versions of Fetch."""
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
BATCH = 3
"""Records of each batch, as it stands in the log."""
MOST_BATCHES = 9
"""Of one partition in one answer."""
MAX_UNPACKED = 150
CUT_AT = (1, MAX_UNPACKED)
"""An answer is decoded in pieces of a batch or two, and of one leader epoch."""
STORIES, STEPS = 400, 60


@lru_cache(maxsize=10_000)
def batch(base_offset: int, life: int, epoch: int) -> bytes:
    """What is in its records tells in which life of the topic they were written, and in which leader epoch."""
    content = [fetched.record(delta, written(life, epoch)) for delta in range(BATCH)]
    return fetched.batch(content, base_offset=base_offset, epoch=epoch)


def written(life: int, epoch: int) -> bytes:
    return f"{life}:{epoch}".encode()


def leader_named(version: int, node: int, epoch: int) -> Any:
    partition = nested(nested(fetched.VERSIONS[version].FetchResponse, "responses"), "partitions")
    return nested(partition, "current_leader")(leader_id=node, leader_epoch=epoch)


def diverging_named(version: int, epoch: int, end: int) -> Any:
    partition = nested(nested(fetched.VERSIONS[version].FetchResponse, "responses"), "partitions")
    return nested(partition, "diverging_epoch")(epoch=epoch, end_offset=end)


class Log:
    """One partition's, on whichever broker."""

    def __init__(self, life: int, leader: int) -> None:
        self.life = life
        self.leader, self.epoch = leader, 0
        self.epochs: list[int] = []
        """Of each batch."""

    @property
    def end(self) -> int:
        return len(self.epochs) * BATCH

    @property
    def records(self) -> list[bytes]:
        """What is in each."""
        return [written(self.life, epoch) for epoch in self.epochs for _ in range(BATCH)]

    def batches(self, offset: int, most: int) -> list[bytes]:
        """From the one on that has the offset."""
        first = offset // BATCH
        return [batch(at * BATCH, self.life, self.epochs[at]) for at in range(len(self.epochs))[first : first + most]]

    def move(self, node: int) -> None:
        self.leader, self.epoch = node, self.epoch + 1

    def diverging(self, ask: Ask) -> tuple[int, int] | None:
        """The last epoch that it shares with the consumer's past, and where that ends (`Partition.scala`)."""
        if ask.last_epoch == NO_EPOCH:
            return None
        shared = max(epoch for epoch in (*self.epochs, self.epoch, 0) if epoch <= ask.last_epoch)
        end = sum(epoch <= shared for epoch in self.epochs) * BATCH
        return (shared, end) if shared < ask.last_epoch or end < ask.offset else None


class PlayedBroker:
    """One broker's fetch session, and the request that is in its hands."""

    def __init__(self, node: int, newest: int) -> None:
        self.node, self.newest = node, newest
        self.session: dict[tuple[TopicPartition, bytes], Ask] = {}
        self.is_asked = False
        self.version = newest
        """Of the request."""
        self.body: bytes | None = None
        """What it has answered, and is not taken in yet, or not all of it."""
        self.begun = 0
        """What of it is taken in next, as the decoder says."""

    def take(self, request: Request) -> None:
        """Begin or go on with a session, as `FetchSession.scala` does."""
        self.version = self.newest if request.by_id else BY_NAME
        if request.epoch == 0:
            self.session.clear()
        self.session |= {(tp, ask.topic_id): ask for tp, ask in request.asks.items()}
        for which in request.forgotten:
            del self.session[which]
        self.is_asked = True

    def end(self) -> None:
        """The request is answered, or lost."""
        self.is_asked, self.body, self.begun = False, None, 0


class Story:
    """One consumer's life. Whoever takes its records knows which offset comes next of each partition."""

    def __init__(self, seed: int, decoder: type[Decoder]) -> None:
        self.choice = Random(seed)
        self.now = 0.0
        self.table = Fetching(1 << 20, lambda: 0.5)
        cut_at = self.choice.choice(CUT_AT)
        self.decoder = decoder(read_committed=False, max_unpacked=MAX_UNPACKED, cut_at=cut_at)
        # Amid an upgrade from before 2.8 there are no ids yet, and one broker takes none.
        self.is_upgrade = self.choice.random() < 0.3
        newest = {1: BY_NAME if self.is_upgrade else BY_ID, 2: BY_ID}
        self.brokers = {node: PlayedBroker(node, newest[node]) for node in newest}
        self.life = 1
        self.topic_id = b"" if self.is_upgrade else self.id_of(self.life)
        self.logs = {tp: self.new_log(leader=1) for tp in PARTITIONS}
        self.known: list[Topic] = []
        """What the metadata said, from the first time on."""
        self.handed: dict[TopicPartition, list[bytes]] = {tp: [] for tp in PARTITIONS}
        """What is in each record that was handed out, and not gone back behind."""
        self.numbers: dict[TopicPartition, int] = {}
        self.stops: dict[TopicPartition, int | None] = {}
        self.number = 0
        for tp in PARTITIONS:
            self.place(tp)
        self.learn()

    def happen(self) -> None:
        """One step."""
        often = (self.ask, self.answer, self.arrive)
        cluster = (self.learn, self.learn_late, self.wait, self.fail)
        seldom = (self.pause, self.go_on, self.produce, self.produce, self.move, self.move, self.overtake, *cluster)
        rare = (self.upgrade,) if self.is_upgrade else (self.lose, self.create_anew)
        self.choice.choice(self.choice.choice((often,) * 12 + (seldom,) * 6 + (rare,)))()

    @property
    def tp(self) -> TopicPartition:
        return self.choice.choice(PARTITIONS)

    @property
    def broker(self) -> PlayedBroker:
        return self.choice.choice([*self.brokers.values()])

    # -- whoever takes the records

    def place(self, tp: TopicPartition, stop: int | None = None) -> None:
        """Have it fetched from where it was left, in place of what is fetched of it now. Its log may be another one by
        now, or be cut: told of which topic and leader epoch its offset is, the fetcher finds that."""
        self.number += 1
        self.numbers[tp], self.stops[tp] = self.number, stop
        handed = self.handed[tp]
        life, epoch = map(int, handed[-1].split(b":")) if handed else (self.life, NO_EPOCH)
        topic_id = b"" if self.is_upgrade else self.id_of(life)
        self.table.place(tp, self.number, len(handed), epoch, stop, topic_id=topic_id)

    def pause(self) -> None:
        tp = self.tp
        if (number := self.numbers.pop(tp, None)) is not None:
            self.table.remove(tp, number)

    def go_on(self) -> None:
        """It is resumed, goes back, or is read up to somewhere, as a job does it."""
        tp = self.tp
        handed = self.handed[tp]
        back = self.choice.choice((0, 0, 1, 5))
        del handed[len(handed) - min(back, len(handed)) :]
        self.place(tp, self.choice.choice((None, None, len(handed) + 5)))

    def take(self, news: News, rows: Any) -> None:
        tp = news.tp
        if self.numbers.get(tp) != news.number:
            return
        if news.fault is not None:
            self.meet(tp, news.fault.kind, news.fault.error)
            return
        handed = self.handed[tp]
        found = rows.cut(news.first, news.rows, news.epoch)
        assert list(found.offsets()) == list(range(len(handed), news.next_offset)), "a gap, or a record twice"
        values = [row.value() for row in found]
        assert {value.partition(b":")[2] for value in values} <= {str(news.epoch).encode()}, "another leader's epoch"
        handed += values
        stop = self.stops[tp]
        if stop is not None and len(handed) >= stop:
            self.table.remove(tp, self.numbers.pop(tp))

    def meet(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """Go back to where the log was cut, or begin the new one."""
        if kind is FailureKind.TRUNCATED:
            shared = self.shared(tp)
            assert shared < len(self.handed[tp]), error
            del self.handed[tp][shared:]
        else:
            assert "created anew" in error, error
            assert self.life > 1, error
            self.handed[tp].clear()
        self.place(tp)

    def shared(self, tp: TopicPartition) -> int:
        """So many of the records that were handed out are still in the log."""
        pairs = zip(self.handed[tp], self.logs[tp].records, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    # -- the cluster

    @staticmethod
    def id_of(life: int) -> bytes:
        return bytes([life]) * 16

    def new_log(self, leader: int) -> Log:
        log = Log(self.life, leader)
        log.epoch = self.choice.randrange(3)
        log.epochs += sorted(self.choice.randint(0, log.epoch) for _ in range(self.choice.randint(6, 12)))
        return log

    def produce(self) -> None:
        for log in self.logs.values():
            log.epochs += [log.epoch] * self.choice.randint(0, MOST_BATCHES)

    def move(self) -> None:
        log = self.logs[self.tp]
        log.move(3 - log.leader)
        self.choice.choice((self.learn, lambda: None))()

    def overtake(self) -> None:
        """A partition moves while an answer with it is taken in, and the other broker answers before that is done."""
        begun = [broker for broker in self.brokers.values() if broker.begun]
        moving = [(place, broker) for place in self.table for broker in begun if place.asked_of == broker.node]
        if not moving:
            return
        place, broker = self.choice.choice(moving)
        other = self.brokers[3 - broker.node]
        self.logs[place.tp].move(other.node)
        self.learn()
        self.choice.choice((self.arrive, lambda _: None))(broker)
        self.exchange(other)

    def lose(self) -> None:
        """The end of a log is lost in an election, and something else is written in its place."""
        log = self.logs[self.tp]
        del log.epochs[self.choice.randint(1, len(log.epochs)) :]
        log.move(self.choice.choice((1, 2)))
        log.epochs += [log.epoch] * self.choice.randint(0, MOST_BATCHES)

    def create_anew(self) -> None:
        self.life += 1
        self.topic_id = self.id_of(self.life)
        self.logs = {tp: self.new_log(self.choice.choice((1, 2))) for tp in PARTITIONS}

    def upgrade(self) -> None:
        self.topic_id = self.id_of(self.life)

    def learn(self) -> None:
        leaders = {tp.partition: (log.leader, log.epoch) for tp, log in self.logs.items()}
        self.known.append(Topic(self.topic_id, leaders))
        self.tell(self.known[-1])

    def learn_late(self) -> None:
        """Of a broker that lags."""
        self.tell(self.choice.choice(self.known))

    def tell(self, topic: Topic) -> None:
        for news in self.table.learn({"orders": topic}, self.now):
            self.take(news, None)

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
            topics: dict[bytes, list[Any]] = {}
            for (tp, _), ask in broker.session.items():
                topic = ask.topic_id if broker.version == BY_ID else tp.topic.encode()
                topics.setdefault(topic, []).append(self.part(broker, tp, ask))
            broker.body = fetched.body(broker.version, topics, session_id=self.choice.choice((0, 7)))

    def part(self, broker: PlayedBroker, tp: TopicPartition, ask: Ask) -> Any:
        version, number, log = broker.version, tp.partition, self.logs[tp]
        if version == BY_ID and ask.topic_id != self.topic_id:
            return fetched.partition(version, number, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        follows = log.leader != broker.node
        if follows and ask.leader_epoch < log.epoch:
            return fetched.partition(version, number, error_code=ErrorCode.FENCED_LEADER_EPOCH)
        # A follower answers whoever was sent to it, and whoever was not looks the same to it.
        if follows and self.choice.random() < 0.3:
            hint = {"current_leader": leader_named(version, log.leader, log.epoch)}
            named = hint if self.choice.random() < 0.5 else {}
            return fetched.partition(version, number, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, **named)
        if not follows and log.epoch == ask.leader_epoch and ask.offset <= log.end and self.choice.random() < 0.5:
            return fetched.partition(version, number, preferred_read_replica=3 - log.leader)
        if follows and ask.last_epoch > max(log.epochs):
            # It has heard of leaders by their records alone.
            return fetched.partition(version, number, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        if (diverging := log.diverging(ask)) is not None:
            return fetched.partition(version, number, diverging_epoch=diverging_named(version, *diverging))
        if ask.offset > log.end:
            return fetched.partition(version, number, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return fetched.partition(version, number, log.batches(ask.offset, self.choice.randint(0, MOST_BATCHES)))

    def arrive(self, broker: PlayedBroker | None = None) -> None:
        """A piece of the answer is taken in; there may be no room for the next one yet."""
        broker = broker or self.broker
        if broker.body is None:
            return
        self.table.known(broker.node).tell(self.decoder)
        response = self.decoder.decode(broker.body, broker.version, broker.begun)
        if broker.begun:
            news = self.table.meet_more(broker.node, response.partitions, self.now)
        else:
            news = self.table.meet(broker.node, response.session_id, response.partitions, self.now)
        for each in news:
            self.take(each, response.rows)
        broker.begun = response.more
        if not broker.begun:
            broker.end()

    def exchange(self, broker: PlayedBroker) -> None:
        """It is asked, and answers, and there is room for all of that."""
        self.ask(broker)
        self.answer(broker)
        while broker.body is not None:
            self.arrive(broker)

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
        for _ in range(100):
            for tp in PARTITIONS:
                if tp not in self.numbers:
                    self.place(tp)
            if all(self.handed[tp] == log.records for tp, log in self.logs.items()):
                return
            self.wait(2.0)
            if self.table.wants_metadata:
                self.learn()
            for broker in self.brokers.values():
                self.exchange(broker)
        counts = {tp: (len(self.handed[tp]), log.end) for tp, log in self.logs.items()}
        raise AssertionError(f"of each partition so many records were handed out, of so many: {counts}")


@pytest.mark.scenario("testFetchedRecordsAfterSeek")
def test_whatever_comes_late_each_record_is_handed_out_once_and_in_order(decoder_class: type[Decoder]) -> None:
    for seed in range(STORIES):
        story = Story(seed, decoder_class)
        try:
            for _ in range(STEPS):
                story.happen()
            story.end()
        except AssertionError as error:
            pytest.fail(f"the story of seed {seed}: {error}")
