"""The times of records that nobody has fetched, and the offsets of times, by the brokers' word alone. Small, as it lies
below the service, the commands and the jobs.

A broker does not tell the time of an offset, but which offset a time has: the first one whose record is of that time or
later (KIP-79). So a record's age is looked for between a second and four years, by halves of its logarithm. A look that
meets the record itself tells its time exactly; else the age is known to a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from kunicorn.group.protocol import LogOffset
from kunicorn.positions import LATEST, NO_OFFSET, NO_TIMESTAMP, TopicPartition

ListOffsets = Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, LogOffset]]]
"""Asks the partitions' leaders, by timestamp. Raises `PeerError`."""

_YOUNGEST, _OLDEST = 1.0, 2.0**27
"""Seconds."""
_PRECISE = 1.1
"""The oldest age possible by the youngest one: no further look is worth a request."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for a record's age by halving: it is older than `above` seconds, and not older than `below`, at
    `now_ms`."""

    position: int
    now_ms: int
    above: float = _YOUNGEST
    below: float = _OLDEST
    timestamp_ms: int = NO_TIMESTAMP
    """Of that very record, once met."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to ask."""
        return self.timestamp_ms != NO_TIMESTAMP or self.below < self.above * _PRECISE

    @property
    def asks(self) -> int:
        """The time to ask for next: milliseconds since 1970."""
        return max(0, self.now_ms - int(self._middle * 1000))

    def answered(self, found: LogOffset) -> Search:
        """The search after the log's answer to `asks`."""
        if found.offset == self.position and found.timestamp_ms != NO_TIMESTAMP:
            return replace(self, timestamp_ms=found.timestamp_ms)
        if found.offset != NO_OFFSET and found.offset <= self.position:
            return replace(self, below=self._middle)
        return replace(self, above=self._middle)

    @property
    def result(self) -> int:
        """The record's time, where it is known; never too old by more than a tenth of its age."""
        if self.timestamp_ms != NO_TIMESTAMP or self.below == _OLDEST:
            # Nothing at or before it is as young as four years: the log's records carry no times.
            return self.timestamp_ms
        return self.now_ms - int(self.above * 1000)

    @property
    def _middle(self) -> float:
        return math.sqrt(self.above * self.below)


async def record_times(
    list_offsets: ListOffsets, positions: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, int]:
    """The times of the records at these positions, `NO_TIMESTAMP` where records carry none. Partitions that their
    brokers do not answer for are left out. Raises `PeerError`."""
    open_searches = {tp: Search(position, now_ms) for tp, position in positions.items()}
    results: dict[TopicPartition, int] = {}
    while open_searches:
        answers = await list_offsets({tp: each.asks for tp, each in open_searches.items()})
        further = {
            tp: each.answered(found)
            for tp, each in open_searches.items()
            if (found := answers.get(tp)) is not None and not found.error
        }
        results |= {tp: each.result for tp, each in further.items() if each.over}
        open_searches = {tp: each for tp, each in further.items() if not each.over}
    return results


async def first_not_older(
    list_offsets: ListOffsets, queries: Mapping[TopicPartition, int]
) -> dict[TopicPartition, LogOffset]:
    """The first offset of each partition whose record is not older than the time; the log's end where all are.

    `queries`: milliseconds since 1970, `EARLIEST` or `LATEST`. Raises `PeerError`.
    """
    found = dict(await list_offsets(queries)) if queries else {}
    older = [tp for tp, each in found.items() if not each.error and each.offset == NO_OFFSET]
    return {**found, **(await list_offsets(dict.fromkeys(older, LATEST)) if older else {})}
