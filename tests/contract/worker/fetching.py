"""Our own fetcher as a story has it: the table of what is fetched, the decoder and the worker's client are the real
ones, and the thread and the sockets between them and the brokers are not there. A broker's answer is the story's log as
record batches, written when it is fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kunicorn.columns.decoding import compiled
from kunicorn.fetch.queue import Fetched
from kunicorn.fetch.sessions import Request
from kunicorn.fetch.table import Fetching, Place, Topic, decoders_id
from kunicorn.text import topic_id_bytes
from kunicorn.worker.fetching.client import Login
from kunicorn.worker.fetching.own_fetcher import OwnFetcher
from tests.contract.worker.brokers import Teller, topic_id_of
from tests.contract.worker.stepping import STEPS, Strand, nanoseconds
from tests.contract.worker.truth import Record, epoch_of
from tests.fakes import fetched

_NODE = 1
_VERSION = 17
_FETCH_NS = 1_000_000
_LONGER = 50
"""See `brokers`."""
_MOST_AHEAD = 6
"""Answers that are fetched and not taken."""


class StoryFetcher:
    """In the place of `Fetcher` and of `FetchQueue`. Caller: the worker's main thread."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._table = Fetching(1 << 20, lambda: 0.5)
        self._decoder = compiled()(read_committed=True, max_unpacked=1 << 20)
        self._queue: deque[Fetched] = deque()
        self._waiting: Strand | None = None
        self._busy_at = STEPS.now
        self._counted = 0

    def client(self) -> OwnFetcher:
        """Of the worker."""
        parts: Any = self
        return OwnFetcher(parts, parts, Login(None))

    def call(self, change: Callable[[Fetching], object]) -> None:
        """As of `Fetcher`."""
        STEPS.check()
        change(self._table)
        self._table.learn({tp.topic: self._topic(tp.topic) for tp in self._teller.logs}, STEPS.now)

    def _topic(self, name: str) -> Topic:
        numbers = [tp.partition for tp in self._teller.logs if tp.topic == name]
        return Topic(topic_id_bytes(topic_id_of(name)), dict.fromkeys(numbers, (_NODE, 0)))

    def arrived(self) -> None:
        """There may be something to fetch."""
        if self._waiting is not None:
            STEPS.wake(self._waiting)

    def head(self, seconds: float) -> Fetched | None:
        """As of `FetchQueue`."""
        if seconds > 0:
            STEPS.point()
        else:
            STEPS.check()
        self._fetch()
        if self._queue:
            STEPS.sleep(_FETCH_NS if seconds > 0 else 0)
        elif seconds > 0:
            self._waiting = STEPS.current
            try:
                STEPS.wait(STEPS.now + max(nanoseconds(seconds), (STEPS.now - self._busy_at) // _LONGER))
            finally:
                self._waiting = None
            self._fetch()
        # Some of it may stay, until what it is of has been stopped, or moved back.
        if not self._queue or (seconds <= 0 and self._teller.chance(20)):
            return None
        return self._queue[0]

    @property
    def taken_bytes(self) -> int:
        """As of `FetchQueue`: so much that what is queued is copied with every turn, and nothing when that is done."""
        self._counted += 1
        return (self._counted % 2) << 40

    def pop(self, rest: Fetched | None = None) -> None:
        """As of `FetchQueue`."""
        taken = self._queue.popleft()
        if rest is not None:
            self._queue.appendleft(rest)
        if taken.rows is not None:
            self._busy_at = STEPS.now
            number, end = taken.news.tp.partition, taken.news.next_offset
            cut = "" if rest is None else ", and cut"
            self._teller.note(lambda: f"fetched up to {number}@{end}{cut}")

    def _fetch(self) -> None:
        """Ask, and take in the answer."""
        while self._table.asks_of(_NODE) and len(self._queue) < _MOST_AHEAD:
            request = self._table.sent(_NODE)
            body = self._answer(request)
            self._table.known(_NODE).tell(self._decoder)
            response = self._decoder.decode(body, _VERSION)
            news = self._table.meet(_NODE, response.session_id, response.partitions, STEPS.now)
            for each in news:
                rows = response.rows.cut(each.first, each.rows, each.epoch) if each.rows else None
                self._queue.append(Fetched(each, rows, 0))
            if not news:
                return

    def _answer(self, request: Request) -> bytes:
        topics: dict[bytes, list[Any]] = {}
        for place in self._table:
            if place.asked_of == _NODE and (batches := self._batches(place)):
                part = fetched.partition(_VERSION, place.tp.partition, batches)
                topics.setdefault(decoders_id(place), []).append(part)
        return fetched.body(_VERSION, topics, session_id=1)

    def _batches(self, place: Place) -> list[bytes]:
        log = self._teller.logs[place.tp]
        if records := log.from_offset(place.offset, 1 + self._teller.below(4)):
            return [_batch_of(record) for record in records]
        if log.visible == len(log.records) and place.offset < log.end:
            # What comes after the last record, and is none.
            last = log.end - 1
            return [fetched.batch([], base_offset=place.offset, last_delta=last - place.offset, epoch=epoch_of(last))]
        return []


def _batch_of(record: Record) -> bytes:
    return _batch(record.offset, record.key, record.message.value(), record.message.timestamp()[1])


# By what is in it: the logs of all stories have the same few contents.
@lru_cache(maxsize=10_000)
def _batch(offset: int, key: bytes, value: bytes | None, written_ms: int) -> bytes:
    content = fetched.record(0, value, key)
    return fetched.batch([content], base_offset=offset, base_timestamp=written_ms, epoch=epoch_of(offset))
