"""The worker's Kafka client: its login, its topics, its statistics.

- `Login`: what the client logs in with, where that changes: the token or password that the supervisor sent last.
- `ClientStatistics`: what it says of itself (librdkafka's STATISTICS.md), as far as that explains a slow consumer.
- `Client`: where records come from, as the loop and the table of partitions use it; `Librdkafka` is the one that is
  librdkafka's consumer, `worker.fetching.own_fetcher` has the other.
- `KnownTopics`: which topics it knows. One that is new to it stalls up to a second when it is assigned: librdkafka
  looks for unknown topics among its partitions once a second; asked for, their metadata is there within milliseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.ipc.messages import Family, Password, Sample, Token
from kunicorn.librdkafka.begin import hold_against_log
from kunicorn.librdkafka.errors import parted
from kunicorn.observe import catalogue as c
from kunicorn.observe.catalogue import Declared, Kind
from kunicorn.positions import NO_EPOCH, Position, TopicPartition
from kunicorn.worker.fetching.fetched import Taken, ends_grant, faults_of, gathered_runs, runs


class Login:
    """Current credentials of the client: the token or password that the supervisor sent last. Written by the control
    thread, read by the runner and by a thread of librdkafka's: whole objects, replaced.
    """

    def __init__(self, token: Token | None) -> None:
        """`token`: None where the mechanism is not OAUTHBEARER."""
        self._token = token
        self._password: Password | None = None
        self._latest: Password | None = None
        self._producers: tuple[Producer, ...] = ()

    @property
    def is_bearer(self) -> bool:
        """Whether clients log in with tokens."""
        return self._token is not None

    def use(self, *producers: Producer) -> None:
        """Add producers made later than the consumer, in place of those before: they, too, get the current password.
        Caller: the runner.
        """
        self._producers = producers
        self.tell(*producers)

    def tell(self, *producers: Producer) -> None:
        """Give producers that live for a moment only the current password. Caller: any thread."""
        if (latest := self._password or self._latest) is not None:
            for producer in producers:
                producer.set_sasl_credentials(latest.username, latest.value)

    def renew(self, message: Token | Password) -> None:
        """Caller: the control thread."""
        if isinstance(message, Token):
            self._token = message
        else:
            self._password = message

    def apply(self, *consumers: Consumer) -> None:
        """Give the producers, and consumers of librdkafka's, a password that has come; it counts from their next login
        on. Caller: the runner.
        """
        if (password := self._password) is not None:
            self._password, self._latest = None, password
            clients: tuple[Producer | Consumer, ...] = (*self._producers, *consumers)
            for client in clients:
                client.set_sasl_credentials(password.username, password.value)

    def password(self, first: str) -> str:
        """The current password, for our own connections; `first`: that of the settings. Caller: any thread."""
        latest = self._password or self._latest
        return first if latest is None else latest.value

    def bearer(self, config: str | None) -> tuple[str, float, str, dict[str, str]]:
        """confluent-kafka's `oauth_cb`, called when the client is made and when 80 % of a token's life are over.

        The supervisor renews earlier than that. Where it could not, the client is told so and asks again after ten
        seconds (`rd_kafka_oauthbearer_set_token_failure0`).
        """
        token = self._token
        if token is None or token.expires_at <= time.time():
            raise RuntimeError("the supervisor has sent no OAUTHBEARER token that is still valid")
        return token.value, token.expires_at, token.principal, token.extensions


_MICROSECONDS = 1_000_000


class _Window(msgspec.Struct):
    avg: int = 0
    cnt: int = 0


class _Broker(msgspec.Struct):
    nodeid: int = -1
    rxbytes: int = 0
    req_timeouts: int = 0
    disconnects: int = 0
    rtt: _Window = msgspec.field(default_factory=_Window)


class _Partition(msgspec.Struct):
    fetchq_cnt: int = 0
    fetchq_size: int = 0


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition] = {}


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker] = {}
    topics: dict[str, _Topic] = {}


class ClientStatistics:
    """Latest statistics of the Kafka client, as metric families."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._read: tuple[str, list[Family]] | None = None
        """What was read last, and what it says."""

    def take(self, text: str) -> None:
        """Caller: librdkafka, in the runner's thread as it polls: only kept here, read elsewhere."""
        self._text = text

    def families(self) -> list[Family]:
        """Metric families since the client's start; empty before the first statistics. Reads up to megabytes of
        JSON.
        """
        if (text := self._text) is None:
            return []
        if self._read is None or self._read[0] is not text:
            self._read = text, self._families(text)
        return self._read[1]

    def _families(self, text: str) -> list[Family]:
        found = msgspec.json.decode(text, type=_Statistics)
        # The bootstrap servers have no node id, and are not asked for anything once the brokers are known.
        brokers = [broker for broker in found.brokers.values() if broker.nodeid >= 0]
        partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
        return [
            # Of the last interval: where nothing was answered in it, there is no time to tell.
            _by_broker(c.CLIENT_RTT, [(b, b.rtt.avg / _MICROSECONDS) for b in brokers if b.rtt.cnt], "max"),
            _by_broker(c.CLIENT_RECEIVED, [(b, b.rxbytes) for b in brokers]),
            _by_broker(c.CLIENT_TIMEOUTS, [(b, b.req_timeouts) for b in brokers]),
            _by_broker(c.CLIENT_DISCONNECTS, [(b, b.disconnects) for b in brokers]),
            _family(c.CLIENT_QUEUE, [({}, sum(each.fetchq_cnt for each in partitions))]),
            _family(c.CLIENT_QUEUE_BYTES, [({}, sum(each.fetchq_size for each in partitions))]),
        ]


