"""The worker's client and its table of open grants, shared by the control thread and the runner.

1. Only the runner calls the client. confluent-kafka lets one thread at a time into a consumer, and whoever comes second
   sleeps and looks again: beside a runner that waits in `poll`, a control thread would hardly ever get in.
2. So the control thread changes the table, and that takes effect at once: a record is handled only after `take` found
   its grant fetching. The client follows at the next turn. A stopped partition may be fetched until then, in vain.
3. A *turn* is from before the client is asked until its batch is handled, dropped or left over for the next one.
   Partitions are assigned and unassigned only between turns, so a batch never holds records from before a grant that is
   fetching; what is kept beyond a turn counts only until its grant is assigned again (`Grant.assignments`).
4. Reports are sent under the lock: what is said is in the order in which it happened.
5. The consumed offset follows librdkafka's position only between turns, where all it has given out is handled. That
   position survives an unassign for a moment (`rktp_app_pos` is reset by another thread), and would skip records of an
   assignment further back: a partition is assigned only once the client has forgotten where it was.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.pipes.ledger import CONSUMED, LEADER_EPOCH, Ledger
from kunicorn.pipes.messages import (
    Deltas,
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    InHand,
    Parked,
    Stopped,
)
from kunicorn.topics import NO_OFFSET, Position, TopicPartition
from kunicorn.worker.faults import no_start, refused
from kunicorn.worker.grants import Grant, GrantState
from kunicorn.worker.metadata import KnownTopics
from kunicorn.worker.meter import Meter

_ADVANCE_NS = NANOSECONDS
"""How often positions are asked for: transaction markers and compacted gaps count as lag until then."""
PARKED_TOLD = 50
_LEARN_SECONDS = 0.5
"""How long the runner may wait for a new topic's metadata, once for each topic."""


class Parts(NamedTuple):
    """What every table works with."""

    consumer: Consumer
    known_topics: KnownTopics
    ledger: Ledger
    meter: Meter
    report: Callable[[FromWorker], None]
    """Sends one message to the supervisor."""
    ahead_bytes: int
    """So much is kept in memory of what was fetched and is not begun."""


