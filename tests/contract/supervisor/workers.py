"""A worker as far as its supervisor can tell: it fetches what it is granted, handles a record of each partition at a
time, or several, and lets go when it has none in hand; it may be stuck, or dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kunicorn.ipc import bitmap
from kunicorn.ipc.ledger import CONSUMED
from kunicorn.ipc.messages import (
    Drain,
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    StartFetcher,
    StopFetcher,
    Stopped,
    ToWorker,
)
from kunicorn.positions import NO_OFFSET, TopicPartition
from kunicorn.supervisor.partitions.assignment import Assignment
from tests.contract.supervisor.truth import Log
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


@dataclass(frozen=True, slots=True)
class Habits:
    """What chance says of a worker's handler."""

    keeps: Chance
    """Whether it has a record in hand for longer."""
    fails: Chance = _never
    """Whether it cannot handle it."""


class StoryWorker(PlayedWorker):
    """Everything it does it does in `go_on`."""

    def __init__(
        self,
        number: int,
        assignment: Assignment,
        log_of: Callable[[TopicPartition], Log | None],
        certain: Callable[[], bool],
        may_commit: Callable[[], bool] | None,
        at_once: int | None = None,
    ) -> None:
        """`may_commit`: whether the group takes a transaction of this member now; None: the supervisor commits.
        `at_once`: it has so many records of a partition in hand, and marks them; None: it has one, in order."""
        super().__init__(number)
        self._assignment, self._log_of, self.certain, self._may_commit = assignment, log_of, certain, may_commit
        self._at_once = at_once
        self.held: dict[int, Held] = {}
        self.stuck = self.killed = self.dead = False

    def send(self, message: ToWorker) -> None:
        if isinstance(message, StartFetcher):
            for start in message.partitions:
                log = self._log_of(TopicPartition(start.topic, start.partition))
                done = bitmap.read(start.offset, start.done)
                self.held[start.grant] = Held(start, log, start.offset, done=set(done))
        elif isinstance(message, Drain):
            for held in self.held.values():
                held.stop_asked = True
        elif isinstance(message, StopFetcher):
            for grant in message.grants:
                if grant in self.held:
                    self.held[grant].stop_asked = True

    def go_on(self, habits: Habits) -> None:
        """A moment of its life."""
        if self.stuck:
            return
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
        elif self.certain() and (offset := held.next(self._at_once or 1)) is not None and offset >= log.begin:
            log.begin_record(self, offset)
            held.in_hand.add(offset)
            if self._at_once is not None:
                self.ledger.in_hand(held.start.slot).mark(offset)
            self._tell(held)

    def _finish(self, held: Held, offset: int) -> None:
        log = held.log
        assert log is not None
        if self._may_commit is not None and not self._may_commit():
            return  # It cannot be committed yet.
        log.finish_record(self, offset)
        held.in_hand.remove(offset)
        if self._at_once is not None:
            self.ledger.done(held.start.slot).mark(offset)
            self.ledger.in_hand(held.start.slot).unmark(offset)
        held.done.add(offset)
        self._move_on(held, held.done)
        if self._may_commit is not None and not log.gone:
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
