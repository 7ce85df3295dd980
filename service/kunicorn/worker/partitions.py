"""Partitions of a worker: the client's assignment and the table of open grants, shared by the control thread and the
runner.

`GrantTable` is what all tables have in common. 1. Only the runner calls the client. confluent-kafka lets one thread at
a time into a consumer, and whoever comes second sleeps and looks again: beside a runner that waits in `poll`, a control
thread would hardly ever get in. 2. So the control thread changes the table, and that takes effect at once: a record is
handled only after `begin` found its grant fetching. The client follows at the next turn. A stopped partition may be
fetched until then, in vain. 3. A *turn* is from before the client is asked until its batch is handled, dropped or left
over for the next one. Partitions are assigned and unassigned only between turns, so a batch never holds records from
before a grant that is fetching; what is kept beyond a turn counts only until its grant is assigned again
(`Grant.assignments`). 4. Reports are sent under the lock: what is said is in the order in which it happened. 5. The
consumed offset follows librdkafka's position only between turns, where all it has given out is handled. That position
survives an unassign for a moment (`rktp_app_pos` is reset by another thread), and would skip records of an assignment
further back: a partition is assigned only once the client has forgotten where it was.

`SequentialTable` is the table where records of one partition at a time are in the handler's slots.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.call import following_offsets
from kunicorn.handler.retry import End
from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS
from kunicorn.ipc.ledger import CONSUMED, HAND_COUNT, HAND_OFFSET, HAND_SINCE, HANDLED, LEADER_EPOCH, TIMESTAMP, Ledger
from kunicorn.ipc.messages import (
    Failed,
    FailureKind,
    FetcherStart,
    FetcherStopped,
    FromWorker,
    InHand,
    Parked,
    Stopped,
)
from kunicorn.positions import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Position, TopicPartition
from kunicorn.worker.client import Client
from kunicorn.worker.fetch import no_start, refused
from kunicorn.worker.progress import Attempt, Grant, GrantState, Interrupts
from kunicorn.worker.stats import Counters

_ADVANCE_NS = NANOSECONDS
"""How often positions are asked for: transaction markers and compacted gaps count as lag until then."""
PARKED_TOLD = 50
UNLIMITED = 2**62
"""Room for records where none of them leaves outputs to be delivered."""
_LEARN_SECONDS = 0.5
"""How long the runner may wait for a new topic's metadata, once for each topic."""


class TableSettings(NamedTuple):
    """Settings that a table needs."""

    ahead_bytes: int
    """So much is kept in memory of what was fetched and is not begun."""
    delays: Mapping[str, int] = {}
    """Retry topics: milliseconds that their records wait before they are handled."""
    batches: bool = False
    """Whether a call of the handler gets all records that are in hand."""


class Parts(NamedTuple):
    """Parts that every table is made with."""

    client: Client
    ledger: Ledger
    counters: Counters
    report: Callable[[FromWorker], None]
    """Sends one message to the supervisor."""
    interrupts: Interrupts
    settings: TableSettings


