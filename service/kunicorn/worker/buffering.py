"""What is kept between the client and the handler: records that wait for their time (`Delays`), and back-pressure
towards the client (`HeadOfLine`, `Backpressure`). Times are nanoseconds.

`Delays` has partitions of retry topics, and of handlers with `delay_ms`, that wait for their time. A topic's records
all wait equally long, so the first of a partition is the first whose time comes: until then the partition is delayed,
not fetched, and the others go on. It is fetched again from there. 1. No record is handled before its time: its
timestamp and the topic's delay. 2. Where many records wait, one behind the other, a partition is fetched again a few
times within the delay, not for each: what the client has fetched ahead is thrown away every time. 3. A record whose
timestamp is ahead of our clock waits for the delay from when it was met first, and those that were behind it then with
it: no clock that lies holds a partition for longer.

`HeadOfLine` prevents that a partition waits behind others in the client's queue. librdkafka gives records out in the
order in which it got them: what it has fetched ahead of some partitions comes before the first record of a partition
that comes later, however long their handling takes. 1. While something is kept that the handlers have not begun, all
that the client has is taken in, up to `ahead_bytes`: in the client no partition stands behind another. 2. Beyond that
the client's queue fills up, as it should. When a partition comes then, or a retry topic may have got a record, those of
which something is in hand are paused for a moment: the client throws away what it has fetched of them, gives out what
is left, and fetches them again later. That costs as much as its queue holds, once each time.

`Backpressure` is what the worker keeps in memory for when there is a free slot, and what it does if that is too much.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from kunicorn.handler.config import HandlerConfig, route
from kunicorn.handler.messages import Run
from kunicorn.handler.record import offset_of
from kunicorn.handler.rows import ends
from kunicorn.ipc.clock import NANOSECONDS, wall_ms
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.text import utc
from kunicorn.worker.progress import Bounds, Grant, GrantState
from kunicorn.worker.scheduler import Scheduler

log = logging.getLogger("kunicorn.worker")


def bounds_of(config: HandlerConfig) -> Bounds | None:
    """Bounds of a handler's batches; None: it takes one record at a time."""
    if not config.batches:
        return None
    batching = config.batching
    wait_ns = batching.batch_max_ms * _NS_PER_MS
    return Bounds(config.batch_max_records, batching.batch_max_bytes, wait_ns, batching.memory_bytes)


_NS_PER_MS = 1_000_000
_SHARE = 10
_MOST_MS = 1000
"""A tenth of the delay, or a second: so much later than its time a record may be handled behind others."""


class Wait(NamedTuple):
    """Wait of the record at `offset`: its end in milliseconds since 1970, and the rest of it in milliseconds."""

    offset: int
    due_ms: int
    milliseconds: int
    ahead_ms: int = 0
    """So far its timestamp is ahead of our clock."""


