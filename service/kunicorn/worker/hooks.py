"""The handler's hooks, called in the runner's thread as partitions come and go. `Lifecycle` stands between the pipe and
the table of partitions; `Coming` and `Going` are partitions on their way into a handler's hands, and out of them.

1. A partition is fetched only after its handler's `load_offsets` (where it has one) and `on_assigned` have returned;
   one that raises has it wait and is called again, while the other partitions go on.
2. That a partition is let go of is reported only after `on_revoked` or `on_lost` has returned or raised: then nobody
   else has it yet. What they raise is logged and counted, and changes no offset: that of a record whose handler
   returned may have been committed long ago.
3. Partitions of handlers without such hooks go straight through, as if nothing was here.

`kept_offsets` checks the offsets that a handler keeps beside its effects (`load_offsets`), and moves the starts. Pure.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kunicorn.handler.load import DrainDeadline
from kunicorn.handler.registry import Handling, Handlings
from kunicorn.handler.retry import describe
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.messages import Failed, FetcherStart, FetcherStopped, FromWorker, Parked, Stopped
from kunicorn.positions import NO_EPOCH, TopicPartition


def kept_offsets(returned: Any, asked: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """What `load_offsets` said of the partitions it was asked for. Raises `TypeError` or `ValueError`."""
    if not isinstance(returned, Mapping):
        raise TypeError(f"load_offsets returned {type(returned).__name__}; return a dict from partition to next offset")
    kept: dict[TopicPartition, int] = {}
    for tp in asked:
        offset = returned.get(tp)
        if offset is None:
            continue
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise TypeError(f"load_offsets gave {tp} a {type(offset).__name__}; an offset is an int, or None")
        if offset < 0:
            raise ValueError(f"load_offsets gave {tp} the offset {offset}; leave out a partition that has none")
        kept[tp] = offset
    return kept


def placed_at(start: FetcherStart, offset: int | None) -> FetcherStart:
    """The start, at the offset that is kept, if one is."""
    if offset is None or offset == start.offset:
        return start
    # The epoch belongs to the other offset.
    return msgspec.structs.replace(start, offset=offset, leader_epoch=NO_EPOCH)


@dataclass(slots=True)
class Coming:
    """A partition whose handler has not taken it on yet."""

    start: FetcherStart
    again_at: int = 0
    tries: int = 0
    why: str = ""

    @property
    def tp(self) -> TopicPartition:
        """Which one it is."""
        return TopicPartition(self.start.topic, self.start.partition)


@dataclass(frozen=True, slots=True)
class Going:
    """A report that waits for the handler's last word."""

    handling: Handling[Any]
    tp: TopicPartition
    offset: int
    lost: bool
    report: Stopped | Failed


log = logging.getLogger("kunicorn.worker")

_BACKOFF_NS, _BACKOFF_MAX_NS = NANOSECONDS // 10, 10 * NANOSECONDS
_WHY_LENGTH = 300


class Fetching(Protocol):
    """What is needed of the fetcher."""

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Fetch these."""

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        """Fetch these grants no more; `lost`: they may be another member's by now."""

    def drain(self) -> None:
        """Stop everything."""

    def interrupt(self) -> None:
        """Make the runner look around before its next record."""


