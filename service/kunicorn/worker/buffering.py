"""Buffers between the client and the handler: records that wait for a fuller batch (`BatchBuffer`), for their time in a
retry topic (`Delays`), or for the next turn (`TurnBuffer`); and back-pressure towards the client (`HeadOfLine`).
Everything here is the runner's; times are nanoseconds.

`BatchBuffer` has records that wait for a fuller batch, by partition. 1. Waiting records are not in hand: a partition
that is stopped is reported at once, and its waiting records are dropped. Its consumed offset does not follow the
client's position meanwhile (`Grant.waits_for_batch`). 2. No record waits longer than `wait_ns`, and all of them take no
more than `memory` bytes, about.

`Delays` has partitions of retry topics that wait for their time. A retry topic's records all wait equally long, so the
first of a partition is the first whose time comes: until then the partition is delayed, not fetched and with nothing in
hand, and the others go on. It is fetched again from there. 1. No record is handled before its time: its timestamp (that
of its sending) and the topic's delay. 2. Where many records wait, one behind the other, a partition is fetched again a
few times within the delay, not for each: what the client has fetched ahead is thrown away every time.

`TurnBuffer` has records that were fetched and whose turn is over, by partition, until the next one. A turn is bounded
by time, so that whatever else is due does not wait for a whole batch. The rest is never fetched again: it goes on
behind partitions that have had no turn yet. 1. The rest is not in hand: a partition that is stopped is reported at
once, and its rest is dropped. Its consumed offset does not follow the client's position meanwhile
(`Grant.waits_for_turn`). 2. A partition's records stay in order: what is fetched of it meanwhile comes behind its rest,
and an error that ends it behind both. 3. The partition that has waited longest for its turn is the next one; before
those that wait alike comes what has just arrived.

`HeadOfLine` prevents that a partition waits behind others in the client's queue. librdkafka gives records out in the
order in which it got them: what it has fetched ahead of some partitions comes before the first record of a partition
that comes later, however long their handling takes. 1. While something is kept that the handlers have not begun, all
that the client has is taken in, up to `ahead_bytes`: in the client no partition stands behind another. 2. Beyond that
the client's queue fills up, as it should. When a partition comes then, or a retry topic may have got a record, those of
which something is in hand are paused for a moment: the client throws away what it has fetched of them, gives out what
is left, and fetches them again later. That costs as much as its queue holds, once each time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.call import fitting
from kunicorn.handler.config import HandlerConfig
from kunicorn.handler.registry import Handling
from kunicorn.ipc.clock import NANOSECONDS, wall_ms
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.worker.fetch import Run, kept_bytes
from kunicorn.worker.partitions import GrantTable, SequentialTable
from kunicorn.worker.progress import Grant


@dataclass(frozen=True, slots=True)
class Bounds:
    """Size of a full batch, and how long its first record waits for one."""

    records: int
    bytes: int | None
    wait_ns: int
    memory: int

    def full(self, messages: list[Message]) -> int:
        """Number of leading messages that make full batches: such as nothing fits into any more."""
        at = 0
        while True:
            some = messages[at : at + self.records]
            size = fitting(some, self.bytes) if some else 0
            if size < self.records and at + size >= len(messages):
                return at
            at += size


def bounds_of(handling: Handling[Any]) -> Bounds | None:
    """Bounds of a handler's batches; None: it takes one record at a time."""
    if handling.batch_max_records is None:
        return None
    batching = handling.batching
    wait_ns = batching.batch_max_ms * NANOSECONDS // 1000
    return Bounds(handling.batch_max_records, batching.batch_max_bytes, wait_ns, batching.memory_bytes)


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


