"""The worker's consumer and its table of open grants, shared by the control thread and the runner.

1. Only the runner calls the client. confluent-kafka lets one thread at a time into a consumer, and whoever comes second
   sleeps and looks again: beside a runner that waits in `poll`, a control thread would hardly ever get in.
2. So the control thread changes the table, and that takes effect at once: a record is handled only after `take` found
   its grant fetching. The client follows at the next turn. A stopped partition may be fetched until then, in vain.
3. A *turn* is one batch: from before the client is asked until the last record is handled or dropped. Partitions are
   assigned and unassigned only between turns, so a batch never holds records from before a grant that is fetching.
4. Reports are sent under the lock: what is said is in the order in which it happened.
5. The consumed offset follows librdkafka's position only between turns, when all it has given out is handled, and only
   once it moved under this grant: the position survives an unassign for a while (`rktp_app_pos` is reset by the
   broker's thread), and an assignment further back would then skip records.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handling.reasons import Reason
from kunicorn.handling.retry import End
from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.pipes.ledger import CONSUMED, HAND_COUNT, HAND_OFFSET, HAND_SINCE, LEADER_EPOCH, TIMESTAMP, Ledger
from kunicorn.pipes.messages import (
    Deltas,
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    InHand,
    Parked,
)
from kunicorn.topics import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Position, TopicPartition
from kunicorn.worker.faults import no_start, refused
from kunicorn.worker.grants import Attempt, Grant, GrantState
from kunicorn.worker.metadata import KnownTopics
from kunicorn.worker.meter import Meter

_ADVANCE_NS = NANOSECONDS
"""How often positions are asked for: transaction markers and compacted gaps count as lag until then."""
_PARKED_TOLD = 50
_LEARN_SECONDS = 0.5
"""How long the runner may wait for a new topic's metadata, once for each topic."""