def ripe(
    messages: Sequence[Message], delay_ms: int, now_ms: int, waited_up_to: int = NO_OFFSET
) -> tuple[int, Wait | None]:
    """Number of leading messages that have waited for `delay_ms`, and the next one's wait. Pure.

    A time that lies ahead of our clock, as another host's does, makes no record wait for longer than the delay: those
    up to the offset `waited_up_to` were there a delay ago.
    """
    for count, message in enumerate(messages):
        kind, sent_ms = message.timestamp()
        offset = offset_of(message)
        # Also where the clock has caught up with its timestamp meanwhile: else it would wait for the delay once more.
        if kind == TIMESTAMP_NOT_AVAILABLE or sent_ms < 0 or offset <= waited_up_to:
            continue
        due_ms = min(sent_ms, now_ms) + delay_ms
        if due_ms > now_ms:
            least = min(delay_ms // _SHARE, _MOST_MS)
            return count, Wait(offset, due_ms, max(due_ms - now_ms, least), max(0, sent_ms - now_ms))
    return len(messages), None


_MOST_FOUND = 1024
"""Topics whose delays are kept: with a pattern, topics come and go for ever."""


class TopicDelays(Mapping[str, int]):
    """Delays in milliseconds by topic, where handlers have some: those of their retry topics, which are listed, and of
    all other topics that are theirs, which are found."""

    def __init__(self, configs: Sequence[HandlerConfig]) -> None:
        self._retries = retry_delays(configs)
        self._topics = [config.topics for config in configs]
        self._delays = [config.delay_ms or None for config in configs]
        self._find = lru_cache(_MOST_FOUND)(self._look_up)

    def __getitem__(self, topic: str) -> int:
        found = self._retries[topic] if topic in self._retries else self._find(topic)
        if found is None:
            raise KeyError(topic)
        return found

    def _look_up(self, topic: str) -> int | None:
        number = 0 if len(self._topics) == 1 else route(self._topics, topic)
        return None if number is None else self._delays[number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._retries)

    def __len__(self) -> int:
        return len(self._retries)


def retry_delays(configs: Iterable[HandlerConfig]) -> dict[str, int]:
    """Retry topics of these handlers, with their delays in milliseconds."""
    return {topic.name: topic.delay_ms for config in configs for topic in config.retry_topics}


def delays_of(configs: Sequence[HandlerConfig]) -> Mapping[str, int]:
    """Topics whose records wait, with their delays in milliseconds."""
    return TopicDelays(configs) if any(config.delay_ms for config in configs) else retry_delays(configs)


class Delayed(Protocol):
    """The table of partitions, as `Delays` sees it."""

    def topic_id(self, tp: TopicPartition) -> str: ...
    def delay(self, tp: TopicPartition, why: str) -> Grant | None: ...
    def end_delay(self, grant: Grant) -> None: ...


class _Ahead(NamedTuple):
    """Records of a partition with timestamps ahead of our clock."""

    topic_id: str
    """Where it was created anew, records that have not waited have these offsets, too."""
    up_to: int
    """Offset of the last one that was there when the first was met."""
    due_ms: int
    """They have waited then."""


_NOTABLE_MS = 60_000
"""Clocks differ by seconds; who is further ahead is named in the log."""


class Delays:
    """Delayed partitions. Caller: the runner, for everything. `now` is nanoseconds of
    `clock.now_ns`.
    """

    def __init__(self, table: Delayed, delays: Mapping[str, int]) -> None:
        """`delays`: milliseconds, by topic."""
        self._table = table
        self._delays = delays
        self._ahead: dict[TopicPartition, _Ahead] = {}
        self._waiting: list[tuple[int, int, Grant]] = []
        """Heap of (when it is to be fetched again, grant's number, grant)."""

    def split(self, tp: TopicPartition, messages: Run) -> tuple[Run, Wait | None]:
        """Messages whose time has come, and the next one's wait: the others are fetched again. Take in the first ones
        before `delay`.
        """
        delay_ms = self._delays.get(tp.topic)
        if delay_ms is None:
            return messages, None
        now_ms, ahead = wall_ms(), self._ahead_of(tp)
        waited = ahead.up_to if ahead is not None and ahead.due_ms <= now_ms else NO_OFFSET
        count, wait = ripe(messages, delay_ms, now_ms, waited)
        if wait is not None:
            wait = self._bounded(tp, wait, ends(messages)[1], now_ms)
        return messages[:count], wait

    def _bounded(self, tp: TopicPartition, wait: Wait, last: int, now_ms: int) -> Wait:
        """The wait, of a record whose timestamp is ahead of our clock, or was: counted from when it was met first."""
        ahead = self._ahead_of(tp)
        if ahead is not None and now_ms < ahead.due_ms and wait.offset <= ahead.up_to:
            left_ms = min(wait.milliseconds, ahead.due_ms - now_ms)
            return wait._replace(due_ms=min(wait.due_ms, ahead.due_ms), milliseconds=left_ms)
        if not wait.ahead_ms:
            return wait
        self._ahead[tp] = _Ahead(self._table.topic_id(tp), last, wait.due_ms)
        if wait.ahead_ms > _NOTABLE_MS:
            log.warning(
                f"{tp}@{wait.offset} has a timestamp {wait.ahead_ms / 1000:.0f} s ahead of this clock: it waits for "
                f"the topic's delay from now on, and no longer. Correct its producer's clock, or this one"
            )
        return wait

    def _ahead_of(self, tp: TopicPartition) -> _Ahead | None:
        ahead = self._ahead.get(tp)
        return ahead if ahead is not None and ahead.topic_id == self._table.topic_id(tp) else None

    def delay(self, tp: TopicPartition, wait: Wait, now: int) -> None:
        """Stop fetching the partition for so long; does nothing where it ended meanwhile, or waits for something
        else.
        """
        why = f"offset {wait.offset} waits for its time, {utc(wait.due_ms, 'milliseconds')}"
        if wait.ahead_ms:
            why += f" (its timestamp is {wait.ahead_ms / 1000:.0f} s ahead of this clock)"
        if (grant := self._table.delay(tp, why)) is not None:
            heapq.heappush(self._waiting, (now + wait.milliseconds * _NS_PER_MS, grant.number, grant))

    def end_due(self, now: int) -> None:
        """Fetch those partitions again whose delay is over."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, grant = heapq.heappop(self._waiting)
            self._table.end_delay(grant)

    def forget_ended(self) -> None:
        """Drop the partitions whose grant has ended meanwhile: the wait may be a day, and each rebalance adds one."""
        self._waiting = [each for each in self._waiting if not each[2].tracker.closed]
        heapq.heapify(self._waiting)


_LOOK_NS = NANOSECONDS
"""So long others are held back: a fetch under way may wait half a second for records (`fetch.wait.max.ms`) before the
next one asks for a partition that has come."""
_LEAST_INTERVAL_NS = NANOSECONDS


class Buffered(Protocol):
    """The table of partitions, as `HeadOfLine` sees it."""

    @property
    def paused(self) -> bool: ...
    @property
    def came_at(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def partitions(self) -> Iterable[TopicPartition]: ...
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...
    def resume(self) -> None: ...


class HeadOfLine:
    """Back-pressure towards the client. Caller: the runner, between turns. `now` is nanoseconds of `clock.now_ns`."""

    def __init__(self, table: Buffered, most_bytes: int, delays: Mapping[str, int]) -> None:
        """`delays`: milliseconds, by retry topic."""
        self._table = table
        self._most_bytes = most_bytes
        self._delays = delays
        self._until = 0
        self._looked_at = 0
        self._record_bytes = 1000

    def room(self, now: int) -> int:
        """Approximate number of records that may be taken in; 0: the client is not to be asked. Blocks for a round trip
        to the client's thread where partitions are paused or resumed.
        """
        kept, looks = self._table.bytes, self._looks(now)
        if not looks or kept < self._most_bytes // 2:
            self.resume()
        most = self._most_bytes
        if kept >= most and looks:
            self._table.pause(self._table.partitions())
            most += most // 2
        return -(-(most - kept) // self._record_bytes) if kept < most else 0

    def took(self, records: int, nbytes: int) -> None:
        """Note what was taken in: the next records are about as large."""
        if records and nbytes:
            self._record_bytes = max(1, nbytes // records)

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


class Backpressure:
    """Back-pressure within the worker. Ordinarily the loop just stops polling when the buffer is full. If nothing that
    is buffered may start in some handler's free slots (say, one slow key fills it all), the tail of the largest
    partition is dropped and fetched again later, so that the others go on. Every caller holds the table's lock.

    Of records that wait (for their next try, for their letter, for a limit) none may be dropped. They count for half of
    what there is and no more, so that the others go on however large they are. Beyond that nothing more is fetched of a
    partition that has its share of them: all of them together stay within what there is. Once they come to a quarter in
    all they hold back no partition: a single one may wait for a day.

    Where records share memory with those that came with them, one that does not get on keeps a whole answer alive, and
    only its own bytes are counted. So does one whose outputs are not acknowledged. Once twice as much is alive as there
    may be, what is queued, or on its way, is copied out.
    """

    def __init__(self, scheduler: Scheduler, most_bytes: int) -> None:
        self._scheduler = scheduler
        self._most_bytes = most_bytes
        self._aside: dict[Grant, int] = {}
        """Partitions that are set aside: fetched again once a quarter of so many bytes is queued."""
        self._least_shared = 0
        """Bytes that were alive at the least since the last copies."""

    @property
    def full(self) -> bool:
        """Whether the loop is to stop fetching."""
        return self.bytes >= self._most_bytes

    @property
    def bytes(self) -> int:
        """Bytes that count of all that is kept for a free slot, or until its wait is over."""
        return self._scheduler.waiting_bytes + min(self._scheduler.parked_bytes, self._most_bytes // 2)

    def is_to_copy(self, shared_bytes: int) -> bool:
        """Whether what is queued is to be copied out of what it came with, of which so many bytes are alive. Copies
        free nothing of what handlers keep: not before as much again has come are there others."""
        self._least_shared = min(self._least_shared, shared_bytes)
        return shared_bytes >= self._most_bytes + max(self._most_bytes, self._least_shared)

    def copied(self, shared_bytes: int) -> None:
        """Note that all that is queued has been copied, and that so many bytes are alive now."""
        self._least_shared = shared_bytes

    def set_aside(self, grants: Collection[Grant]) -> Collection[Grant]:
        """Partitions of which nothing more is to be fetched for now, and whose tail is dropped. It is fetched again
        when what is kept is mostly done; what waits counts as kept while there is much of it in all."""
        share, found = self._share(len(grants)), []
        if self._scheduler.parked_bytes >= self._most_bytes // 2:
            found = [each for each in grants if self._waits_with_more_than(share // 2, each)]
            for each in found:
                self._shed(each, share // 2)
                self._put_aside(each, share)
        largest = self._largest(grants) if self.full else None
        if largest is not None and self._shed(largest, share):
            # Little may stay where records are large: by its share it would be fetched and dropped again at once.
            self._put_aside(largest, min(share, largest.tracker.bytes))
            found.append(largest)
        return found

    def _shed(self, grant: Grant, keep_bytes: int) -> bool:
        """Drop what is queued beyond so many bytes, less those that wait; whether something is to be fetched again."""
        return self._scheduler.shed(grant.tracker, max(0, keep_bytes - grant.tracker.parked_bytes))

    def _put_aside(self, grant: Grant, kept_bytes: int) -> None:
        grant.state = GrantState.ASIDE
        self._aside[grant] = kept_bytes

    def _waits_with_more_than(self, nbytes: int, grant: Grant) -> bool:
        return grant.state is GrantState.FETCHING and grant.tracker.parked_bytes > nbytes

    def _largest(self, grants: Collection[Grant]) -> Grant | None:
        """The partition that fills most of what there is, where a handler's free slots find nothing to start."""
        if not any(self._scheduler.starved(slots) for slots in {each.tracker.slots for each in grants}):
            return None
        queued = (each for each in grants if self._fills_up(each))
        return max(queued, key=lambda each: each.tracker.bytes, default=None)

    def _fills_up(self, grant: Grant) -> bool:
        """Whether records of the partition are fetched that wait for a free slot: a batch that fills has a bound of its
        own."""
        tracker = grant.tracker
        fills = any(lane.tracker is tracker for lane in tracker.slots.filling)
        return grant.state is GrantState.FETCHING and tracker.bytes > 0 and not fills

    def fetched_again(self, partitions: int) -> list[Grant]:
        """Partitions set aside (of `partitions` in all) of which what was kept is mostly done; they are to be assigned
        again.
        """
        if not self._aside:
            return []
        self._aside = {each: kept for each, kept in self._aside.items() if each.state is GrantState.ASIDE}
        share = self._share(partitions)
        ready = [each for each, kept in self._aside.items() if self._is_mostly_done(each, kept, share)]
        for each in ready:
            del self._aside[each]
            each.state = GrantState.WAITING
        return ready

    def _is_mostly_done(self, grant: Grant, kept_bytes: int, share: int) -> bool:
        queued, parked = grant.tracker.bytes, grant.tracker.parked_bytes
        few_wait = self._scheduler.parked_bytes * 4 <= self._most_bytes
        return queued * 4 <= kept_bytes and (few_wait or (queued + parked) * 4 <= share)

    def _share(self, partitions: int) -> int:
        """Bytes that one partition may keep while it is set aside: all of them together leave something over."""
        return self._most_bytes // (partitions + 1)
