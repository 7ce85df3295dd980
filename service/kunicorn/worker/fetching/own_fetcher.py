"""The worker's side of our own fetcher: what the loop and the table ask of librdkafka's consumer, asked of it.

1. The loop's thread calls everything here. A change reaches the fetcher's thread at once. What that has queued by then
   is dropped when it is taken: each placing of a partition has a number, and what was fetched says of which it is.
2. As with librdkafka, a partition's position is unknown until something of it was given out under this assignment, and
   a paused one loses what was fetched of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from kunicorn.columns.decoding import Decoder
from kunicorn.fetch.fetcher import Fetcher
from kunicorn.fetch.properties import decoder_of, fetcher_of
from kunicorn.fetch.queue import FetchQueue
from kunicorn.kafka.auth import BearerToken, Sasl, Security
from kunicorn.kafka.errors import AuthenticationFailed
from kunicorn.kafka.tls import Tls
from kunicorn.positions import Position, TopicPartition
from kunicorn.text import topic_id_bytes
from kunicorn.worker.fetching.client import NO_IDS, Login
from kunicorn.worker.fetching.fetched import Run, Taken

Property = str | int | float | bool


@dataclass(slots=True)
class _Assigned:
    """One partition that the table has assigned."""

    number: int
    """Of its placing."""
    begin: Position
    """Where it goes on when it is resumed."""
    topic_id: bytes
    """Of the topic that its positions are of; empty where that is not known."""
    given: Position | None = None
    """Up to where it was given out, under this assignment."""
    paused: bool = False


class OwnFetcher:
    """Our own fetcher, with what the loop has taken of it. A `Client`."""

    def __init__(self, fetcher: Fetcher, queue: FetchQueue, login: Login) -> None:
        self._fetcher, self._queue, self._login = fetcher, queue, login
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._numbers = count(1)

    def take(self, most: int, seconds: float, *, gathers: bool, several_topics: bool) -> Taken | None:
        """See `Client`: an answer has each partition once, and says of which topic it is. One that has more rows than
        are wanted is cut: all of it in hand, nothing more would be asked for until most of it is handled."""
        runs: list[Run] = []
        faults = []
        wait, left, some = seconds, most, False
        while left > 0 and (head := self._queue.head(wait)) is not None:
            wait, some = 0.0, True
            assigned = self._assigned.get(head.news.tp)
            if assigned is None or assigned.number != head.news.number:
                self._queue.pop()
                continue
            (news, rows, _), rest = head.cut(left)
            self._queue.pop(rest)
            if news.next_offset > assigned.begin.offset:
                assigned.begin = assigned.given = Position(news.next_offset, news.epoch)
            if rows is not None:
                left -= len(rows)
                run: Any = rows
                runs.append(Run(news.tp, news.epoch, run))
            if news.fault is not None:
                faults.append((news.tp, news.fault.kind, news.fault.error))
        return Taken(runs, faults) if some else None

    def assign(
        self, places: Mapping[TopicPartition, Position], topic_ids: Mapping[TopicPartition, str] = NO_IDS
    ) -> None:
        """See `Client`."""
        for tp, position in places.items():
            self._assigned[tp] = _Assigned(0, position, topic_id_bytes(topic_ids.get(tp, "")))
            self._place(tp)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """See `Client`."""
        for tp in partitions:
            self._remove(tp, self._assigned.pop(tp).number)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """See `Client`."""
        for tp in partitions:
            assigned = self._assigned[tp]
            self._remove(tp, assigned.number)
            # None is of this number: what is queued does not count any more.
            assigned.number, assigned.paused = next(self._numbers), True

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """See `Client`."""
        for tp in partitions:
            assigned = self._assigned.get(tp)
            if assigned is not None and assigned.paused:
                assigned.paused = False
                self._place(tp)

    def positions(self, partitions: Sequence[TopicPartition]) -> list[Position | None]:
        """See `Client`."""
        found = map(self._assigned.get, partitions)
        return [None if assigned is None else assigned.given for assigned in found]

    def learn(self, topics: Iterable[str], seconds: float) -> None:
        """Nothing is to be learnt ahead: the fetcher asks for a topic's leaders as soon as a partition is assigned."""

    def log_in(self) -> None:
        """See `Client`. The producers alone are told: each log-in of the fetcher asks for the password of then."""
        self._login.apply()

    @property
    def shared_bytes(self) -> int:
        """See `Client`: a row keeps the whole answer that it came with."""
        return self._queue.taken_bytes

    def _place(self, tp: TopicPartition) -> None:
        assigned = self._assigned[tp]
        number = assigned.number = next(self._numbers)
        (offset, epoch, _), topic_id = assigned.begin, assigned.topic_id
        self._fetcher.call(lambda table: table.place(tp, number, offset, epoch, topic_id=topic_id))

    def _remove(self, tp: TopicPartition, number: int) -> None:
        self._fetcher.call(lambda table: table.remove(tp, number))


def own_fetcher(properties: Mapping[str, Property], login: Login, decoder: Callable[[], type[Decoder]]) -> OwnFetcher:
    """The client, its fetcher begun. `properties` are those that librdkafka's consumer would get. Raises `ConfigError`
    where the compiled decoder is missing, or for files of TLS.
    """
    made = decoder_of(properties, decoder())
    fetcher, queue = fetcher_of(properties, _security(properties, login), made)
    fetcher.start()
    return OwnFetcher(fetcher, queue, login)


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
        # For the worker's life: after a renewal it is replaced, and the next one is told the new password.
        lambda: named("ssl.key.password"),
        verify_hostname=named("ssl.endpoint.identification.algorithm") != "none",
    )
    sasl = None
    if (mechanism := named("sasl.mechanism")) is not None:
        first = named("sasl.password") or ""
        sasl = Sasl(mechanism, named("sasl.username") or "", lambda: login.password(first), lambda: _token(login))
    return Security(named("security.protocol") or "PLAINTEXT", tls, sasl)
