"""Records that wait for a fuller batch, by partition. Everything here is the runner's; times are nanoseconds.

1. What waits is not in hand and counts as nothing: a partition that is stopped is reported at once, and what waited of
   it is let go of. Its consumed offset does not follow the client's position meanwhile (`Grant.gathering`).
2. No record waits longer than `wait_ns`, and all of them take no more than `memory` bytes, about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from kunicorn.handling.handlings import Handling
from kunicorn.handling.partial import fitting
from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.topics import NO_OFFSET, TopicPartition
from kunicorn.worker.batches import Run, kept_bytes
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.grants import Grant


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a batch is full, and how long its first record waits for that."""

    records: int
    bytes: int | None
    wait_ns: int
    memory: int

    def full(self, messages: list[Message]) -> int:
        """How many of the first ones make full batches: such as nothing fits into any more."""
        at = 0
        while True:
            some = messages[at : at + self.records]
            size = fitting(some, self.bytes) if some else 0
            if size < self.records and at + size >= len(messages):
                return at
            at += size


def bounds_of(handling: Handling[Any]) -> Bounds | None:
    """Of a handler's batches; None: it takes one record at a time."""
    if handling.batch_max_records is None:
        return None
    batching = handling.batching
    wait_ns = batching.max_ms * NANOSECONDS // 1000
    return Bounds(handling.batch_max_records, batching.max_bytes, wait_ns, batching.memory)


@dataclass(slots=True)
class _Waiting:
    grant: Grant
    assignments: int
    """How many the grant had by then."""
    leader_epoch: int
    since: int
    messages: list[Message]
    bytes: int
    put_back: bool = False
    """Some of it was about to be handled, and only the time was over."""


class Gathering:
    """Caller: the runner, for everything."""

    def __init__(self, bounds: Bounds, fetcher: Fetcher) -> None:
        self._bounds = bounds
        self._fetcher = fetcher
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._bytes = 0
        self._since = 0
        """Since when what was given out last had waited."""

    def add(self, run: Run, now: int) -> Iterator[Run]:
        """Take these; gives what is to be handled now, in order. Handle each before asking for the next."""
        waiting = self._waiting.get(run.tp)
        if waiting is not None and not self._counts(waiting):
            self._forget(run.tp)
        # Put back, it is asked for again: one epoch's records do not wait with those of another.
        while (waiting := self._waiting.get(run.tp)) is not None and waiting.leader_epoch != run.leader_epoch:
            yield self._take(run.tp)
        grant = self._fetcher.fetching(run.tp)
        if grant is None:
            return
        waiting = self._keep(run, grant, now)
        full = self._bounds.full(waiting.messages)
        if self._is_urgent(run.tp, waiting):
            full = len(waiting.messages)
        if full:
            yield from self._cut(run.tp, waiting, full, now)
        yield from self._over_memory()

    def due(self, now: int) -> Iterator[Run]:
        """What has waited for long enough. Handle each before asking for the next."""
        for tp, waiting in list(self._waiting.items()):
            if not self._counts(waiting):
                self._forget(tp)
            elif now - waiting.since >= self._bounds.wait_ns:
                yield self._take(tp)
            elif waiting.put_back:
                waiting.put_back = False
                if full := self._full(tp, waiting):
                    yield from self._cut(tp, waiting, full, waiting.since)

    def rest_of(self, tp: TopicPartition) -> Iterator[Run]:
        """What waits of that partition, as nothing more comes. Handle it before asking for the next."""
        if (waiting := self._waiting.get(tp)) is not None:
            if self._counts(waiting):
                yield self._take(tp)
            else:
                self._forget(tp)

    @property
    def puts_back(self) -> bool:
        """Whether some of what waits was put back, and is to be handled with the next turn."""
        return any(waiting.put_back for waiting in self._waiting.values())

    def put_back(self, run: Run) -> None:
        """The time is over within that run, the last given out, of which this is left: it comes before what waits of
        its partition, and has waited since then."""
        since = self._since
        behind = self._take(run.tp).messages if run.tp in self._waiting else []
        if (grant := self._fetcher.fetching(run.tp)) is not None:
            self._keep(Run(run.tp, run.leader_epoch, run.messages + behind), grant, since).put_back = True

    def patience(self, now: int, longest: float) -> float:
        """Seconds until the first of them has waited for long enough, at most `longest`."""
        if not self._waiting:
            return longest
        if self.puts_back:
            return 0.0
        oldest = min(waiting.since for waiting in self._waiting.values())
        return min(longest, max(0.0, (oldest + self._bounds.wait_ns - now) / NANOSECONDS))

    def _counts(self, waiting: _Waiting) -> bool:
        return self._fetcher.goes_on_behind(waiting.grant, waiting.assignments)

    def _cut(self, tp: TopicPartition, waiting: _Waiting, full: int, since: int) -> Iterator[Run]:
        rest = waiting.messages[full:]
        self._take(tp)
        # Before it is given out: whoever's time is over then asks for nothing more. Where a record of it fails, its
        # partition is parked, and the rest is fetched again after it.
        if rest:
            self._keep(Run(tp, waiting.leader_epoch, rest), waiting.grant, since)
        yield Run(tp, waiting.leader_epoch, waiting.messages[:full])

    def _full(self, tp: TopicPartition, waiting: _Waiting) -> int:
        """How many of what was put back are to be handled: none of them waits while they take too much memory."""
        if self._is_urgent(tp, waiting) or self._bytes > self._bounds.memory:
            return len(waiting.messages)
        return self._bounds.full(waiting.messages)

    def _is_urgent(self, tp: TopicPartition, waiting: _Waiting) -> bool:
        """A batch killed workers here, or its first record did: nothing is gained by waiting."""
        return bool(waiting.grant.poison) or self._fetcher.singly.get(tp, NO_OFFSET) != NO_OFFSET

    def _over_memory(self) -> Iterator[Run]:
        while self._waiting and self._bytes > self._bounds.memory:
            tp = min(self._waiting, key=lambda tp: self._waiting[tp].since)
            yield self._take(tp)
            if (waiting := self._waiting.get(tp)) is not None and waiting.put_back:
                return  # The turn is over: it is the next one's first.

    def _keep(self, run: Run, grant: Grant, since: int) -> _Waiting:
        waiting = self._waiting.get(run.tp)
        if waiting is None:
            waiting = self._waiting[run.tp] = _Waiting(grant, grant.assignments, run.leader_epoch, since, [], 0)
            grant.gathering = True
        more = kept_bytes(run.messages)
        waiting.messages += run.messages
        waiting.bytes += more
        self._bytes += more
        return waiting

    def _take(self, tp: TopicPartition) -> Run:
        waiting = self._waiting.pop(tp)
        waiting.grant.gathering = False
        self._since = waiting.since
        self._bytes -= waiting.bytes
        return Run(tp, waiting.leader_epoch, waiting.messages)

    def _forget(self, tp: TopicPartition) -> None:
        if tp in self._waiting:
            self._take(tp)
