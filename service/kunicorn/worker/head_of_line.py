"""Who stands behind others in the client's queue is not kept waiting. Everything here is the runner's.

librdkafka gives records out in the order in which it got them: what it has fetched ahead of some partitions comes
before the first record of whoever comes later, however long their handling takes.
1. While something is kept that the handlers have not begun, all that the client has is taken in, up to `ahead_bytes`:
   in the client nobody stands behind anybody.
2. Beyond that the client's queue fills up, as it should. When a partition comes then, or a retry topic may have got a
   record, those of which something is in hand are held back for a moment: the client throws away what it has fetched of
   them, gives out what is left, and fetches them again later. That costs as much as its queue holds, once each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from confluent_kafka import Message

from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.topics import TopicPartition
from kunicorn.worker.batches import kept_bytes
from kunicorn.worker.table import GrantTable

_LOOK_NS = NANOSECONDS
"""So long others are held back: a fetch under way may wait half a second for records (`fetch.wait.max.ms`) before the
next one asks for a partition that has come."""
_LEAST_INTERVAL_NS = NANOSECONDS
_NS_PER_MS = 1_000_000


class Kept(Protocol):
    """What was fetched and is not begun."""

    @property
    def bytes(self) -> int: ...

    def partitions(self) -> Iterable[TopicPartition]:
        """Of which something is kept."""


class HeadOfLine:
    """Caller: the runner, between turns. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(self, table: GrantTable, kept: Kept) -> None:
        self._table = table
        self._kept = kept
        self._most_bytes = table.ahead_bytes
        self._until = 0
        self._looked_at = 0
        self._record_bytes = 1000

    def room(self, now: int) -> int:
        """So many records may be taken in, about; 0: the client is not to be asked. Blocks for a round trip to the
        client's thread where partitions are held back or let on."""
        kept, looks = self._kept.bytes, self._looks(now)
        if not looks or kept < self._most_bytes // 2:
            self.let_on()
        most = self._most_bytes
        if kept >= most and looks:
            self._table.hold_back(self._kept.partitions())
            most += most // 2
        return -(-(most - kept) // self._record_bytes) if kept < most else 0

    def took(self, batch: Sequence[Message]) -> None:
        """These have come: about as large are the next ones."""
        self._record_bytes = kept_bytes(batch) // len(batch)

    def let_on(self) -> None:
        """Nobody is held back any more."""
        if self._table.held_back:
            self._table.let_on()

    def _looks(self, now: int) -> bool:
        """Whether somebody may have come who stands behind others."""
        if self._table.delays:
            # Twice within the delay: a record that came just after a look is found before its time has come.
            interval = max(min(self._table.delays.values()) * _NS_PER_MS // 2, _LEAST_INTERVAL_NS)
            if now - self._looked_at >= interval:
                self._looked_at, self._until = now, now + _LOOK_NS
        return now < max(self._until, self._table.came_at + _LOOK_NS)