class Lifecycle:
    """`send` sends one message to the supervisor; `fetcher` is set before anything is called."""

    def __init__(self, handlings: Handlings[Any], send: Callable[[FromWorker], None]) -> None:
        self.fetcher: Fetching
        self.waiting = False
        """Something is to be done by `attend`. The runner's test between two chunks of records."""
        self._handlings = handlings
        self._send = send
        self._lock = threading.Lock()
        """Never held while the fetcher or a handler is called: the fetcher reports under a lock of its own."""
        self._coming: dict[int, Coming] = {}
        """By grant: to be offered to their handlers."""
        self._offered: dict[int, Coming] = {}
        """Their handler is being told of them at this moment."""
        self._recalled: set[int] = set()
        """Those of them that are to be let go of again."""
        self._told: dict[int, tuple[Handling[Any], TopicPartition]] = {}
        """Grants whose handler wants to know of their end."""
        self._lost: set[int] = set()
        self._going: list[Going] = []
        self._again_at = 0
        self._failures: Counter[str] = Counter()
        self._hook = ""
        """The one that was called last."""
        self._interruptible: Handling[Any] | None = None
        """Whose `on_revoked` or `on_lost` runs at this moment."""

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[FetcherStart]) -> None:
        """Have these fetched as soon as their handlers have taken them on."""
        at_once = []
        with self._lock:
            for start in starts:
                handling = self._handlings.of(start.topic)
                handler = handling.handler
                if handler.on_revoked is not None or handler.on_lost is not None:
                    self._told[start.grant] = handling, TopicPartition(start.topic, start.partition)
                if handler.on_assigned is None and not handler.keeps_offsets:
                    at_once.append(start)
                else:
                    self._coming[start.grant] = Coming(start)
                    self._look_around()
        if at_once:
            self.fetcher.start(at_once)

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        """Have these fetched no more; `lost`: they may be another member's by now."""
        numbers = list(numbers)
        with self._lock:
            if lost:
                self._lost.update(numbers)
            withdrawn = [each for number in numbers if (each := self._coming.pop(number, None)) is not None]
            self._recalled.update(number for number in numbers if number in self._offered)
        self._untouched(withdrawn)
        self.fetcher.stop(numbers, lost=lost)

    def drain(self) -> None:
        """Have everything stopped."""
        with self._lock:
            withdrawn = list(self._coming.values())
            self._coming.clear()
            self._recalled.update(self._offered)
        self._untouched(withdrawn)
        self.fetcher.drain()

    def report(self, message: FromWorker) -> None:
        """What the fetcher reports; held back where the handler is to be told first. Under the fetcher's lock."""
        match message:
            case FetcherStopped(partitions=partitions):
                at_once = [each for each in partitions if not self._told_first(each)]
                if at_once:
                    self._send(FetcherStopped(at_once))
            case Failed():
                if not self._told_first(message):
                    self._send(message)
            case _:
                self._send(message)

    def parked(self) -> list[Parked]:
        """Partitions that their handler did not take on, and why."""
        with self._lock:
            return [Parked(grant, "handler", each.why) for grant, each in self._coming.items() if each.why]

    def failures(self) -> dict[str, int]:
        """How often hooks raised since the last call, by their names."""
        with self._lock:
            failures, self._failures = self._failures, Counter()
            return dict(failures)

    # -- runner --------------------------------------------------------------------------------------------------------

    def attend(self, now: int) -> None:
        """Call what hooks are to be called. Between two chunks of records, or two turns; blocks as long as they do."""
        if not self.waiting:
            return
        self._see_off()
        if now >= self._again_at:
            self._take_on(now)
        with self._lock:
            self._again_at = min((each.again_at for each in self._coming.values()), default=0)
            self.waiting = bool(self._going or self._coming)

    def finish(self) -> None:
        """Everything is drained: the last hooks, the last reports."""
        self._see_off()

    def interrupt(self) -> None:
        """From a signal handler: a partition has to be given up now, so end the hook that is in its way."""
        if (handling := self._interruptible) is not None:
            self._interruptible = None
            handling.calls.interrupt(DrainDeadline())

    def _see_off(self) -> None:
        with self._lock:
            going, self._going = self._going, []
        for handling in self._handlings.every:
            for lost, name in ((False, "on_revoked"), (True, "on_lost")):
                if partitions := {g.tp: g.offset for g in going if g.handling is handling and g.lost is lost}:
                    self._tell_going(handling, name, partitions)
        if stopped := [each.report for each in going if isinstance(each.report, Stopped)]:
            self._send(FetcherStopped(stopped))
        for each in going:
            if isinstance(each.report, Failed):
                self._send(each.report)

    def _tell_going(self, handling: Handling[Any], name: str, partitions: Mapping[TopicPartition, int]) -> None:
        hook = getattr(handling.handler, name)
        try:
            try:
                self._interruptible = handling
                handling.calls.run(hook(partitions))
            finally:
                self._interruptible = None
        except BaseException as error:
            with self._lock:
                self._failures[name] += 1
            log.error(f"{handling.handler.entrypoint}: {name} for {_shown(partitions)} raised {describe(error)}")

    def _take_on(self, now: int) -> None:
        with self._lock:
            self._offered = {grant: each for grant, each in self._coming.items() if each.again_at <= now}
            for grant in self._offered:
                del self._coming[grant]
            due = list(self._offered.values())
        for handling in self._handlings.every:
            if coming := [each for each in due if self._handlings.of(each.start.topic) is handling]:
                self._offer(handling, coming)

    def _offer(self, handling: Handling[Any], coming: Sequence[Coming]) -> None:
        """Let the handler take these on, all of them or none."""
        try:
            starts = self._placed(handling, [each.start for each in coming])
            # One without an offset is refused by the fetcher, for a person to see.
            known = {TopicPartition(s.topic, s.partition): s.offset for s in starts if s.offset >= 0}
            if handling.handler.on_assigned is not None and known:
                self._hook = "on_assigned"
                handling.calls.run(handling.handler.on_assigned(known))
        except BaseException as error:
            self._put_off(handling, coming, error)
            return
        with self._lock:
            for start in starts:
                if start.offset < 0:
                    self._told.pop(start.grant, None)
        self.fetcher.start(starts)
        # Only now: a stop that comes while they are offered must find them in one place or the other.
        self.fetcher.stop(self._settled(coming))

    def _placed(self, handling: Handling[Any], starts: list[FetcherStart]) -> list[FetcherStart]:
        """The starts, at the offsets that the handler keeps, where it does; it is told the others."""
        load, store = handling.handler.load_offsets, handling.handler.store_offsets
        if load is None:
            return starts
        self._hook = "load_offsets"
        asked = [TopicPartition(s.topic, s.partition) for s in starts if not s.reset]
        kept = kept_offsets(handling.calls.run(load(asked)), asked) if asked else {}
        placed = [placed_at(start, kept.get(TopicPartition(start.topic, start.partition))) for start in starts]
        every = {TopicPartition(s.topic, s.partition): s.offset for s in placed if s.offset >= 0}
        chosen = {tp: offset for tp, offset in every.items() if tp not in kept}
        if store is not None and chosen:
            self._hook = "store_offsets"
            handling.calls.run(store(chosen))
        return placed

    def _put_off(self, handling: Handling[Any], coming: Sequence[Coming], error: BaseException) -> None:
        text = describe(error)
        recalled = self._settled(coming)
        with self._lock:
            self._failures[self._hook] += 1
            for each in coming:
                each.tries += 1
                each.again_at = now_ns() + min(_BACKOFF_NS << min(each.tries, 10), _BACKOFF_MAX_NS)
                each.why = f"{self._hook} raised {text}"[:_WHY_LENGTH]
                if each.start.grant not in recalled:
                    self._coming[each.start.grant] = each
        self._untouched([each for each in coming if each.start.grant in recalled])
        shown = _shown([each.tp for each in coming])
        log.error(
            f"{handling.handler.entrypoint}: {self._hook} for {shown} raised {text}\n"
            f"They are not fetched until it returns; it is called again."
        )

    def _settled(self, coming: Sequence[Coming]) -> set[int]:
        """Their handler has had its say; those that are to be let go of again."""
        grants = {each.start.grant for each in coming}
        with self._lock:
            for grant in grants:
                self._offered.pop(grant, None)
            recalled = grants & self._recalled
            self._recalled -= recalled
        return recalled

    # -- either --------------------------------------------------------------------------------------------------------

    def _told_first(self, report: Stopped | Failed) -> bool:
        """Whether the report waits, because the handler has a hook for that end."""
        with self._lock:
            handling, tp = self._told.pop(report.grant, (None, None))
            lost = report.grant in self._lost
            self._lost.discard(report.grant)
            if handling is None or tp is None:
                return False
            if (handling.handler.on_lost if lost else handling.handler.on_revoked) is None:
                return False
            self._going.append(Going(handling, tp, report.offset, lost, report))
            self._look_around()
            return True

    def _look_around(self) -> None:
        self._again_at = 0
        self.waiting = True
        self.fetcher.interrupt()

    def _untouched(self, coming: Sequence[Coming]) -> None:
        """Report those that no handler was told of."""
        if not coming:
            return
        with self._lock:
            for each in coming:
                self._told.pop(each.start.grant, None)
                self._lost.discard(each.start.grant)
        self._send(
            FetcherStopped([Stopped(each.start.grant, each.start.offset, each.start.leader_epoch) for each in coming])
        )


def _shown(partitions: Iterable[TopicPartition]) -> str:
    every = [str(tp) for tp in partitions]
    return " ".join(every[:10]) + (f" and {len(every) - 10} more" if len(every) > 10 else "")
