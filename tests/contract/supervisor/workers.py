"""A worker as far as its supervisor can tell: it fetches what it is granted, handles a record at a time, and lets go
when it has none in hand; it may be stuck, or dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kunicorn.ipc.messages import (
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


class StoryWorker(PlayedWorker):
    """Everything it does it does in `go_on`."""

    def __init__(
        self,
        number: int,
        assignment: Assignment,
        log_of: Callable[[TopicPartition], Log | None],
        certain: Callable[[], bool],
        may_commit: Callable[[], bool] | None,
    ) -> None:
        """`may_commit`: whether the group takes a transaction of this member now; None: the supervisor commits."""
        super().__init__(number)
        self._assignment, self._log_of, self.certain, self._may_commit = assignment, log_of, certain, may_commit
        self.held: dict[int, Held] = {}
        self.stuck = self.killed = False

    def send(self, message: ToWorker) -> None:
        if isinstance(message, StartFetcher):
            for start in message.partitions:
                log = self._log_of(TopicPartition(start.topic, start.partition))
                self.held[start.grant] = Held(start, log, start.offset)
        elif isinstance(message, StopFetcher):
            for grant in message.grants:
                if grant in self.held:
                    self.held[grant].stop_asked = True

    def go_on(self, keeps: Callable[[], bool]) -> None:
        """A moment of its life. `keeps`: whether it has the record in hand for longer."""
        if self.stuck:
            return
        for grant, held in list(self.held.items()):
            if held.log is not None and self in held.log.in_hand and (keeps() or not self._finish(held)):
                continue
            if held.stop_asked:
                self._let_go(grant, held)
            elif held.log is None or held.log.gone:
                continue
            elif held.log.denied:
                self._fail(grant, held, FailureKind.DENIED)
            elif not held.log.begin <= held.position <= held.log.end:
                self._fail(grant, held, FailureKind.OUT_OF_RANGE)
            else:
                self._begin(held, held.log)

    def die(self) -> None:
        """Caller: the story, before the supervisor is told."""
        for held in self.held.values():
            if held.log is not None:
                held.log.drop(self)
        self.held.clear()

    def stray(self) -> None:
        """Its member has lost what it had: another may handle it."""
        for held in self.held.values():
            if held.log is not None:
                held.log.stray(self)

    def _begin(self, held: Held, log: Log) -> None:
        if not held.opened:
            held.opened = True
            self.consume(held.start, held.position)
        elif held.position < log.end and self.certain():
            log.begin_record(self, held.position)
            self.consume(held.start, held.position, in_hand=1)

    def _finish(self, held: Held) -> bool:
        """False: it cannot be committed yet."""
        log = held.log
        assert log is not None
        if self._may_commit is not None and not self._may_commit():
            return False
        log.finish_record(self)
        held.position += 1
        if self._may_commit is not None and not log.gone:
            log.commit(held.position, log.metadata)
        self.consume(held.start, held.position)
        return True

    def _let_go(self, grant: int, held: Held) -> None:
        del self.held[grant]
        offset = held.position if held.opened else NO_OFFSET
        self._assignment.worker_stopped(self, FetcherStopped([Stopped(grant, offset, 1)]))

    def _fail(self, grant: int, held: Held, kind: FailureKind) -> None:
        del self.held[grant]
        self._assignment.worker_failed(self, Failed(grant, kind, held.position, 1, "as the brokers say"))