class GrantTable(ABC):
    """Who may handle what.

    Its two kinds differ in what is in the handler's hands: `Fetcher` has records of one partition, `Flights` several.
    """

    def __init__(self, parts: Parts) -> None:
        self.interrupts: list[None] = []
        """Not empty: the runner stops before its next record and looks around. The hot loop tests its truth."""
        self.several_topics = False
        """Records of more than one topic may be in one batch."""
        self.stops: dict[TopicPartition, int] = {}
        """The first offset not to be handled, for partitions that have one; changed by the control thread."""
        self.delays: Mapping[str, int] = {}
        """Retry topics: milliseconds that their records wait before they are handled."""
        self.draining = False
        self._consumer, self._known_topics, self._ledger, self._meter, self._report, self.ahead_bytes = parts
        self._cells = parts.ledger.cells
        self._lock = threading.Lock()
        self._grants: dict[int, Grant] = {}
        self._by_partition: dict[TopicPartition, Grant] = {}
        self._topics: set[str] = set()
        self._waiting: list[Grant] = []
        """To be assigned with the next turn."""
        self._leaving: set[TopicPartition] = set()
        """Assigned to the client, but for a grant that is not fetching any more."""
        self._advanced_at = 0
        self.held_back: set[TopicPartition] = set()
        """Assigned, and the client gives out nothing of them; changed by the runner."""
        self.came_at = -NANOSECONDS * 60
        """When a partition was assigned last that was not there before, or had waited for its time."""

    @property
    def drained(self) -> bool:
        """Nothing is left to do, and everything has been reported. Caller: the runner."""
        if not self.draining or self._grants:
            return False
        # The sender's thread forgets a grant and then reports it: a worker that ended in between would not.
        with self._lock:
            return not self._grants

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Open the slots at once; fetching starts with the next turn."""
        with self._lock:
            for start in starts:
                if start.offset < 0:
                    self._report(no_start(start))
                    continue
                grant = self._open(start)
                self._grants[grant.number] = self._by_partition[grant.tp] = grant
                self._topics.add(start.topic)
                self.stops.pop(grant.tp, None)  # That of an earlier grant ended with it.
                if start.stop != NO_OFFSET:
                    self.stops[grant.tp] = start.stop
                self._waiting.append(grant)
            self.several_topics = len(self._topics) > 1

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        """Fetch these no more. Reports those with nothing in hand before it returns; the runner reports the others.

        A grant that has ended by itself meanwhile was reported then, and is passed over. `lost`: their next owner may
        have begun.
        """
        with self._lock:
            grants = [grant for number in numbers if (grant := self._grants.get(number)) is not None]
            for grant in grants if lost else ():
                grant.discarded, grant.handled_to = True, NO_OFFSET
            self._stop(grants)

    def drain(self) -> None:
        """Stop everything; `drained` comes true when the last report is sent."""
        with self._lock:
            self._stop(list(self._grants.values()))
            self.draining = True

    def interrupt(self) -> None:
        """Make the runner look around before its next record."""
        if not self.interrupts:
            self.interrupts.append(None)

    @abstractmethod
    def in_hand(self, now: int) -> InHand | None:
        """What the handler is busy with."""

    @abstractmethod
    def in_flight(self) -> int:
        """Records that calls of the handler have right now."""

    @abstractmethod
    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """Some of the partitions of which a record waits, and how many there are in all, by what they wait for."""

    def measured(self) -> tuple[int, list[Deltas]]:
        """Records handled in all, and what changed in the counters since the last call."""
        with self._lock:
            return self._meter.handled, self._meter.take()

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """The last turn is over: nothing that the client has given out is unhandled, except what is parked, left over
        or waits for a fuller batch."""
        due = now - self._advanced_at >= _ADVANCE_NS
        if not (due or self._leaving or self._waiting):
            return
        self._known_topics.learn([grant.tp.topic for grant in self._waiting.copy()], _LEARN_SECONDS)
        with self._lock:
            if due:
                self._advanced_at = now
                self._advance()
            if self._leaving:
                # Held back when it left, it would be so when it is assigned again.
                self._let_on(self.held_back & self._leaving)
                self._consumer.incremental_unassign([ClientPartition(*tp) for tp in self._leaving])
                self._leaving.clear()
            waiting, self._waiting = self._waiting, []
            self._assign([g for g in waiting if g.number in self._grants and g.state is GrantState.WAITING], now)

    def hold_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the client give out nothing more of these until `let_on`, and throw away what it has fetched of them
        (librdkafka's `rd_kafka_toppar_pause_resume`): whatever else it has comes next."""
        more = {tp for tp in partitions if tp not in self.held_back and self.fetching(tp) is not None}
        if more:
            self._consumer.pause([ClientPartition(*tp) for tp in more])
            self.held_back |= more

    def let_on(self) -> None:
        """Those held back are fetched again, from where the client had come to with them."""
        self._let_on(set(self.held_back))

    def fetching(self, tp: TopicPartition) -> Grant | None:
        """The partition's grant, if it is one whose records may be handled."""
        grant = self._by_partition.get(tp)
        return grant if grant is not None and grant.state is GrantState.FETCHING else None

    def goes_on_behind(self, grant: Grant, assignments: int) -> bool:
        """Whether what was fetched of it, when it had been assigned so many times, comes next: its records may be
        handled, and it was not fetched again since."""
        return self.fetching(grant.tp) is grant and grant.assignments == assignments

    def put_off(self, tp: TopicPartition, why: str) -> Grant | None:
        """Give out nothing more of it until it is taken up: its next record waits for its time, in a retry topic."""
        with self._lock:
            if (grant := self.fetching(tp)) is None:
                return None
            grant.state, grant.waits_for, grant.why = GrantState.PUT_OFF, "delay", why
            self._leave(grant)
            return grant

    def take_up(self, grant: Grant) -> None:
        """That wait is over; nothing happens where it ended otherwise."""
        with self._lock:
            if grant.number in self._grants and grant.state is GrantState.PUT_OFF:
                grant.state = GrantState.WAITING
                self._waiting.append(grant)

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """The client reported an error in place of records, once: the partition would be silent from here on."""
        with self._lock:
            if (grant := self.fetching(tp)) is not None:
                self._fail(grant, kind, max(self._cells[grant.at + CONSUMED], grant.handled_to), error)

    def _let_on(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            self._consumer.resume([ClientPartition(*tp) for tp in partitions])
            self.held_back -= partitions

    # -- under the lock ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _busy(self, grant: Grant) -> bool:
        """Whether the handler has records of it. Asked when it is to be stopped."""

    @abstractmethod
    def _advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones."""

    def _open(self, start: FetcherStart) -> Grant:
        self._ledger.open_slot(start.slot, start.grant, Position(start.offset, start.leader_epoch))
        tp, at = TopicPartition(start.topic, start.partition), self._ledger.index(start.slot)
        return Grant(start.grant, tp, at, self._ledger.busy_index(start.slot), began_with=start.began_with)

    def _final(self, grant: Grant) -> Stopped:
        """The last word under this grant."""
        return Stopped(grant.number, self._cells[grant.at + CONSUMED], self._cells[grant.at + LEADER_EPOCH])

    def _stop(self, grants: list[Grant]) -> None:
        reports = []
        for grant in grants:
            self._leave(grant)
            if self._busy(grant):
                grant.state = GrantState.STOPPING
                self.interrupt()
            else:
                reports.append(self._final(grant))
                self._forget(grant)
        if reports:
            self._report(FetcherStopped(reports))

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        self._leave(grant)
        self._forget(grant)
        self._report(Failed(grant.number, kind, offset, self._cells[grant.at + LEADER_EPOCH], error))

    def _refuse(self, grant: Grant, error: KafkaException) -> None:
        final = self._final(grant)
        self._forget(grant)
        self._report(refused(grant.tp, final, error))

    def _forget(self, grant: Grant) -> None:
        """Nothing is known of it any more."""
        grant.held = ()
        del self._grants[grant.number]
        if self._by_partition.get(grant.tp) is grant:
            del self._by_partition[grant.tp]

    def _assign(self, grants: list[Grant], now: int) -> None:
        if not (grants := self._forgotten(grants)):
            return
        targets = [grant.from_where(self._cells) for grant in grants]
        try:
            self._consumer.incremental_assign(targets)
        except KafkaException as error:
            for grant in grants:
                self._refuse(grant, error)
            return
        if any(not grant.assignments or grant.waits_for == "delay" for grant in grants):
            self.came_at = now
        for grant in grants:
            grant.assigned, grant.state = True, GrantState.FETCHING
            grant.assignments += 1

    def _forgotten(self, grants: list[Grant]) -> list[Grant]:
        """Those of which the client tells no position any more; the others wait for the next turn."""
        if not grants:
            return []
        positions = self._consumer.position([ClientPartition(*grant.tp) for grant in grants])
        known = {grant for grant, position in zip(grants, positions, strict=True) if position.offset >= 0}
        self._waiting += known
        return [grant for grant in grants if grant not in known]

    def _leave(self, grant: Grant) -> None:
        if grant.assigned:
            grant.assigned = False
            self._leaving.add(grant.tp)