class BatchBuffer:
    """Records that wait for a fuller batch. Caller: the runner, for everything."""

    def __init__(self, bounds: Bounds, table: SequentialTable) -> None:
        self._bounds = bounds
        self._table = table
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._bytes = 0
        self._since = 0
        """Since when what was given out last had waited."""

    def add(self, run: Run, now: int) -> Iterator[Run]:
        """Take in a run; yields runs to be handled now, in order. Handle each before asking for the next."""
        waiting = self._waiting.get(run.tp)
        if waiting is not None and not self._counts(waiting):
            self._forget(run.tp)
        # Put back, it is asked for again: one epoch's records do not wait with those of another.
        while (waiting := self._waiting.get(run.tp)) is not None and waiting.leader_epoch != run.leader_epoch:
            yield self._take(run.tp)
        grant = self._table.fetching(run.tp)
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
        """Runs that have waited long enough. Handle each before asking for the next."""
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
        """Waiting runs of that partition, as nothing more comes. Handle each before asking for the next."""
        if (waiting := self._waiting.get(tp)) is not None:
            if self._counts(waiting):
                yield self._take(tp)
            else:
                self._forget(tp)

    @property
    def puts_back(self) -> bool:
        """Whether some of the waiting records were put back, and are to be handled in the next turn."""
        return any(waiting.put_back for waiting in self._waiting.values())

    def put_back(self, run: Run) -> None:
        """Take back the rest of the run given out last, whose turn is over: it comes before the partition's other
        waiting records, and has waited since then.
        """
        since = self._since
        behind = self._take(run.tp).messages if run.tp in self._waiting else []
        if (grant := self._table.fetching(run.tp)) is not None:
            self._keep(Run(run.tp, run.leader_epoch, run.messages + behind), grant, since).put_back = True

    def patience(self, now: int, longest: float) -> float:
        """Seconds until the first record has waited long enough, at most `longest`."""
        if not self._waiting:
            return longest
        if self.puts_back:
            return 0.0
        oldest = min(waiting.since for waiting in self._waiting.values())
        return min(longest, max(0.0, (oldest + self._bounds.wait_ns - now) / NANOSECONDS))

    def _counts(self, waiting: _Waiting) -> bool:
        return self._table.goes_on_behind(waiting.grant, waiting.assignments)

    def _cut(self, tp: TopicPartition, waiting: _Waiting, full: int, since: int) -> Iterator[Run]:
        rest = waiting.messages[full:]
        self._take(tp)
        # Before it is given out: whoever's time is over then asks for nothing more. Where a record of it fails, its
        # partition is parked, and the rest is fetched again after it.
        if rest:
            self._keep(Run(tp, waiting.leader_epoch, rest), waiting.grant, since)
        yield Run(tp, waiting.leader_epoch, waiting.messages[:full])

    def _full(self, tp: TopicPartition, waiting: _Waiting) -> int:
        """Number of records put back that are to be handled: none of them waits while they take too much memory."""
        if self._is_urgent(tp, waiting) or self._bytes > self._bounds.memory:
            return len(waiting.messages)
        return self._bounds.full(waiting.messages)

    def _is_urgent(self, tp: TopicPartition, waiting: _Waiting) -> bool:
        """Whether waiting gains nothing: a batch killed workers here, or its first record did."""
        return bool(waiting.grant.poison) or self._table.singly.get(tp, NO_OFFSET) != NO_OFFSET

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
            grant.waits_for_batch = True
        more = kept_bytes(run.messages)
        waiting.messages += run.messages
        waiting.bytes += more
        self._bytes += more
        return waiting

    def _take(self, tp: TopicPartition) -> Run:
        waiting = self._waiting.pop(tp)
        waiting.grant.waits_for_batch = False
        self._since = waiting.since
        self._bytes -= waiting.bytes
        return Run(tp, waiting.leader_epoch, waiting.messages)

    def _forget(self, tp: TopicPartition) -> None:
        if tp in self._waiting:
            self._take(tp)


_NS_PER_MS = 1_000_000
_SHARE = 10
_MOST_MS = 1000
"""A tenth of the delay, or a second: so much later than its time a record may be handled behind others."""


class Wait(NamedTuple):
    """Wait of the record at `offset`: its end in milliseconds since 1970, and the rest of it in milliseconds."""

    offset: int
    due_ms: int
    milliseconds: int


