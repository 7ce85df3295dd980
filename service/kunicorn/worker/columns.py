"""The worker's side of our own fetcher: what the loop and the table ask of librdkafka's consumer, asked of it.

1. The loop's thread calls everything here. A change reaches the fetcher's thread at once. What that has queued by then
   is dropped when it is taken: each placing of a partition has a number, and what was fetched says of which it is.
2. As with librdkafka, a partition's position is unknown until something of it was given out under this assignment, and
   a paused one loses what was fetched of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from confluent_kafka import OFFSET_INVALID
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.columns.decoding import Decoder
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.properties import MAX_UNPACKED, fetcher_of, is_read_committed
from kunicorn.fetch.queue import FetchQueue
from kunicorn.kafka.auth import BearerToken, Sasl, Security
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.kafka.tls import Tls
from kunicorn.positions import NO_EPOCH, Position, TopicPartition
from kunicorn.worker.client import Client, KnownTopics, Login
from kunicorn.worker.fetch import Run, Taken

Property = str | int | float | bool


@dataclass(slots=True)
class _Assigned:
    """One partition that the table has assigned."""

    number: int
    """Of its placing."""
    begin: Position
    """Where it goes on when it is resumed."""
    given: Position | None = None
    """Up to where it was given out, under this assignment."""
    paused: bool = False


class ColumnConsumer:
    """Our own fetcher as a consumer: of confluent-kafka's it has what a worker uses, but that it gives out runs."""

    def __init__(self, fetcher: Fetcher, queue: FetchQueue, as_columns: Callable[[str], bool]) -> None:
        """`as_columns`: whether a topic's handler takes columns; the others get messages."""
        self._fetcher, self._queue = fetcher, queue
        self._as_columns = as_columns
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._numbers = count(1)

    def take(self, most: int, seconds: float) -> Taken | None:
        """What was fetched, until about `most` rows are had; None if nothing comes in so many seconds."""
        if not (fetched := self._queue.take(most, seconds)):
            return None
        runs, faults = [], []
        for news, rows, _ in fetched:
            assigned = self._assigned.get(news.tp)
            if assigned is None or assigned.number != news.number:
                continue
            if news.next_offset > assigned.begin.offset:
                assigned.begin = assigned.given = Position(news.next_offset, news.epoch)
            if rows is not None:
                runs.append(Run(news.tp, news.epoch, rows if self._as_columns(news.tp.topic) else list(rows)))
            if news.fault is not None:
                faults.append((news.tp, news.fault.kind, news.fault.error))
        return Taken(runs, faults)

    def incremental_assign(self, partitions: Sequence[ClientPartition]) -> None:
        """Fetch these partitions, too."""
        for each in partitions:
            epoch = NO_EPOCH if each.leader_epoch is None else each.leader_epoch
            tp = TopicPartition(each.topic, each.partition)
            self._assigned[tp] = _Assigned(0, Position(each.offset, epoch))
            self._place(tp)

    def incremental_unassign(self, partitions: Sequence[ClientPartition]) -> None:
        """Stop fetching these partitions."""
        for each in partitions:
            tp = TopicPartition(each.topic, each.partition)
            self._remove(tp, self._assigned.pop(tp).number)

    def pause(self, partitions: Sequence[ClientPartition]) -> None:
        """Give out nothing of these until `resume`."""
        for tp in _places(partitions):
            assigned = self._assigned[tp]
            self._remove(tp, assigned.number)
            # None is of this number: what is queued does not count any more.
            assigned.number, assigned.paused = next(self._numbers), True

    def resume(self, partitions: Sequence[ClientPartition]) -> None:
        """Go on with these behind what was given out last."""
        for tp in _places(partitions):
            assigned = self._assigned.get(tp)
            if assigned is not None and assigned.paused:
                assigned.paused = False
                self._place(tp)

    def position(self, partitions: Sequence[ClientPartition]) -> list[ClientPartition]:
        """Offset behind what was given out last of each, and its epoch."""
        return [_position(tp, self._assigned.get(tp)) for tp in _places(partitions)]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """Nothing is to be learnt ahead: the fetcher asks for a topic's leaders as soon as a partition is assigned."""

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Nothing is to be told: each log-in asks `Login` for the password of then."""

    def _place(self, tp: TopicPartition) -> None:
        assigned = self._assigned[tp]
        number = assigned.number = next(self._numbers)
        offset, epoch = assigned.begin.offset, assigned.begin.leader_epoch
        self._fetcher.call(lambda table: table.place(tp, number, offset, epoch))

    def _remove(self, tp: TopicPartition, number: int) -> None:
        self._fetcher.call(lambda table: table.remove(tp, number))


def _places(partitions: Iterable[ClientPartition]) -> Iterable[TopicPartition]:
    return (TopicPartition(each.topic, each.partition) for each in partitions)


def _position(tp: TopicPartition, assigned: _Assigned | None) -> ClientPartition:
    given = assigned.given if assigned is not None else None
    if given is None:
        return ClientPartition(*tp, OFFSET_INVALID)
    if given.leader_epoch == NO_EPOCH:
        return ClientPartition(*tp, given.offset)
    return ClientPartition(*tp, given.offset, leader_epoch=given.leader_epoch)


@dataclass(frozen=True, slots=True)
class ColumnClient(Client):
    """The worker's client where our own fetcher fetches."""

    def take(self, most: int, seconds: float, *, gathers: bool, several_topics: bool) -> Taken | None:
        """See `Client.take`: an answer has each partition once, and says of which topic it is."""
        consumer: Any = self.consumer
        taken: Taken | None = consumer.take(most, seconds)
        return taken


def column_client(
    properties: Mapping[str, Property],
    login: Login,
    decoder: Callable[[], type[Decoder]],
    as_columns: Callable[[str], bool],
) -> ColumnClient:
    """The client, its fetcher begun. `properties` are those that librdkafka's consumer would get. Raises `ConfigError`
    where the compiled decoder is missing, or for files of TLS.
    """
    made = decoder()(read_committed=is_read_committed(properties), max_unpacked=MAX_UNPACKED)
    fetcher, queue = fetcher_of(properties, _security(properties, login), made)
    fetcher.start()
    consumer: Any = ColumnConsumer(fetcher, queue, as_columns)
    return ColumnClient(consumer, KnownTopics(consumer), login)


def _token(login: Login) -> BearerToken:
    try:
        value, _, _, extensions = login.bearer(None)
    except RuntimeError as error:
        raise AuthenticationFailed(str(error)) from error
    return BearerToken(value, extensions)


def _security(properties: Mapping[str, Property], login: Login) -> Security:
    def named(name: str) -> str | None:
        return str(properties[name]) if name in properties else None

    tls = Tls(
        named("ssl.ca.location"),
        named("ssl.certificate.location"),
        named("ssl.key.location"),
        named("ssl.key.password"),
        verify_hostname=named("ssl.endpoint.identification.algorithm") != "none",
    )
    sasl = None
    if (mechanism := named("sasl.mechanism")) is not None:
        first = named("sasl.password") or ""
        sasl = Sasl(mechanism, named("sasl.username") or "", lambda: login.password(first), lambda: _token(login))
    return Security(named("security.protocol") or "PLAINTEXT", tls, sasl)
