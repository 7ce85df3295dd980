"""A worker as far as its supervisor can tell: it fetches what it is granted, handles a record of each partition at a
time, or several, and lets go when it has none in hand; it may be stuck, or dead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from kunicorn.ipc import bitmap, clock
from kunicorn.ipc.ledger import CONSUMED
from kunicorn.ipc.messages import (
    Drain,
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    Ping,
    StartFetcher,
    StopFetcher,
    Stopped,
    ToWorker,
)
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.supervisor.partitions.assignment import Assignment
from tests.contract.supervisor.plan import Plan
from tests.contract.supervisor.truth import Log, Violation
from tests.fakes.played_workers import PlayedWorker


@dataclass
class Held:
    """One grant in its hands."""

    start: FetcherStart
    log: Log | None
    position: int
    opened: bool = False
    stop_asked: bool = False
    in_hand: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    """Beyond the position."""
    failed: bool = False
    """A record of it cannot be handled; the others in hand are finished."""

    def next(self, most: int) -> int | None:
        """The next record to begin, with so many in hand at most."""
        assert self.log is not None
        taken = self.in_hand | self.done
        found = next(offset for offset in range(self.position, self.position + len(taken) + 1) if offset not in taken)
        return found if len(self.in_hand) < most and found < self.log.end else None


Chance = Callable[[], bool]


def _never() -> bool:
    return False


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Habits:
    """What chance says of a worker's handler."""

    keeps: Chance
    """Whether it has a record in hand for longer."""
    fails: Chance = _never
    """Whether it cannot handle it."""
    reads: Chance = _always
    """Whether one that is busy gets to what it was told meanwhile."""


class Member(Protocol):
    """Whose worker it is."""

    plan: Plan

    @property
    def assignment(self) -> Assignment:
        """Is told what it lets go."""

    def certain(self) -> bool:
        """Whether it is a member beyond doubt."""

    def log(self, tp: TopicPartition) -> Log | None:
        """What a grant is good for that is given now."""

    def may_commit(self) -> bool:
        """Whether the group takes a transaction of it now."""