def ripe(messages: Sequence[Message], delay_ms: int, now_ms: int) -> tuple[int, Wait | None]:
    """Number of leading messages that have waited for `delay_ms`, and the next one's wait. Pure.

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


def delays_of(configs: Iterable[HandlerConfig]) -> Mapping[str, int]:
    """Retry topics of these handlers, with their delays in milliseconds."""
    return {topic.name: topic.delay_ms for config in configs for topic in config.retry_topics}


class Delays:
    """Delayed partitions of retry topics. Caller: the runner, for everything. `now` is nanoseconds of
    `clock.now_ns`.
    """

    def __init__(self, table: GrantTable) -> None:
        self._table = table
        self._delays = table.settings.delays
        self._waiting: list[tuple[int, int, Grant]] = []
        """Heap of (when it is to be fetched again, grant's number, grant)."""

    def split(self, tp: TopicPartition, messages: list[Message]) -> tuple[list[Message], Wait | None, list[Message]]:
        """Messages whose time has come, the next one's wait, and messages that have to wait. Handle the first ones
        before `delay`.
        """
        delay_ms = self._delays.get(tp.topic)
        if delay_ms is None:
            return messages, None, []
        count, wait = ripe(messages, delay_ms, wall_ms())
        return messages[:count], wait, messages[count:]

    def delay(self, tp: TopicPartition, wait: Wait, now: int) -> None:
        """Stop fetching the partition for so long; does nothing where it ended meanwhile, or waits for something
        else.
        """
        at = datetime.fromtimestamp(wait.due_ms / 1000, UTC).isoformat(timespec="milliseconds")
        why = f"offset {wait.offset} of this retry topic waits for its time, {at}"
        if (grant := self._table.delay(tp, why)) is not None:
            heapq.heappush(self._waiting, (now + wait.milliseconds * _NS_PER_MS, grant.number, grant))

    def end_due(self, now: int) -> None:
        """Fetch those partitions again whose delay is over."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, grant = heapq.heappop(self._waiting)
            self._table.end_delay(grant)


@dataclass(slots=True)
class _Left:
    grant: Grant
    assignments: int
    """How many the grant had by then."""
    runs: deque[Run] = field(default_factory=deque)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _End:
    grant: Grant
    assignments: int
    error: Message


class TurnBuffer:
    """Records whose turn is over, by partition. Caller: the runner, for everything."""

    def __init__(self, table: SequentialTable) -> None:
        self.bytes = 0
        """About so much is kept: what is left of partitions that have ended counts until their turn."""
        self._table = table
        self._left: dict[TopicPartition, _Left] = {}
        """What has just arrived first."""
        self._served: dict[TopicPartition, int] = {}
        """When it last had a turn, in turns; the others have had none since something was left over."""
        self._turns = 0
        self._ends: dict[TopicPartition, _End] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions of which something is left."""
        return self._left.keys()

    def keep(self, runs: Iterable[Run]) -> None:
        """Add runs that are not begun: behind the rest of their partitions, and behind the other partitions."""
        for run in runs:
            left = self._left.get(run.tp)
            if left is not None and not self._counts(left):
                self._drop(run.tp)
                left = None
            if left is None:
                if (grant := self._table.fetching(run.tp)) is None:
                    continue
                grant.waits_for_turn = True
                left = self._left[run.tp] = _Left(grant, grant.assignments)
            left.runs.append(run)
            self._count(left, kept_bytes(run.messages))

    def arrived(self, runs: Iterable[Run]) -> None:
        """Add runs that were fetched: partitions of which nothing was left come first."""
        before, self._left = self._left, {}
        behind: list[Run] = []
        for run in runs:
            if run.tp in before:
                behind.append(run)
            else:
                self.keep([run])
        self._left |= before
        self.keep(behind)

    def runs(self) -> Iterator[Run]:
        """Runs that are left, by partition. Handle each before asking for the next; `put_back` the rest."""
        for tp in sorted(self._left, key=lambda tp: self._served.get(tp, 0)):
            while (left := self._left.get(tp)) is not None:
                if not self._counts(left):
                    self._drop(tp)
                    break
                run = left.runs.popleft()
                self._count(left, -kept_bytes(run.messages))
                if not left.runs:
                    self._drop(tp)
                yield run

    def served(self, tp: TopicPartition) -> None:
        """Note that the partition's turn is over."""
        self._turns += 1
        self._served[tp] = self._turns

    def put_back(self, run: Run) -> None:
        """Take back the rest of a run whose turn is over."""
        left = self._left.get(run.tp)
        if left is not None and self._counts(left):
            left.runs.appendleft(run)
            self._count(left, kept_bytes(run.messages))
        else:
            self.keep([run])

    # -- errors in place of records --------------------------------------------------------------------------------

    @property
    def errors(self) -> bool:
        """Whether some error is to be met."""
        return bool(self._ends)

    def end(self, tp: TopicPartition, error: Message) -> None:
        """Note an error of the client's, behind the rest of the partition. The first one counts: librdkafka reads on
        within a damaged batch, and what it says of that names nothing that is there.
        """
        if (grant := self._table.fetching(tp)) is not None and not self.ends(tp):
            self._ends[tp] = _End(grant, grant.assignments, error)

    def ends(self, tp: TopicPartition) -> bool:
        """Whether the partition has an error to be met, which no record may pass."""
        end = self._ends.get(tp)
        return end is not None and self._counts(end)

    def ending(self) -> list[TopicPartition]:
        """Partitions with nothing left before their error."""
        for tp in [tp for tp, end in self._ends.items() if not self._counts(end)]:
            # It is assigned again, and would meet the error again, if it is still there.
            del self._ends[tp]
        return [tp for tp in self._ends if tp not in self._left]

    def take_error(self, tp: TopicPartition) -> Message:
        """Error of the partition, which is met now."""
        return self._ends.pop(tp).error

    # -- internals -------------------------------------------------------------------------------------------------

    def _counts(self, left: _Left | _End) -> bool:
        return self._table.goes_on_behind(left.grant, left.assignments)

    def _drop(self, tp: TopicPartition) -> None:
        left = self._left.pop(tp)
        if not self._left:
            self._served.clear()
        left.grant.waits_for_turn = False
        self.bytes -= left.bytes

    def _count(self, left: _Left, more: int) -> None:
        left.bytes += more
        self.bytes += more


_LOOK_NS = NANOSECONDS
"""So long others are held back: a fetch under way may wait half a second for records (`fetch.wait.max.ms`) before the
next one asks for a partition that has come."""
_LEAST_INTERVAL_NS = NANOSECONDS


class Buffered(Protocol):
    """Fetched records that are not begun, as `HeadOfLine` sees them."""

    @property
    def bytes(self) -> int: ...

    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions of which something is kept."""


class HeadOfLine:
    """Back-pressure towards the client. Caller: the runner, between turns. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(self, table: GrantTable, kept: Buffered) -> None:
        self._table = table
        self._kept = kept
        self._most_bytes = table.settings.ahead_bytes
        self._delays = table.settings.delays
        self._until = 0
        self._looked_at = 0
        self._record_bytes = 1000

    def room(self, now: int) -> int:
        """Approximate number of records that may be taken in; 0: the client is not to be asked. Blocks for a round trip
        to the client's thread where partitions are paused or resumed.
        """
        kept, looks = self._kept.bytes, self._looks(now)
        if not looks or kept < self._most_bytes // 2:
            self.resume()
        most = self._most_bytes
        if kept >= most and looks:
            self._table.pause(self._kept.partitions())
            most += most // 2
        return -(-(most - kept) // self._record_bytes) if kept < most else 0

    def took(self, batch: Sequence[Message]) -> None:
        """Note a fetched batch: the next records are about as large."""
        self._record_bytes = kept_bytes(batch) // len(batch)

    def resume(self) -> None:
        """Resume all paused partitions."""
        if self._table.paused:
            self._table.resume()

    def _looks(self, now: int) -> bool:
        """Whether a partition may have come that stands behind others."""
        if self._delays:
            # Twice within the delay: a record that came just after a look is found before its time has come.
            interval = max(min(self._delays.values()) * _NS_PER_MS // 2, _LEAST_INTERVAL_NS)
            if now - self._looked_at >= interval:
                self._looked_at, self._until = now, now + _LOOK_NS
        return now < max(self._until, self._table.came_at + _LOOK_NS)
