"""What a test has happen while a record is in hand: a revoke, a lost session, a kill, a call that takes too long. Said
to the worker as its supervisor would say it.

`Staging` is within the handler's call and around it: a record whose handler has returned is still in hand while the
middlewares around it end, so a kill comes behind them. `TimeOuts` looks at the ledger, as a supervisor does: decoders,
filters and middlewares take their part of `handler_timeout_ms`.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar

from kunicorn.handler.load import Handler
from kunicorn.handler.middleware import Call, Hooked
from kunicorn.handler.record import Record
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Drain, DrainOver, StopFetcher, TimedOut
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.testing.memory import GivenRecord, refuse_fractions
from kunicorn.worker.control import Said


@dataclass(frozen=True, slots=True)
class Revoke:
    """The record's partition is taken away, in order: drained, committed, given to another member."""

    named: ClassVar = "the revoke"
    at: int
    """Index of the record among those given."""
    drain_timeout_ms: int | None = None
    """After so long (real time) the handler is interrupted by `DrainDeadline`; None: it may take its time."""


@dataclass(frozen=True, slots=True)
class LoseSession:
    """The member was fenced: its lease is over, other members have its partitions, nothing is committed."""

    named: ClassVar = "the loss of the session"
    at: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the worker when its handler is through with the record, and its offset does not count yet."""

    named: ClassVar = "the kill"
    at: int


Stage = Revoke | LoseSession | Kill


def stage_of(
    count: int, revoke_at: int | None, drain_timeout_ms: int | None, lose_session_at: int | None, kill_at: int | None
) -> Stage | None:
    """Stage that the arguments of `HandlerTest.run` ask for; None without any. Raises `ValueError`, and `TypeError` for
    a number that is none: inside the call it would pass for a failure of the handler.
    """
    refuse_fractions(
        revoke_at=revoke_at, drain_timeout_ms=drain_timeout_ms, lose_session_at=lose_session_at, kill_at=kill_at
    )
    if drain_timeout_ms is not None and drain_timeout_ms < 0:
        raise ValueError(f"drain_timeout_ms {drain_timeout_ms}: no time is shorter than 0")
    found: list[Stage] = []
    if revoke_at is not None:
        found.append(Revoke(revoke_at, drain_timeout_ms))
    elif drain_timeout_ms is not None:
        raise ValueError("drain_timeout_ms belongs to revoke_at: say at which record the partition is taken away")
    if lose_session_at is not None:
        found.append(LoseSession(lose_session_at))
    if kill_at is not None:
        found.append(Kill(kill_at))
    if len(found) > 1:
        raise ValueError("a run has one of revoke_at, lose_session_at and kill_at: what comes after one is another run")
    if found and not 0 <= found[0].at < count:
        raise ValueError(f"there is no record {found[0].at}: {count} are given, counted from 0")
    return found[0] if found else None


class HandedOut:
    """The partitions of the records that are given, each handed out to the worker under a grant, and its ledger."""

    def __init__(self, records: Sequence[GivenRecord]) -> None:
        self.starts = {each.tp: each.at for each in reversed(records)}
        self.grants = {tp: number for number, tp in enumerate(self.starts, 1)}
        """By partition: number of its grant, which is that of its slot, too."""
        self.ledger = Ledger.create(len(self.starts) + 1)
        self.ledger.lease_ns = FOR_EVER
        self._records = records
        self._places = {(each.tp, each.at): index for index, each in enumerate(records)}

    def indices(self, records: Iterable[Record]) -> list[int]:
        """Indices of these records among those that are given."""
        return [self._places[TopicPartition(each.topic, each.partition), each.offset] for each in records]

    def grant_of(self, index: int) -> int:
        """Number of the grant under which the record with that index is handed out."""
        return self.grants[self._records[index].tp]

    def in_hand(self, tp: TopicPartition) -> int:
        """First unfinished offset of the partition that its handler may have seen; `NO_OFFSET` with nothing in hand."""
        number = self.grants[tp]
        return self.ledger.read(number, number).in_hand


FOR_EVER = 2**63 - 1


class Staging:
    """Plays the stage when the handler has its record. Caller: the runner's thread, which is the test's."""

    def __init__(
        self,
        stage: Stage | None,
        handed_out: HandedOut,
        begun: Callable[[Sequence[int]], None],
        called: Callable[[Sequence[int]], None],
        say: Callable[[Said], None],
    ) -> None:
        """`begun` is told of every call, `called` of those that come to the handler through its middlewares; `say` says
        to the worker what a supervisor would.
        """
        self.needs_signals = isinstance(stage, Revoke)
        self.unplayed = stage
        """The stage, until the handler has its record."""
        self._handed_out = handed_out
        self._begun = begun
        self._called = called
        self._say = say
        self._in_hand: list[int] = []
        """Indices of the records that the call under way is about."""
        self._kills = False
        """The worker is killed when the call under way is over."""
        self._deadline: threading.Timer | None = None

    def around(self, handler: Handler) -> Handler:
        """The handler, with its middlewares: with the stage in its calls, and around all of it."""
        call = handler.call

        @wraps(call)  # Its annotations say what it is to be called with.
        def staged(*arguments: Any) -> Any:
            self._play()
            return call(*arguments)

        return replace(handler, call=staged, middlewares=[Hooked(self._within, None, None), *handler.middlewares])

    @contextmanager
    def _within(self, call: Call) -> Iterator[None]:
        """Outermost context of a call."""
        self._in_hand = self._handed_out.indices(call.records)
        self._begun(self._in_hand)
        try:
            yield
        finally:
            if self._kills:
                # The worst of moments: the record's effects are there, those of its middlewares, too, and its offset
                # does not count yet. As the kernel's out-of-memory killer does: nothing more of this process runs.
                os.kill(os.getpid(), signal.SIGKILL)

    def _play(self) -> None:
        self._called(self._in_hand)
        stage = self.unplayed
        if stage is None or stage.at not in self._in_hand:
            return
        self.unplayed = None
        match stage:
            case Kill():
                self._kills = True
            case LoseSession():
                self._say(StopFetcher(list(self._handed_out.grants.values()), None, lost=True))
                self._say(Drain(0.0))
            case Revoke(at=at, drain_timeout_ms=limit):
                grant = self._handed_out.grant_of(at)
                self._say(StopFetcher([grant], None))
                if limit is not None:
                    self._begin_deadline(grant, limit)

    def _begin_deadline(self, grant: int, milliseconds: int) -> None:
        self._deadline = threading.Timer(milliseconds / 1000, lambda: self._say(DrainOver([grant])))
        self._deadline.daemon = True
        self._deadline.start()

    @contextmanager
    def deadline_ended(self) -> Iterator[None]:
        """End the drain's deadline behind the worker's life, not before: a hook that the partition waits for meets it,
        too. For one that is handed over it means nothing.
        """
        try:
            yield
        finally:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline.join()


_LOOKS = 20
"""So often a record is looked at while it may take its time."""
_SHORTEST_LOOK, _LONGEST_LOOK = 0.001, 0.05
"""Seconds."""


class TimeOuts:
    """Tells the worker of records that are in hand for longer than their handler's `handler_timeout_ms`, by a thread of
    its own. Real time: the worker's clock stands still while it works.
    """

    def __init__(
        self, handed_out: HandedOut, limit_ms: Callable[[str], int | None], say: Callable[[Said], None]
    ) -> None:
        """`limit_ms`: of a topic's handler."""
        limits = {tp: limit_ms(tp.topic) for tp in handed_out.starts}
        self._limits = {tp: limit / 1000 for tp, limit in limits.items() if limit is not None}
        self._handed_out = handed_out
        self._say = say
        self._seen: dict[TopicPartition, tuple[tuple[int, int], float]] = {}
        """By partition: what was in hand in which call, and when it was due."""
        self._over = threading.Event()

    @property
    def needs_signals(self) -> bool:
        """Whether any call may be interrupted."""
        return bool(self._limits)

    @contextmanager
    def watching(self, progress: Callable[[], int]) -> Iterator[None]:
        """Watch. `progress`: a number that grows with each turn of the worker, and each call."""
        if not self._limits:
            yield
            return
        watch = threading.Thread(target=self._watch, args=(progress,), name="handler time-outs", daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()

    def _watch(self, progress: Callable[[], int]) -> None:
        pause = min(max(min(self._limits.values()) / _LOOKS, _SHORTEST_LOOK), _LONGEST_LOOK)
        while not self._over.wait(pause):
            self._look(progress(), time.monotonic())

    def _look(self, progress: int, now: float) -> None:
        for tp, limit in self._limits.items():
            held = progress, self._handed_out.in_hand(tp)
            seen, due = self._seen.get(tp, (None, 0.0))
            if seen != held:
                self._seen[tp] = held, now + limit
            elif held[1] != NO_OFFSET and now >= due:
                self._seen[tp] = held, math.inf
                self._say(TimedOut(self._handed_out.grants[tp], held[1]))
                return  # One at a time: a second signal must not meet what deals with the first.
