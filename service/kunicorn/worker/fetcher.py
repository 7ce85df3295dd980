"""The worker's consumer and its table of open grants, shared by the control thread and the runner.

1. A record is handled only after `take` found its grant fetching. `stop` and `take` exclude one another, so a grant is
   either reported with nothing in hand, or reported when the runner lets go of it; never handled after its report.
2. A *turn* is one batch: from before the client is asked until the last record is handled or dropped. A partition
   whose grant ended in this turn may have records left in the batch, and a new grant looks the same to them: so the
   partition is assigned again only with the next turn.
3. Reports are sent under the lock: what is said is in the order in which it happened.
4. The consumed offset follows librdkafka's position only between turns, when all it has given out is handled, and only
   once it moved under this grant: the position survives an unassign for a while (`rktp_app_pos` is reset by the
   broker's thread), and an assignment further back would then skip records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.pipes.ledger import (
    CONSUMED,
    HAND_COUNT,
    HAND_OFFSET,
    HAND_SINCE,
    HANDLED,
    LEADER_EPOCH,
    TIMESTAMP,
    Ledger,
)
from kunicorn.pipes.messages import (
    Deltas,
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    InHand,
    Stopped,
)
from kunicorn.topics import NO_TIMESTAMP, Position, TopicPartition
from kunicorn.worker.faults import no_start, refused
from kunicorn.worker.grants import Grant, GrantState
from kunicorn.worker.meter import Meter

_ADVANCE_NS = NANOSECONDS
"""How often positions are asked for: transaction markers and compacted gaps count as lag until then."""


class Fetcher:
    """Who may handle what. `report` sends one message to the supervisor."""

    def __init__(self, consumer: Consumer, ledger: Ledger, meter: Meter, report: Callable[[FromWorker], None]) -> None:
        self.interrupts: list[None] = []
        """Not empty: the runner stops before its next record and looks around. The hot loop tests its truth."""
        self.several_topics = False
        """Records of more than one topic may be in one batch."""
        self.draining = False
        self._consumer = consumer
        self._ledger = ledger
        self._cells = ledger.cells
        self._meter = meter
        self._report = report
        self._lock = threading.Lock()
        self._grants: dict[int, Grant] = {}
        self._by_partition: dict[TopicPartition, Grant] = {}
        self._topics: set[str] = set()
        self._spent: set[TopicPartition] = set()
        """Partitions whose records in this turn's batch belong to nobody any more."""
        self._waiting: list[Grant] = []
        self._hand: Grant | None = None
        self._advanced_at = 0

    @property
    def drained(self) -> bool:
        """Nothing is left to do, and everything has been reported."""
        return self.draining and not self._grants

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Open the slots and fetch, at once wherever the runner holds nothing older of the partition."""
        with self._lock:
            fresh: list[Grant] = []
            for start in starts:
                if start.offset < 0:
                    self._report(no_start(start))
                    continue
                at = self._ledger.index(start.slot)
                self._ledger.open_slot(start.slot, start.grant, Position(start.offset, start.leader_epoch))
                grant = Grant(start.grant, TopicPartition(start.topic, start.partition), at)
                self._grants[grant.number] = self._by_partition[grant.tp] = grant
                self._topics.add(start.topic)
                (self._waiting if grant.tp in self._spent else fresh).append(grant)
            self.several_topics = len(self._topics) > 1
            self._assign(fresh)

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

    def measured(self) -> tuple[int, list[Deltas]]:
        """Records handled in all, and what changed in the counters since the last call."""
        with self._lock:
            return self._meter.handled, self._meter.take()

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """The last batch is done with: nothing that the client has given out is unhandled, except what is parked."""
        if not self._spent and now - self._advanced_at < _ADVANCE_NS:
            return
        with self._lock:
            if now - self._advanced_at >= _ADVANCE_NS:
                self._advanced_at = now
                self._advance()
            self._spent.clear()
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

    def retake(self, grant: Grant, offset: int, epoch: int, now: int) -> bool:
        """Put what a parked grant holds in hand again; False if the grant has ended since."""
        with self._lock:
            if grant.state is not GrantState.PARKED or grant.number not in self._grants:
                return False
            self._take(grant, offset, len(grant.held), epoch, now)
            return True

    def release(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> bool:
        """The handler has returned after `finished` records, in so many calls; False if that was the grant's end."""
        with self._lock:
            self._put_down(grant, finished, nanoseconds, calls)
            if self._ended(grant):
                return False
            grant.state = GrantState.FETCHING
            if not grant.assigned:
                grant.held = ()
                self._assign([grant])
            return grant.number in self._grants

    def park(self, grant: Grant, held: Sequence[Message], finished: int, nanoseconds: int) -> bool:
        """The handler raised and will be asked again: let the other partitions go on; False if the grant ended."""
        with self._lock:
            self._put_down(grant, finished, nanoseconds, finished + 1)
            self._meter.failed(grant.tp.topic, retried=True)
            if self._ended(grant):
                return False
            grant.state, grant.held = GrantState.PARKED, held
            self._unassign([grant])
            return True

    def give_up(self, grant: Grant, offset: int, error: str, finished: int, nanoseconds: int) -> None:
        """The handler raised for the last time: the grant ends before that record."""
        with self._lock:
            self._put_down(grant, finished, nanoseconds, finished + 1)
            self._meter.failed(grant.tp.topic, retried=False)
            if not self._ended(grant):
                self._fail(grant, FailureKind.HANDLER, offset, error)

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """The client reported an error in place of records, once: the partition would be silent from here on."""
        with self._lock:
            grant = self._by_partition.get(tp)
            if grant is not None and grant.state is GrantState.FETCHING:
                self._fail(grant, kind, self._cells[grant.at + CONSUMED], error)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _take(self, grant: Grant, offset: int, count: int, epoch: int, now: int) -> None:
        cells, at = self._cells, grant.at
        if cells[at + LEADER_EPOCH] != epoch:
            # Before the first offset of that epoch: an older offset with a newer epoch is harmless.
            cells[at + LEADER_EPOCH] = epoch
        cells[at + HAND_OFFSET] = offset
        cells[at + HAND_SINCE] = now
        cells[at + HAND_COUNT] = count
        grant.state = GrantState.IN_HAND
        self._hand = grant
        self.interrupts.clear()

    def _put_down(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> None:
        cells, at = self._cells, grant.at
        cells[at + HANDLED] += finished
        cells[at + HAND_COUNT] = 0
        self._hand = None
        self._meter.finished(grant.tp.topic, finished, nanoseconds, calls)

    def _ended(self, grant: Grant) -> bool:
        """Report a grant that was to be given up as soon as the handler returned."""
        if grant.state is not GrantState.STOPPING:
            return False
        self._forget(grant)
        self._report(FetcherStopped([self._final(grant)]))
        return True

    def _stop(self, grants: list[Grant]) -> None:
        self._unassign(grants)
        reports = []
        for grant in grants:
            if grant.state in (GrantState.IN_HAND, GrantState.STOPPING):
                grant.state = GrantState.STOPPING
                self.interrupt()
            else:
                self._forget(grant)
                reports.append(self._final(grant))
        if reports:
            self._report(FetcherStopped(reports))

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        self._unassign([grant])
        self._forget(grant)
        self._report(Failed(grant.number, kind, offset, self._cells[grant.at + LEADER_EPOCH], error))

    def _final(self, grant: Grant) -> Stopped:
        cells, at = self._cells, grant.at
        return Stopped(grant.number, cells[at + CONSUMED], cells[at + LEADER_EPOCH])

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
                self._report(refused(grant.tp, self._final(grant), error))
            return
        for grant in grants:
            grant.assigned, grant.state = True, GrantState.FETCHING

    def _unassign(self, grants: list[Grant]) -> None:
        assigned = [grant for grant in grants if grant.assigned]
        if assigned:
            self._consumer.incremental_unassign([ClientPartition(*grant.tp) for grant in assigned])
        for grant in assigned:
            grant.assigned = False
            self._spent.add(grant.tp)

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
