"""Records of retry topics that wait for their time. Everything here is the runner's.

A retry topic's records all wait equally long, so the first of a partition is the first whose time comes: until then the
partition is put off, not fetched and with nothing in hand, and the others go on. It is fetched again from there.
1. No record is handled before its time: its timestamp (that of its sending) and the topic's delay.
2. Where many records wait, one behind the other, a partition is fetched again a few times within the delay, not for
   each: what the client has fetched ahead is thrown away every time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.pipes.clock import wall_ms
from kunicorn.pipes.orders import HandlerOrder
from kunicorn.topics import TopicPartition
from kunicorn.worker.grants import Grant
from kunicorn.worker.table import GrantTable

_NS_PER_MS = 1_000_000
_SHARE = 10
_MOST_MS = 1000
"""A tenth of the delay, or a second: so much later than its time a record may be handled behind others."""


class Wait(NamedTuple):
    """Until when the record at `offset` waits, and for how long from now; milliseconds since 1970, and such."""

    offset: int
    due_ms: int
    milliseconds: int


def ripe(messages: Sequence[Message], delay_ms: int, now_ms: int) -> tuple[int, Wait | None]:
    """How many of the first ones have waited for `delay_ms`, and what the next one waits for. Pure.

    A time that lies ahead of our clock, as another host's does, makes no record wait for longer than the delay.
    """
    for count, message in enumerate(messages):
        kind, sent_ms = message.timestamp()
        if kind == TIMESTAMP_NOT_AVAILABLE:
            continue
        due_ms = min(sent_ms, now_ms) + delay_ms
        if due_ms > now_ms:
            least = min(delay_ms // _SHARE, _MOST_MS)
            return count, Wait(message.offset() or 0, due_ms, max(due_ms - now_ms, least))
    return len(messages), None


def delays_of(orders: Iterable[HandlerOrder]) -> Mapping[str, int]:
    """The retry topics of these handlers, with their delays in milliseconds."""
    return {topic.name: topic.delay_ms for order in orders for topic in order.retry_topics}


class Delays:
    """Caller: the runner, for everything. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(self, table: GrantTable) -> None:
        self._table = table
        self._waiting: list[tuple[int, int, Grant]] = []
        """Heap of (when it is to be fetched again, grant's number, grant)."""

    def split(self, tp: TopicPartition, messages: list[Message]) -> tuple[list[Message], Wait | None, list[Message]]:
        """Those whose time has come, what the next one waits for, and those that have to wait. Handle the former before
        `put_off`."""
        delay_ms = self._table.delays.get(tp.topic)
        if delay_ms is None:
            return messages, None, []
        count, wait = ripe(messages, delay_ms, wall_ms())
        return messages[:count], wait, messages[count:]

    def put_off(self, tp: TopicPartition, wait: Wait, now: int) -> None:
        """Fetch nothing more of it for so long; not where it ended meanwhile, or waits for something else."""
        at = datetime.fromtimestamp(wait.due_ms / 1000, UTC).isoformat(timespec="milliseconds")
        why = f"offset {wait.offset} of this retry topic waits for its time, {at}"
        if (grant := self._table.put_off(tp, why)) is not None:
            heapq.heappush(self._waiting, (now + wait.milliseconds * _NS_PER_MS, grant.number, grant))

    def take_up(self, now: int) -> None:
        """Have those fetched again whose wait is over."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, grant = heapq.heappop(self._waiting)
            self._table.take_up(grant)