class StoryWorker(PlayedWorker):
    """Everything it does it does in `go_on`; there a busy one reads what it is told, too. It has several records of a
    partition in hand, and marks them, where the plan has it so; else one, in order."""

    def __init__(self, number: int, member: Member) -> None:
        super().__init__(number)
        self._member, self._assignment = member, member.assignment
        self._in_transactions, self._at_once = member.plan.in_transactions, member.plan.at_once
        self.held: dict[int, Held] = {}
        self._pipe: list[ToWorker] = []
        self._granted: dict[int, Held] = {}
        """What the pipe gives it."""
        self.stuck = self.killed = self.dead = False

    def certain(self) -> bool:
        """Whether its member is one beyond doubt: it may not be told yet that it was not."""
        return self._member.certain()

    @property
    def has_work(self) -> bool:
        """Whether it has grants, or may have been given some that it has not read of."""
        return bool(self.held or self._pipe)

    def send(self, message: ToWorker) -> None:
        self._pipe.append(message)
        if isinstance(message, StartFetcher):
            for start in message.partitions:
                log = self._member.log(TopicPartition(start.topic, start.partition))
                done = set(bitmap.read(start.offset, start.done))
                self._granted[start.grant] = Held(start, log, start.offset, done=done)
        if not self._member.plan.busy_percent:
            self._read()

    def _read(self) -> None:
        pipe, self._pipe = self._pipe, []
        for message in pipe:
            if isinstance(message, StartFetcher):
                for start in message.partitions:
                    self.held[start.grant] = self._granted.pop(start.grant)
            elif isinstance(message, Drain):
                self._stop(self.held)
            elif isinstance(message, StopFetcher):
                self._stop(message.grants)
            elif isinstance(message, Ping):
                self.answer(message.sequence)

    def _stop(self, grants: Iterable[int]) -> None:
        for grant in grants:
            if grant in self.held:
                self.held[grant].stop_asked = True

    def go_on(self, habits: Habits) -> None:
        """A moment of its life."""
        if self.stuck:
            return
        if self._pipe and habits.reads():
            self._read()
        for grant, held in list(self.held.items()):
            for offset in sorted(held.in_hand):
                if habits.fails():
                    self._cannot(held, offset)
                elif not habits.keeps():
                    self._finish(held, offset)
            if not held.in_hand:
                self._with_nothing_in_hand(grant, held)
            elif self._at_once is not None and not held.stop_asked and not held.failed:
                self._begin(held)

    def _with_nothing_in_hand(self, grant: int, held: Held) -> None:
        log = held.log
        if held.stop_asked:
            self._let_go(grant, held)
        elif log is None or log.gone:
            return
        elif held.failed:
            self._fail(grant, held, FailureKind.HANDLER)
        elif log.denied:
            self._fail(grant, held, FailureKind.DENIED)
        elif not log.begin <= held.position <= log.end:
            self._fail(grant, held, FailureKind.OUT_OF_RANGE)
        else:
            self._begin(held)

    def die(self) -> None:
        """Caller: the story, before the supervisor is told."""
        self.dead = True
        for held in self.held.values():
            if held.log is not None:
                held.log.drop(self)
        self.held.clear()
        self._pipe.clear()

    def stray(self) -> None:
        """Its member has lost what it had: another may handle it."""
        for held in self.held.values():
            if held.log is not None:
                held.log.stray(self)

    def _begin(self, held: Held) -> None:
        log = held.log
        assert log is not None
        if not held.opened:
            held.opened = True
            if self._at_once is not None:
                self.ledger.use_marks(held.start.slot)
                self.ledger.done(held.start.slot).clear()
                self.ledger.in_hand(held.start.slot).clear()
            self.consume(held.start, held.position)
            self._move_on(held, held.done)
        elif (offset := held.next(self._at_once or 1)) is not None and offset >= log.begin and self._has_lease():
            if self._lost_meanwhile(held.start.grant) and not log.gone:
                raise Violation(f"invariant 4: {log.tp}@{offset} is begun by a worker that has not read of its loss")
            log.begin_record(self, offset)
            held.in_hand.add(offset)
            if self._at_once is not None:
                self.ledger.in_hand(held.start.slot).mark(offset)
            self._tell(held)

    def _has_lease(self) -> bool:
        return clock.now_ns() < self.ledger.lease_ns

    def _lost_meanwhile(self, grant: int) -> bool:
        unread = (message for message in self._pipe if isinstance(message, StopFetcher))
        return any(stop.lost and grant in stop.grants for stop in unread)

    def _finish(self, held: Held, offset: int) -> None:
        log = held.log
        assert log is not None
        if self._in_transactions and not self._member.may_commit():
            return  # It cannot be committed yet.
        log.finish_record(self, offset)
        held.in_hand.remove(offset)
        if self._at_once is not None:
            self.ledger.done(held.start.slot).mark(offset)
            self.ledger.in_hand(held.start.slot).unmark(offset)
        held.done.add(offset)
        self._move_on(held, held.done)
        if self._in_transactions and not log.gone:
            log.commit(held.position, log.metadata)

    def _cannot(self, held: Held, offset: int) -> None:
        """Its handler raises over that record for the last time."""
        assert held.log is not None
        held.log.let(self, offset)
        held.in_hand.remove(offset)
        held.failed = True
        if self._at_once is not None:
            self.ledger.in_hand(held.start.slot).unmark(offset)
        self._tell(held)

    def _move_on(self, held: Held, done: set[int]) -> None:
        before = held.position
        while held.position in done:
            done.remove(held.position)
            held.position += 1
        self._tell(held)
        if self._at_once is not None:
            for offset in range(before, held.position):
                self.ledger.done(held.start.slot).unmark(offset)

    def _tell(self, held: Held) -> None:
        first = min(held.in_hand, default=held.position)
        self.consume(held.start, first, in_hand=len(held.in_hand), end=max(held.in_hand, default=first) + 1)
        self.ledger.cells[self.ledger.index(held.start.slot) + CONSUMED] = held.position

    def _let_go(self, grant: int, held: Held) -> None:
        del self.held[grant]
        offset = held.position if held.opened else NO_OFFSET
        self._assignment.worker_stopped(self, FetcherStopped([Stopped(grant, offset, 1, _written(held))]))

    def _fail(self, grant: int, held: Held, kind: FailureKind) -> None:
        del self.held[grant]
        failed = Failed(grant, kind, held.position, 1, "as the story has it", _written(held))
        self._assignment.worker_failed(self, failed)


def _written(held: Held) -> str:
    return bitmap.written(held.position, held.done) if held.opened else ""
