"""The handler's hooks, called in the runner's thread as partitions come and go. `Hooks` stands between the pipe and
the table of partitions, `Revocations` between the table and the pipe; `Assigning` and `Revoking` are partitions on
their way through them.

1. A partition is fetched only after its handler's `load_offsets` (where it has one) and `on_assigned` have returned;
   one that raises has it wait and is called again, while the other partitions go on.
2. That a partition is let go of is reported only after `on_revoked` or `on_lost` has returned or raised: then nobody
   else has it yet. What they raise is logged and counted, and changes no offset: that of a record whose handler
   returned may have been committed long ago.
3. Partitions of handlers without such hooks go straight through, as if nothing was here.

`stored_offsets` checks the offsets that a handler keeps beside its effects (`load_offsets`). Pure.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from kunicorn.backoff import Backoff
from kunicorn.handler.load import DrainDeadline
from kunicorn.handler.registry import HandlerRegistry, Handling
from kunicorn.handler.retry import describe
from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.messages import Failed, FetcherStart, FetcherStopped, FromWorker, Parked, Stopped
from kunicorn.observe import catalogue as c
from kunicorn.positions import NO_EPOCH, TopicPartition
from kunicorn.worker.progress import Interrupts
from kunicorn.worker.stats import Counters

_HIGHEST_OFFSET = 2**63 - 1


def stored_offsets(returned: Any, asked: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Offsets that `load_offsets` returned for the partitions it was asked for. Raises `TypeError` or `ValueError`."""
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
        if offset > _HIGHEST_OFFSET:
            raise ValueError(f"load_offsets gave {tp} an offset beyond {_HIGHEST_OFFSET}, the highest that there is")
        kept[tp] = offset
    return kept


def started_at(start: FetcherStart, offset: int | None) -> FetcherStart:
    """The start, at the stored offset if there is one."""
    if offset is None or offset == start.offset:
        return start
    # The epoch belongs to the other offset, and so does what is told by its distance from there.
    done = bitmap.written(offset, bitmap.read(start.offset, start.done))
    return msgspec.structs.replace(start, offset=offset, leader_epoch=NO_EPOCH, done=done)


@dataclass(slots=True)
class Assigning:
    """Partition whose handler has not taken it on yet."""

    start: FetcherStart
    again_at: int = 0
    tries: int = 0
    why: str = ""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.start.topic, self.start.partition)


@dataclass(frozen=True, slots=True)
class Revoking:
    """Report that waits for the handler's hook."""

    handling: Handling[Any]
    tp: TopicPartition
    offset: int
    lost: bool
    report: Stopped | Failed


log = logging.getLogger("kunicorn.worker")

_BACKOFF = Backoff(first_seconds=0.2, longest_seconds=10.0, jitter=0.0)
_WHY_LENGTH = 300


class Fetching(Protocol):
    """The table of partitions, as hooks see it."""

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Open these grants."""

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        """Stop these grants; `lost`: the partitions may be another member's by now."""

    def drain(self) -> None:
        """Stop everything."""


@dataclass(frozen=True, slots=True, eq=False)
class Hook:
    """One call of a hook."""

    handling: Handling[Any]
    """Whose it is."""


class HookCall:
    """The hook that runs at this moment, if one does. Caller: the runner, but for `interrupt`."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._interruptible: Hook | None = None
        self._overdue: Hook | None = None
        """The one that `interrupt` met."""

    def run(self, handling: Handling[Any], hook: Callable[[Any], Any], argument: Any) -> Any:
        """What the handler's hook returns. Raises what it raises, and what interrupts it. `DrainDeadline` may come out
        of the `finally`, too: the caller's `try` holds whatever the signal hits."""
        try:
            self._interruptible = Hook(handling)
            return handling.calls.run(hook(argument))
        finally:
            self._interruptible = None

    def interrupt(self) -> None:
        """Have it interrupted, for a partition that has to be given up now and waits for it. Caller: any thread."""
        if (hook := self._interruptible) is not None:
            self._overdue = hook
            signal.pthread_kill(self._thread, signal.SIGUSR1)

    def on_signal(self) -> None:
        """Interrupt it, if it is the one that was meant. Caller: the signal handler."""
        if (hook := self._interruptible) is not None and hook is self._overdue:
            self._interruptible = None
            hook.handling.calls.interrupt_hook(DrainDeadline())