def _by_broker(declared: Declared, values: list[tuple[_Broker, float]], merge: str = "sum") -> Family:
    return _family(declared, [({"broker": str(broker.nodeid)}, value) for broker, value in values], merge)


def _family(declared: Declared, values: list[tuple[dict[str, str], float]], merge: str = "sum") -> Family:
    name = declared.name + ("_total" if declared.kind is Kind.COUNTER else "")
    samples = [Sample(name, labels, value) for labels, value in values]
    return Family(declared.name, declared.kind.value, declared.meaning, samples, merge)


_MOST_KNOWN = 10_000
"""Topics that are remembered as known; then they are asked for anew. With a pattern, topics come and go for ever."""


class KnownTopics:
    """Topics that the client has metadata of. Caller: the runner, or the assembly before it: the client lets one thread
    in at a time.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._known: set[str] = set()

    def learn(self, topics: Iterable[str], seconds: float) -> None:
        """Ask for the metadata of topics not asked for before; blocks up to `seconds`. A failure only delays
        fetching.
        """
        deadline = time.monotonic() + seconds
        for topic in topics:
            left = deadline - time.monotonic()
            if topic in self._known or left <= 0:
                continue
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known.add(topic)
            with contextlib.suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=left)


NO_IDS: Mapping[TopicPartition, str] = MappingProxyType({})


class Client(Protocol):
    """Where a worker's records come from. Caller: the runner, or the assembly before it."""

    def take(self, most: int, seconds: float, *, gathers: bool, several_topics: bool) -> Taken | None:
        """Up to `most` records, or somewhat more, of those that are there; None if none comes in so many seconds.

        `gathers`: each partition's records together. `several_topics`: neighbours may be of different topics.
        """

    def assign(
        self, places: Mapping[TopicPartition, Position], topic_ids: Mapping[TopicPartition, str] = NO_IDS
    ) -> None:
        """Fetch these, too, from there on. `topic_ids`: of the topics that the positions are of, where those are known.
        Raises `KafkaException` where it takes none of them."""

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these no more; nothing of them is given out from now on."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Give out nothing of these until `resume`, and throw away what was fetched of them."""

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Go on with these behind what was given out last."""

    def positions(self, partitions: Sequence[TopicPartition]) -> list[Position | None]:
        """Up to where each was given out; None: nothing of it was, under this assignment."""

    def learn(self, topics: Iterable[str], seconds: float) -> None:
        """Have these topics known, or an assignment would stall. Blocks for so long."""

    def log_in(self) -> None:
        """Heed a password that has come."""

    @property
    def shared_bytes(self) -> int:
        """Bytes that are alive of what it has given out, where records share memory with those that came with them; 0:
        each has memory of its own."""


@dataclass(frozen=True, slots=True)
class Librdkafka:
    """librdkafka's consumer, its known topics and its login. A `Client`."""

    consumer: Consumer
    topics: KnownTopics
    login: Login

    def take(self, most: int, seconds: float, *, gathers: bool, several_topics: bool) -> Taken | None:
        """See `Client`. `consume(n, t)` alone would wait the whole `t` unless `n` records come."""
        batch: list[Message] = []
        if seconds > 0:
            if (first := self.consumer.poll(seconds)) is None:
                return None
            batch.append(first)
        batch += self.consumer.consume(most - len(batch), 0)
        if not batch:
            return None
        records, errors = parted(batch, ends_grant)
        cut = gathered_runs if gathers else runs
        return Taken(cut(records, several_topics), faults_of(errors))

    def assign(
        self, places: Mapping[TopicPartition, Position], topic_ids: Mapping[TopicPartition, str] = NO_IDS
    ) -> None:
        """See `Client`. librdkafka takes no ids: it goes on in whatever topic has the name."""
        begun = [_from(tp, position) for tp, position in places.items()]
        self.consumer.incremental_assign(begun)
        try:
            hold_against_log(self.consumer, begun)
        except KafkaException:
            self.unassign(places)
            raise

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """See `Client`."""
        self.consumer.incremental_unassign(_theirs(partitions))

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """See `Client`, and librdkafka's `rd_kafka_toppar_pause_resume`."""
        self.consumer.pause(_theirs(partitions))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """See `Client`."""
        self.consumer.resume(_theirs(partitions))

    def positions(self, partitions: Sequence[TopicPartition]) -> list[Position | None]:
        """See `Client`."""
        return [
            Position(at.offset, NO_EPOCH if at.leader_epoch is None else at.leader_epoch) if at.offset >= 0 else None
            for at in self.consumer.position(_theirs(partitions))
        ]

    def learn(self, topics: Iterable[str], seconds: float) -> None:
        """See `Client`."""
        self.topics.learn(topics, seconds)

    def log_in(self) -> None:
        """See `Client`."""
        self.login.apply(self.consumer)

    @property
    def shared_bytes(self) -> int:
        """See `Client`: each message has memory of its own."""
        return 0


def _theirs(partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
    return [ClientPartition(*tp) for tp in partitions]


def _from(tp: TopicPartition, position: Position) -> ClientPartition:
    return ClientPartition(*tp, position.offset, leader_epoch=position.leader_epoch)