class GrantTable(ABC):
    """Table of this worker's open grants: which partitions are fetched, in hand, waiting or stopping.

    Its two kinds differ in how many partitions have records in hand at a time: in a `SequentialTable` one, in `Flights`
    several.
    """

    def __init__(self, parts: Parts) -> None:
        self.interrupts = parts.interrupts
        self.ledger = parts.ledger
        self.settings = parts.settings
        self.several_topics = False
        """Records of more than one topic may be in one batch."""
        self.stops: dict[TopicPartition, int] = {}
        """The first offset not to be handled, for partitions that have one; changed by the control thread."""
        self.draining = False
        self._consumer, self._known_topics = parts.client.consumer, parts.client.topics
        self._counters, self._report = parts.counters, parts.report
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
        self.paused: set[TopicPartition] = set()
        """Assigned, and the client gives out nothing of them; changed by the runner."""
        self.came_at = -NANOSECONDS * 60
        """When a partition was assigned last that was not there before, or had waited for its time."""

    @property
    def drained(self) -> bool:
        """Whether nothing is left to do, and everything has been reported. Caller: the runner."""
        if not self.draining or self._grants:
            return False
        # The sender's thread forgets a grant and then reports it: a worker that ended in between would not.
        with self._lock:
            return not self._grants

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Open these grants' slots at once; fetching starts with the next turn."""
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
        """Stop these grants. Reports those with nothing in hand before it returns; the runner reports the others.

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

    @abstractmethod
    def in_hand(self, now: int) -> InHand | None:
        """Oldest record in hand and the count of all, for Pong."""

    @abstractmethod
    def in_flight(self) -> int:
        """Number of records that calls of the handler have right now."""

    @abstractmethod
    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """Some of the partitions of which a record waits, and the count of all by what they wait for."""

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """Assign and unassign at the client: the last turn is over, and nothing that it has given out is unhandled,
        except what is parked, left over or waits for a fuller batch.
        """
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
                self._resume(self.paused & self._leaving)
                self._consumer.incremental_unassign([ClientPartition(*tp) for tp in self._leaving])
                self._leaving.clear()
            waiting, self._waiting = self._waiting, []
            self._assign([g for g in waiting if g.number in self._grants and g.state is GrantState.WAITING], now)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the client give out nothing more of these until `resume`, and throw away what it has fetched of them
        (librdkafka's `rd_kafka_toppar_pause_resume`): whatever else it has comes next."""
        more = {tp for tp in partitions if tp not in self.paused and self.fetching(tp) is not None}
        if more:
            self._consumer.pause([ClientPartition(*tp) for tp in more])
            self.paused |= more

    def resume(self) -> None:
        """Fetch the paused partitions again, from the client's position in them."""
        self._resume(set(self.paused))

    def fetching(self, tp: TopicPartition) -> Grant | None:
        """The partition's grant, if it is one whose records may be handled."""
        grant = self._by_partition.get(tp)
        return grant if grant is not None and grant.state is GrantState.FETCHING else None

    def goes_on_behind(self, grant: Grant, assignments: int) -> bool:
        """Whether messages that were fetched under the `assignments`-th assignment come next: their records may be
        handled, and the partition was not fetched again since.
        """
        return self.fetching(grant.tp) is grant and grant.assignments == assignments

    def delay(self, tp: TopicPartition, why: str) -> Grant | None:
        """Stop fetching the partition, whose next record waits for its time in a retry topic, until `end_delay`."""
        with self._lock:
            if (grant := self.fetching(tp)) is None:
                return None
            grant.state, grant.waits_for, grant.why = GrantState.DELAYED, "delay", why
            self._leave(grant)
            return grant

    def end_delay(self, grant: Grant) -> None:
        """Fetch a delayed partition again; does nothing where the delay ended otherwise."""
        with self._lock:
            if grant.number in self._grants and grant.state is GrantState.DELAYED:
                grant.state = GrantState.WAITING
                self._waiting.append(grant)

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """End the partition's grant: the client reported an error in place of records, once, and would be silent from
        here on.
        """
        with self._lock:
            if (grant := self.fetching(tp)) is not None:
                self._fail(grant, kind, max(self._cells[grant.at + CONSUMED], grant.handled_to), error)

    def _resume(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            self._consumer.resume([ClientPartition(*tp) for tp in partitions])
            self.paused -= partitions

    # -- under the lock ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _busy(self, grant: Grant) -> bool:
        """Whether the handler has records of the grant. Asked when it is to be stopped."""

    @abstractmethod
    def _advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones."""

    def _open(self, start: FetcherStart) -> Grant:
        self.ledger.open_slot(start.slot, start.grant, Position(start.offset, start.leader_epoch))
        tp, at = TopicPartition(start.topic, start.partition), self.ledger.index(start.slot)
        return Grant(start.grant, tp, at, self.ledger.busy_index(start.slot), began_with=start.began_with)

    def _final(self, grant: Grant) -> Stopped:
        """Final progress under this grant."""
        return Stopped(grant.number, self._cells[grant.at + CONSUMED], self._cells[grant.at + LEADER_EPOCH])

    def _stop(self, grants: list[Grant]) -> None:
        reports = []
        for grant in grants:
            self._leave(grant)
            if self._busy(grant):
                grant.state = GrantState.STOPPING
                self.interrupts.request()
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
        """Remove the grant from the table."""
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
        """Grants of which the client tells no position any more; the others wait for the next turn."""
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


class SequentialTable(GrantTable):
    """Table with records of one partition in hand at a time; see the module's head."""

    progress_cell = CONSUMED
    """Word of a grant's ledger slot in which a call of the handler stores how far it has come."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.singly: dict[TopicPartition, int] = {}
        """Up to this offset a batch has one record, for partitions whose batch killed workers."""
        self.alone: dict[TopicPartition, int] = {}
        """Up to this offset a record is delivered before anything else is begun, for partitions of which something
        killed workers in hand or on its way."""
        self._hand: Grant | None = None

    # -- control thread ----------------------------------------------------------------------------------------------

    def in_hand(self, now: int) -> InHand | None:
        with self._lock:
            if (grant := self._hand) is None:
                return None
            cells, at = self._cells, grant.at
            offset = max(cells[at + HAND_OFFSET], cells[at + CONSUMED])
            age = (now - cells[at + HAND_SINCE]) / NANOSECONDS
            return InHand(grant.tp.topic, grant.tp.partition, offset, cells[at + HAND_COUNT], max(0.0, age))

    def in_flight(self) -> int:
        """Number of records that a call of the handler has right now; of fast ones, which are taken in hand many at
        once, one.
        """
        with self._lock:
            if (grant := self._hand) is None:
                return 0
            return self._cells[grant.at + HAND_COUNT] if self.settings.batches else 1

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        with self._lock:
            states = (GrantState.PARKED, GrantState.DELAYED)
            parked = [grant for grant in self._grants.values() if grant.state in states]
            told = [Parked(grant.number, grant.waits_for, grant.why) for grant in parked[:PARKED_TOLD]]
            return told, dict(Counter(grant.waits_for for grant in parked))

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin(
        self, tp: TopicPartition, following: Sequence[int], epoch: int, now: int, timestamp: int = NO_TIMESTAMP
    ) -> Grant | None:
        """Put the records before these offsets in hand; None if they are not ours to handle any more.

        `timestamp`: of the first one, milliseconds since 1970.
        """
        with self._lock:
            grant = self._by_partition.get(tp)
            if grant is None or grant.state is not GrantState.FETCHING or not self._may_begin(grant):
                return None
            self._begin(grant, following, epoch, now)
            self._cells[grant.at + TIMESTAMP] = timestamp
            return grant

    def begin_again(self, grant: Grant, now: int) -> bool:
        """Put what a parked grant holds in hand again; False if the grant has ended since."""
        with self._lock:
            parked = grant.state is GrantState.PARKED and grant.number in self._grants
            if not parked or not self._may_begin(grant):
                return False
            epoch = grant.held[0].leader_epoch()
            self._begin(grant, following_offsets(grant.held), NO_EPOCH if epoch is None else epoch, now)
            return True

    def release(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> bool:
        """Note that the handler has returned after `finished` records, in so many calls; False if that was the grant's
        end.
        """
        with self._lock:
            self._put_down(grant, finished, nanoseconds, calls)
            return not self._ended(grant) and self._go_on(grant)

    def pass_over(self, attempt: Attempt[Grant], end: End, label: str | None) -> bool:
        """Count these records as done, without the handler's return; False if that was the grant's end."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=False, failed=end is not End.DONE)
            self._counters.passed_over(grant.tp.topic, len(attempt.records), end, label)
            self._done_up_to(grant, attempt.following, len(attempt.records))
            grant.failures = 0
            return not self._ended(grant) and self._go_on(grant)

    def park(self, attempt: Attempt[Grant], waits_for: str, why: str) -> bool:
        """Have these records wait, for the next try or for their dead letters, while the other partitions go on; False
        if the grant ended.
        """
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=waits_for == "retry")
            if self._ended(grant):
                return False
            grant.state, grant.held = GrantState.PARKED, attempt.records
            grant.waits_for, grant.why = waits_for, why
            self._leave(grant)
            return True

    def explain_wait(self, grant: Grant, why: str) -> None:
        """Change the reason why a parked grant waits."""
        with self._lock:
            grant.why = why

    def give_up(self, attempt: Attempt[Grant], error: str) -> None:
        """End the grant before these records, which cannot be handled and may not be passed over."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=False)
            if not self._ended(grant):
                self._fail(grant, FailureKind.HANDLER, attempt.offset, error)

    def room(self, tp: TopicPartition, following: int, seconds: float) -> int:
        """Number of records that may be handled now, the first of them before `following`; waits so long for some."""
        return UNLIMITED

    def note_done_ahead(self, grant: Grant, offsets: Collection[int]) -> None:
        """Note records that the handler is done with, though not with one before them: they do not come to it again."""
        new = frozenset(offsets) - grant.ahead
        with self._lock:
            grant.ahead |= new
            self._cells[grant.at + HANDLED] += len(new)
            self._counters.finished(grant.tp.topic, len(new), 0, 0)

    def unhandled(self, tp: TopicPartition, messages: list[Message]) -> list[Message]:
        """Messages without those that are done already, here or before: like compacted ones, a gap that the position
        passes.
        """
        grant = self._by_partition.get(tp)
        if grant is None or not grant.ahead:
            return messages
        consumed = self._cells[grant.at + CONSUMED]
        grant.ahead = frozenset(offset for offset in grant.ahead if offset >= consumed)
        return [message for message in messages if message.offset() not in grant.ahead]

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _open(self, start: FetcherStart) -> Grant:
        grant = super()._open(start)
        # Records before the poison may come to the handler again; where its offset is a gap's, the next one is it.
        grant.poison, grant.poison_at, grant.poison_deaths = start.poison, start.poison_offset, start.poison_deaths
        grant.ahead = bitmap.read(start.offset, start.done)
        self.singly.pop(grant.tp, None)
        self.alone.pop(grant.tp, None)
        if start.singly_until != NO_OFFSET:
            self.singly[grant.tp] = self.alone[grant.tp] = start.singly_until
        return grant

    def _final(self, grant: Grant) -> Stopped:
        final = super()._final(grant)
        return msgspec.structs.replace(final, done=bitmap.written(final.offset, grant.ahead)) if grant.ahead else final

    def _busy(self, grant: Grant) -> bool:
        return grant.state in (GrantState.IN_HAND, GrantState.STOPPING)

    def _may_begin(self, grant: Grant) -> bool:
        """Whether a record of the grant may be handled, whatever its state."""
        return True

    def _begin(self, grant: Grant, following: Sequence[int], epoch: int, now: int) -> None:
        grant.put_in_hand(self._cells, following, epoch, now)
        grant.state = GrantState.IN_HAND
        self._hand = grant

    def _put_down(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> None:
        grant.put_down(self._cells, finished)
        self._cells[grant.busy_at] += nanoseconds
        self._hand = None
        self._counters.finished(grant.tp.topic, finished, nanoseconds, calls)

    def _done_up_to(self, grant: Grant, following: int, records: int) -> None:
        """Move the consumed offset, over so many more records, but not by the handler's return."""
        self._cells[grant.at + CONSUMED] = following

    def _end_attempt(self, attempt: Attempt[Grant], *, retried: bool, failed: bool = True) -> None:
        self._put_down(attempt.grant, attempt.finished, attempt.nanoseconds, attempt.calls)
        if attempt.calls and failed:
            self._counters.failed(attempt.grant.tp.topic, retried=retried)

    def _go_on(self, grant: Grant) -> bool:
        if grant.held:
            # It was parked: what came behind its record was dropped, and is fetched again.
            grant.held, grant.state = (), GrantState.WAITING
            self._waiting.append(grant)
        else:
            grant.state = GrantState.FETCHING
        return True

    def _ended(self, grant: Grant) -> bool:
        """Report a grant that was to end as soon as the handler returned."""
        if grant.state is not GrantState.STOPPING:
            return False
        final = self._final(grant)
        self._forget(grant)
        self._report(FetcherStopped([final]))
        return True

    def _advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones."""
        fetching = (grant for grant in self._by_partition.values() if grant.state is GrantState.FETCHING)
        idle = [grant for grant in fetching if not (grant.waits_for_batch or grant.waits_for_turn)]
        if not idle:
            return
        cells = self._cells
        for grant, now in zip(idle, self._consumer.position([ClientPartition(*g.tp) for g in idle]), strict=True):
            if now.offset < 0:
                continue
            # What lies behind a stop was fetched and dropped: it is not consumed, and must not be committed.
            reached = min(now.offset, self.stops.get(grant.tp, now.offset))
            if reached > max(cells[grant.at + CONSUMED], grant.handled_to):
                if now.leader_epoch is not None:
                    cells[grant.at + LEADER_EPOCH] = now.leader_epoch
                self._done_up_to(grant, reached, 0)