class Revocations:
    """Calls of `on_revoked` and `on_lost`, and the table's reports, which wait for them."""

    def __init__(
        self,
        handlings: HandlerRegistry[Any],
        send: Callable[[FromWorker], None],
        interrupts: Interrupts,
        counters: Counters,
    ) -> None:
        """`send` sends one message to the supervisor."""
        self.waiting = False
        """Hooks are to be called by `call_hooks`."""
        self._handlings = handlings
        self._send = send
        self._interrupts = interrupts
        self._counters = counters
        self._lock = threading.Lock()
        """Never held while a handler is called: the table reports under a lock of its own."""
        self._expecting: dict[int, tuple[Handling[Any], TopicPartition]] = {}
        """Grants whose handler wants to know of their end."""
        self._lost: set[int] = set()
        self._overdue: set[int] = set()
        """Those of the former whose drain budget is over."""
        self._held: set[int] = set()
        """Grants whose reports wait for hooks."""
        self._revoking: list[Revoking] = []
        self.call = HookCall()
        """Of any hook, also of those that `Hooks` calls: one runs at a time."""

    # -- control thread ----------------------------------------------------------------------------------------------

    def expect(self, start: FetcherStart) -> None:
        """Note that the partition's handler is to be told of its end, if it has a hook for that."""
        handling = self._handlings.of(start.topic)
        if handling.handler.on_revoked is not None or handling.handler.on_lost is not None:
            with self._lock:
                self._expecting[start.grant] = handling, TopicPartition(start.topic, start.partition)

    def lose(self, grants: Iterable[int]) -> None:
        """Note that these grants are lost: `on_lost` is called at their end."""
        with self._lock:
            self._lost.update(grants)

    def forget(self, grants: Iterable[int]) -> None:
        """Drop grants of which the handler was never told: it is not told of their end."""
        with self._lock:
            for grant in grants:
                self._expecting.pop(grant, None)
                self._lost.discard(grant)
                self._overdue.discard(grant)

    def end_drain(self, grants: Collection[int] | None, *, offered: bool) -> None:
        """Have the hook interrupted that one of these grants waits for; likewise where one comes to wait for it later.
        `offered`: their handler is being told of some at this moment."""
        with self._lock:
            self._overdue.update(self._expecting if grants is None else self._expecting.keys() & grants)
            waits = offered or bool(self._held if grants is None else self._held & set(grants))
        if waits:
            self.call.interrupt()

    def report_untold(self, starts: Iterable[FetcherStart]) -> None:
        """Report these grants as stopped, of which no handler was told."""
        if stopped := [Stopped(start.grant, start.offset, start.leader_epoch) for start in starts]:
            self.forget(each.grant for each in stopped)
            self._send(FetcherStopped(stopped))

    # -- the table, under its lock -----------------------------------------------------------------------------------

    def report(self, message: FromWorker) -> None:
        """Send the table's report; held back where the handler is to be told first."""
        match message:
            case FetcherStopped(partitions=partitions):
                at_once = [each for each in partitions if not self._held_back(each)]
                if at_once:
                    self._send(FetcherStopped(at_once))
            case Failed():
                if not self._held_back(message):
                    self._send(message)
            case _:
                self._send(message)

    # -- runner ------------------------------------------------------------------------------------------------------

    def call_hooks(self) -> None:
        """Call the hooks that are due, then send the reports that waited for them."""
        with self._lock:
            revoking, self._revoking, self.waiting = self._revoking, [], False
        for handling in self._handlings.every:
            for lost, name in ((False, "on_revoked"), (True, "on_lost")):
                if partitions := {g.tp: g.offset for g in revoking if g.handling is handling and g.lost is lost}:
                    self._call(handling, name, partitions)
        if stopped := [each.report for each in revoking if isinstance(each.report, Stopped)]:
            self._send(FetcherStopped(stopped))
        for each in revoking:
            if isinstance(each.report, Failed):
                self._send(each.report)
        with self._lock:
            self._held.difference_update(each.report.grant for each in revoking)

    def _call(self, handling: Handling[Any], name: str, partitions: Mapping[TopicPartition, int]) -> None:
        hook = getattr(handling.handler, name)
        try:
            self.call.run(handling, hook, partitions)
        except BaseException as error:
            self._counters.count(c.HOOK_FAILURES, 1, name)
            log.error(f"{handling.handler.entrypoint}: {name} for {_shown(partitions)} raised {describe(error)}")

    def _held_back(self, report: Stopped | Failed) -> bool:
        """Whether the report waits for a hook of the handler."""
        with self._lock:
            handling, tp = self._expecting.pop(report.grant, (None, None))
            lost = report.grant in self._lost
            self._lost.discard(report.grant)
            overdue = report.grant in self._overdue
            self._overdue.discard(report.grant)
            if handling is None or tp is None:
                return False
            if (handling.handler.on_lost if lost else handling.handler.on_revoked) is None:
                return False
            self._revoking.append(Revoking(handling, tp, report.offset, lost, report))
            self._held.add(report.grant)
            self.waiting = True
            self._interrupts.request()
            if overdue:
                self.call.interrupt()  # What is in its way would be aborted a moment later, with the worker.
            return True


