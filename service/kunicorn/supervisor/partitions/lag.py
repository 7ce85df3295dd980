"""Lag in records and in seconds, by the brokers' word: a worker's cached watermark freezes exactly when it matters.

In seconds: how old the oldest record is that one partition has not handled. What a worker takes in hand tells it; where
none takes any (its worker is busy with another partition, the partition is halted, paused or without a worker), the log
is asked.

1. A worker's word is the time of the first record of the run it took last: at most a run of records too old.
2. Where nothing was left to handle at some time, everything unhandled was written later: the record that a worker had
   last may be of yesterday, the one that waits is not.
3. A broker does not tell the time of an offset, but which offset a time has: the first one whose record is of that time
   or later (KIP-79). So the age is looked for between a second and four years, by halves of its logarithm. A look that
   meets the record itself tells its time exactly; else it is known to a tenth.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from kunicorn.errors import PeerError
from kunicorn.group.protocol import LATEST, LogOffset, Offsets
from kunicorn.observe import logs
from kunicorn.positions import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kunicorn.supervisor.partitions.assignment import Assignment
from kunicorn.supervisor.partitions.partition import Partition

log = logs.get("kunicorn.lag")

INTERVAL = 10.0
_UNSETTLED_INTERVAL = 1.0
"""While a partition's end is not known yet: a newcomer's lag should not be blank for long."""


async def watch_ends(offsets: Offsets, assignment: Assignment) -> None:
    """Keep every partition's log end current, for ever. One that cannot be had becomes unknown, not stale."""
    while True:
        await refresh_ends(offsets, assignment)
        known = assignment.table and all(partition.log_end is not None for partition in assignment.table.values())
        await asyncio.sleep(INTERVAL if known else _UNSETTLED_INTERVAL)


async def refresh_ends(offsets: Offsets, assignment: Assignment) -> None:
    """Ask for the ends of all partitions' logs, once. An end that is not answered becomes unknown."""
    wanted = dict.fromkeys(assignment.table, LATEST)
    asked_ms = time.time_ns() // 1_000_000
    try:
        answer = await offsets.list_offsets(wanted) if wanted else {}
    except PeerError as error:
        log.info(f"log ends are not known: {error}")
        answer = {}
    for tp in wanted:
        partition, found = assignment.table.get(tp), answer.get(tp)
        if partition is not None:
            partition.end_seen(found.offset if found is not None and not found.error else None, asked_ms)


ages_log = logs.get("kunicorn.ages")

AGE_INTERVAL = 5.0
"""Between two looks; only partitions that stood still from one to the next are asked about."""
_MOST = 500
"""Partitions in one look; the others have their turn in the next."""
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


async def watch_ages(offsets: Offsets, assignment: Assignment) -> None:
    """Look for the ages of records that no worker has in hand, for ever. Caller: the service, as a task."""
    seen: dict[TopicPartition, int] = {}
    while True:
        behind = dict(_waiting(assignment.table))
        still = {tp: position for tp, position in behind.items() if seen.get(tp) == position}
        seen = behind
        try:
            found = await search(offsets, dict(islice(still.items(), _MOST)), time.time_ns() // 1_000_000)
        except PeerError as error:
            ages_log.info(f"how old unhandled records are is not known: {error}")
            found = {}
        for tp, timestamp_ms in found.items():
            if (partition := assignment.table.get(tp)) is not None:
                partition.age.found(still[tp], timestamp_ms)
        await asyncio.sleep(AGE_INTERVAL)


async def search(offsets: Offsets, positions: Mapping[TopicPartition, int], now_ms: int) -> dict[TopicPartition, int]:
    """The times of the records at these positions, `NO_TIMESTAMP` where records carry none. Partitions that their
    brokers do not answer for are left out. Raises `PeerError`."""
    open_searches = {tp: Search(position, now_ms) for tp, position in positions.items()}
    results: dict[TopicPartition, int] = {}
    while open_searches:
        answers = await offsets.list_offsets({tp: each.asks for tp, each in open_searches.items()})
        further = {
            tp: each.answered(found)
            for tp, each in open_searches.items()
            if (found := answers.get(tp)) is not None and not found.error
        }
        results |= {tp: each.result for tp, each in further.items() if each.over}
        open_searches = {tp: each for tp, each in further.items() if not each.over}
    return results


def _waiting(table: Mapping[TopicPartition, Partition]) -> Iterator[tuple[TopicPartition, int]]:
    """Partitions with something to handle that nobody has in hand, and whose age was not looked for yet."""
    for tp, partition in table.items():
        if partition.busy or partition.position is None or partition.log_end is None:
            continue
        offset = partition.position.offset
        if offset < partition.log_end and not partition.age.known_at(offset):
            yield tp, offset