class Fetcher:
    """Who may handle what. `report` sends one message to the supervisor."""

    def __init__(
        self,
        consumer: Consumer,
        known_topics: KnownTopics,
        ledger: Ledger,
        meter: Meter,
        report: Callable[[FromWorker], None],
    ) -> None:
        self.interrupts: list[None] = []
        """Not empty: the runner stops before its next record and looks around. The hot loop tests its truth."""
        self.several_topics = False
        """Records of more than one topic may be in one batch."""
        self.stops: dict[TopicPartition, int] = {}
        """The first offset not to be handled, for partitions that have one; changed by the control thread."""
        self.singly: dict[TopicPartition, int] = {}
        """Up to this offset a batch has one record, for partitions whose batch killed workers."""
        self.draining = False
        self._consumer = consumer
        self._known_topics = known_topics
        self._ledger = ledger
        self._cells = ledger.cells
        self._meter = meter
        self._report = report
        self._lock = threading.Lock()
        self._grants: dict[int, Grant] = {}
        self._by_partition: dict[TopicPartition, Grant] = {}
        self._topics: set[str] = set()
        self._waiting: list[Grant] = []
        """To be assigned with the next turn."""
        self._leaving: set[TopicPartition] = set()
        """Assigned to the client, but for a grant that is not fetching any more."""
        self._hand: Grant | None = None
        self._advanced_at = 0

    @property
    def drained(self) -> bool:
        """Nothing is left to do, and everything has been reported."""
        return self.draining and not self._grants

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Open the slots at once; fetching starts with the next turn."""
        with self._lock:
            for start in starts:
                if start.offset < 0:
                    self._report(no_start(start))
                    continue
                at = self._ledger.index(start.slot)
                self._ledger.open_slot(start.slot, start.grant, Position(start.offset, start.leader_epoch))
                tp = TopicPartition(start.topic, start.partition)
                grant = Grant(start.grant, tp, at, poison=start.poison, poison_deaths=start.poison_deaths)
                self._grants[grant.number] = self._by_partition[grant.tp] = grant
                self._topics.add(start.topic)
                if start.stop != NO_OFFSET:
                    self.stops[grant.tp] = start.stop
                self.singly.pop(tp, None)
                if start.singly_until != NO_OFFSET:
                    self.singly[tp] = start.singly_until
                self._waiting.append(grant)
            self.several_topics = len(self._topics) > 1

    def stop(self, numbers: Iterable[int]) -> None:
        """Fetch these no more. Reports those with nothing in hand before it returns; the runner reports the others.

        A grant that has ended by itself meanwhile was reported then, and is passed over.
        """
        with self._lock:
            self._stop([grant for number in numbers if (grant := self._grants.get(number)) is not None])

    def drain(self) -> None:
        """Stop everything; `drained` comes true when the last report is sent."""
        with self._lock:
            self._stop(list(self._grants.values()))
            self.draining = True

    def interrupt(self) -> None:
        """Make the runner look around before its next record."""
        if not self.interrupts:
            self.interrupts.append(None)

    def in_hand(self, now: int) -> InHand | None:
        """What the handler is busy with."""
        with self._lock:
            if (grant := self._hand) is None:
                return None
            cells, at = self._cells, grant.at
            offset = max(cells[at + HAND_OFFSET], cells[at + CONSUMED])
            age = (now - cells[at + HAND_SINCE]) / NANOSECONDS
            return InHand(grant.tp.topic, grant.tp.partition, offset, cells[at + HAND_COUNT], max(0.0, age))

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """Some of the partitions whose record waits, and how many there are in all, by what they wait for."""
        with self._lock:
            parked = [grant for grant in self._grants.values() if grant.state is GrantState.PARKED]
            told = [Parked(grant.number, grant.waits_for, grant.why) for grant in parked[:_PARKED_TOLD]]
            return told, dict(Counter(grant.waits_for for grant in parked))

    def measured(self) -> tuple[int, list[Deltas]]:
        """Records handled in all, and what changed in the counters since the last call."""
        with self._lock:
            return self._meter.handled, self._meter.take()

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """The last batch is done with: nothing that the client has given out is unhandled, except what is parked."""
        due = now - self._advanced_at >= _ADVANCE_NS
        if not (due or self._leaving or self._waiting):
            return
        self._known_topics.learn([grant.tp.topic for grant in self._waiting.copy()], _LEARN_SECONDS)
        with self._lock:
            if due:
                self._advanced_at = now
                self._advance()
            if self._leaving:
                self._consumer.incremental_unassign([ClientPartition(*tp) for tp in self._leaving])
                self._leaving.clear()
            waiting, self._waiting = self._waiting, []
            self._assign([grant for grant in waiting if grant.number in self._grants])

    def take(
        self, tp: TopicPartition, offset: int, count: int, epoch: int, now: int, timestamp: int = NO_TIMESTAMP
    ) -> Grant | None:
        """Put `count` records from `offset` on in hand; None if they are not ours to handle any more.

        `timestamp`: of the first one, milliseconds since 1970.
        """
        with self._lock:
            grant = self._by_partition.get(tp)
            if grant is None or grant.state is not GrantState.FETCHING:
                return None
            self._take(grant, offset, count, epoch, now)
            self._cells[grant.at + TIMESTAMP] = timestamp
            return grant

    def retake(self, grant: Grant, offset: int, now: int) -> bool:
        """Put what a parked grant holds in hand again; False if the grant has ended since."""
        with self._lock:
            if grant.state is not GrantState.PARKED or grant.number not in self._grants:
                return False
            epoch = grant.held[0].leader_epoch()
            self._take(grant, offset, len(grant.held), NO_EPOCH if epoch is None else epoch, now)
            return True

    def release(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> bool:
        """The handler has returned after `finished` records, in so many calls; False if that was the grant's end."""
        with self._lock:
            self._put_down(grant, finished, nanoseconds, calls)
            return not self._ended(grant) and self._go_on(grant)

    def pass_over(self, attempt: Attempt, end: End, reason: Reason) -> bool:
        """These records are done with, though not by the handler's return; False if that was the grant's end."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=False, failed=end is not End.DONE)
            self._meter.passed_over(grant.tp.topic, len(attempt.records), end, reason)
            self._cells[grant.at + CONSUMED] = attempt.following
            grant.failures = 0
            return not self._ended(grant) and self._go_on(grant)

    def park(self, attempt: Attempt, waits_for: str, why: str) -> bool:
        """These records wait: for the next try, or for their dead letters. Let the other partitions go on; False if
        the grant ended."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=waits_for == "retry")
            if self._ended(grant):
                return False
            grant.state, grant.held = GrantState.PARKED, attempt.records
            grant.waits_for, grant.why = waits_for, why
            self._leave(grant)
            return True

    def waits(self, grant: Grant, why: str) -> None:
        """A parked one waits on, for another reason."""
        with self._lock:
            grant.why = why

    def give_up(self, attempt: Attempt, error: str) -> None:
        """These cannot be handled and may not be passed over: the grant ends before them."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=False)
            if not self._ended(grant):
                self._fail(grant, FailureKind.HANDLER, attempt.offset, error)

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """The client reported an error in place of records, once: the partition would be silent from here on."""
        with self._lock:
            grant = self._by_partition.get(tp)
            if grant is not None and grant.state is GrantState.FETCHING:
                self._fail(grant, kind, self._cells[grant.at + CONSUMED], error)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _take(self, grant: Grant, offset: int, count: int, epoch: int, now: int) -> None:
        grant.put_in_hand(self._cells, offset, count, epoch, now)
        grant.state = GrantState.IN_HAND
        self._hand = grant
        self.interrupts.clear()

    def _put_down(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> None:
        grant.put_down(self._cells, finished)
        self._hand = None
        self._meter.finished(grant.tp.topic, finished, nanoseconds, calls)

    def _end_attempt(self, attempt: Attempt, *, retried: bool, failed: bool = True) -> None:
        self._put_down(attempt.grant, attempt.finished, attempt.nanoseconds, attempt.calls)
        if attempt.calls and failed:
            self._meter.failed(attempt.grant.tp.topic, retried=retried)

    def _go_on(self, grant: Grant) -> bool:
        if grant.held:
            # It was parked: what came behind its record was dropped, and is fetched again.
            grant.held, grant.state = (), GrantState.WAITING
            self._waiting.append(grant)
        else:
            grant.state = GrantState.FETCHING
        return True

    def _ended(self, grant: Grant) -> bool:
        """Report a grant that was to be given up as soon as the handler returned."""
        if grant.state is not GrantState.STOPPING:
            return False
        self._forget(grant)
        self._report(FetcherStopped([grant.final(self._cells)]))
        return True

    def _stop(self, grants: list[Grant]) -> None:
        reports = []
        for grant in grants:
            self._leave(grant)
            if grant.state in (GrantState.IN_HAND, GrantState.STOPPING):
                grant.state = GrantState.STOPPING
                self.interrupt()
            else:
                self._forget(grant)
                reports.append(grant.final(self._cells))
        if reports:
            self._report(FetcherStopped(reports))

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        self._leave(grant)
        self._forget(grant)
        self._report(Failed(grant.number, kind, offset, self._cells[grant.at + LEADER_EPOCH], error))

    def _forget(self, grant: Grant) -> None:
        grant.held = ()
        del self._grants[grant.number]
        if self._by_partition.get(grant.tp) is grant:
            del self._by_partition[grant.tp]

    def _assign(self, grants: list[Grant]) -> None:
        if not grants:
            return
        targets = [grant.from_where(self._cells) for grant in grants]
        for grant, before in zip(grants, self._consumer.position(targets), strict=True):
            grant.stale_position = before.offset
        try:
            self._consumer.incremental_assign(targets)
        except KafkaException as error:
            for grant in grants:
                self._forget(grant)
                self._report(refused(grant.tp, grant.final(self._cells), error))
            return
        for grant in grants:
            grant.assigned, grant.state = True, GrantState.FETCHING

    def _leave(self, grant: Grant) -> None:
        if grant.assigned:
            grant.assigned = False
            self._leaving.add(grant.tp)

    def _advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones."""
        idle = [grant for grant in self._by_partition.values() if grant.state is GrantState.FETCHING]
        if not idle:
            return
        cells = self._cells
        for grant, now in zip(idle, self._consumer.position([ClientPartition(*g.tp) for g in idle]), strict=True):
            if now.offset < 0 or now.offset == grant.stale_position:
                continue
            if now.offset > cells[grant.at + CONSUMED]:
                if now.leader_epoch is not None:
                    cells[grant.at + LEADER_EPOCH] = now.leader_epoch
                cells[grant.at + CONSUMED] = now.offset