class Hooks:
    """Calls of `load_offsets` and `on_assigned`: partitions go on to the table once their handler has taken them on."""

    def __init__(
        self,
        handlings: HandlerRegistry[Any],
        revocations: Revocations,
        table: Fetching,
        interrupts: Interrupts,
        counters: Counters,
    ) -> None:
        self._handlings = handlings
        self._revocations = revocations
        self._table = table
        self._interrupts = interrupts
        self._counters = counters
        self._lock = threading.Lock()
        """Never held while the table or a handler is called: the table reports under a lock of its own."""
        self._assigning: dict[int, Assigning] = {}
        """By grant: to be offered to their handlers."""
        self._called: dict[int, Assigning] = {}
        """Their handler is being told of them at this moment."""
        self._recalled: set[int] = set()
        """Those of them that are to be let go of again."""
        self._again_at = 0
        self._hook = ""
        """The one that was called last."""

    @property
    def waiting(self) -> bool:
        """Whether `call_due` has something to do. The runner's test between two chunks of records."""
        return bool(self._assigning) or self._revocations.waiting

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[FetcherStart]) -> None:
        """Have these partitions fetched as soon as their handlers have taken them on."""
        at_once, assigning = [], {}
        for start in starts:
            self._revocations.expect(start)
            handler = self._handlings.of(start.topic).handler
            if handler.on_assigned is None and not handler.keeps_offsets:
                at_once.append(start)
            else:
                assigning[start.grant] = Assigning(start)
        if assigning:
            with self._lock:
                self._assigning |= assigning
                self._again_at = 0
            self._interrupts.request()
        if at_once:
            self._table.start(at_once)

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        """Stop these grants; `lost`: the partitions may be another member's by now."""
        numbers = list(numbers)
        if lost:
            self._revocations.lose(numbers)
        with self._lock:
            withdrawn = [each for number in numbers if (each := self._assigning.pop(number, None)) is not None]
            self._recalled.update(number for number in numbers if number in self._called)
        self._revocations.report_untold(each.start for each in withdrawn)
        self._table.stop(numbers, lost=lost)

    def drain(self) -> None:
        """Stop everything."""
        with self._lock:
            withdrawn = list(self._assigning.values())
            self._assigning.clear()
            self._recalled.update(self._called)
        self._revocations.report_untold(each.start for each in withdrawn)
        self._table.drain()

    def end_drain(self, grants: Collection[int] | None) -> None:
        """Have the hook interrupted that one of these grants waits for, whose drain budget is over; None: of all."""
        with self._lock:
            offered = bool(self._called if grants is None else self._called.keys() & grants)
        self._revocations.end_drain(grants, offered=offered)

    def parked(self) -> list[Parked]:
        """Partitions that their handler did not take on, and why."""
        with self._lock:
            return [Parked(grant, "handler", each.why) for grant, each in self._assigning.items() if each.why]

    # -- runner --------------------------------------------------------------------------------------------------------

    def call_due(self, now: int) -> None:
        """Call the hooks that are due. Between two chunks of records, or two turns; blocks as long as they do."""
        if not self.waiting:
            return
        self._revocations.call_hooks()
        if now >= self._again_at:
            self._assign_due(now)
        with self._lock:
            self._again_at = min((each.again_at for each in self._assigning.values()), default=0)

    def finish(self) -> None:
        """Call the last hooks and send the last reports. Caller: the runner, when everything is drained."""
        self._revocations.call_hooks()

    def on_signal(self) -> None:
        """See `HookCall`. Raises what interrupts."""
        self._revocations.call.on_signal()

    def _assign_due(self, now: int) -> None:
        with self._lock:
            self._called = {grant: each for grant, each in self._assigning.items() if each.again_at <= now}
            for grant in self._called:
                del self._assigning[grant]
            due = list(self._called.values())
        for handling in self._handlings.every:
            if assigning := [each for each in due if self._handlings.of(each.start.topic) is handling]:
                self._call_assigned(handling, assigning)

    def _call_assigned(self, handling: Handling[Any], assigning: Sequence[Assigning]) -> None:
        """Call the handler's hooks with these partitions: it takes on all of them or none."""
        try:
            starts = self._with_stored_offsets(handling, [each.start for each in assigning])
            # One without an offset is refused by the table, for a person to see.
            known = {TopicPartition(s.topic, s.partition): s.offset for s in starts if s.offset >= 0}
            if handling.handler.on_assigned is not None and known:
                self._hook = "on_assigned"
                self._revocations.call.run(handling, handling.handler.on_assigned, known)
        except BaseException as error:
            self._retry_later(handling, assigning, error)
            return
        self._revocations.forget(start.grant for start in starts if start.offset < 0)
        self._table.start(starts)
        # Only now: a stop that comes while they are offered must find them in one place or the other.
        self._table.stop(self._end_call(assigning))

    def _with_stored_offsets(self, handling: Handling[Any], starts: list[FetcherStart]) -> list[FetcherStart]:
        """The starts, at the offsets that the handler has stored, where it has; it is told the others."""
        load, store = handling.handler.load_offsets, handling.handler.store_offsets
        if load is None:
            return starts
        self._hook = "load_offsets"
        asked = [TopicPartition(s.topic, s.partition) for s in starts if not s.reset]
        kept = stored_offsets(self._revocations.call.run(handling, load, asked), asked) if asked else {}
        placed = [started_at(start, kept.get(TopicPartition(start.topic, start.partition))) for start in starts]
        every = {TopicPartition(s.topic, s.partition): s.offset for s in placed if s.offset >= 0}
        chosen = {tp: offset for tp, offset in every.items() if tp not in kept}
        if store is not None and chosen:
            self._hook = "store_offsets"
            self._revocations.call.run(handling, store, chosen)
        return placed

    def _retry_later(self, handling: Handling[Any], assigning: Sequence[Assigning], error: BaseException) -> None:
        text = describe(error)
        self._counters.count(c.HOOK_FAILURES, 1, self._hook)
        with self._lock:
            # Under one lock: a stop that came in between would find them in neither place, and be lost.
            recalled = self._taken_out(assigning)
            for each in assigning:
                each.tries += 1
                each.again_at = now_ns() + round(_BACKOFF.seconds(each.tries) * NANOSECONDS)
                each.why = f"{self._hook} raised {text}"[:_WHY_LENGTH]
                if each.start.grant not in recalled:
                    self._assigning[each.start.grant] = each
        self._revocations.report_untold(each.start for each in assigning if each.start.grant in recalled)
        shown = _shown([each.tp for each in assigning])
        log.error(
            f"{handling.handler.entrypoint}: {self._hook} for {shown} raised {text}\n"
            f"They are not fetched until it returns; it is called again."
        )

    def _end_call(self, assigning: Sequence[Assigning]) -> set[int]:
        """Take these out of the call; the grants that were stopped meanwhile."""
        with self._lock:
            return self._taken_out(assigning)

    def _taken_out(self, assigning: Sequence[Assigning]) -> set[int]:
        """See `_end_call`. Locked by the caller."""
        grants = {each.start.grant for each in assigning}
        for grant in grants:
            self._called.pop(grant, None)
        recalled = grants & self._recalled
        self._recalled -= recalled
        return recalled


def _shown(partitions: Iterable[TopicPartition]) -> str:
    every = [str(tp) for tp in partitions]
    return " ".join(every[:10]) + (f" and {len(every) - 10} more" if len(every) > 10 else "")
