"""Partitions of a worker: the client's assignment, the table of open grants, and their records in flight.

The table is called by four kinds of threads: the loop feeds it and deals with what failed, executors start and finish
records, senders tell what was delivered, the control thread opens and stops grants. All of it happens under the table's
lock, and none of it blocks but for the client's own calls between turns.

1. Only the loop calls the client. confluent-kafka lets one thread at a time into a consumer, and whoever comes second
   sleeps and looks again: beside a loop that waits in `poll`, a control thread would hardly ever get in.
2. So the control thread changes the table, and that takes effect at once: a record is started only after its grant was
   found open. The client follows at the next turn. A stopped partition may be fetched until then, in vain.
3. A *turn* is from before the client is asked until its batch is taken in. Partitions are assigned and unassigned only
   between turns, so a batch never holds records from before a grant that is fetching.
4. Reports are sent under the lock: what is said is in the order in which it happened. A grant that ends is reported
   when nothing of it is in hand, or on its way to the brokers, any more.
5. The consumed offset follows librdkafka's position only where nothing that was fetched is unfinished. That position
   survives an unassign for a moment (`rktp_app_pos` is reset by another thread), and would skip records of an
   assignment further back: a partition is assigned only once the client has forgotten where it was.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.call import OfSome
from kunicorn.handler.messages import Run
from kunicorn.handler.record import offset_of
from kunicorn.handler.retry import End
from kunicorn.handler.rows import before, joined
from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.ledger import Ledger
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
from kunicorn.observe import catalogue as c
from kunicorn.positions import NO_EPOCH, NO_OFFSET, TopicPartition
from kunicorn.worker.assignment import ClientAssignment
from kunicorn.worker.buffering import Backpressure
from kunicorn.worker.client import Client
from kunicorn.worker.delivery import Deliveries, Told, places_of
from kunicorn.worker.fetch import headers_bytes, kept_bytes, no_start, refused
from kunicorn.worker.gate import Gate, Shut
from kunicorn.worker.mirror import MarkedMirror, Mirror, RunMirror
from kunicorn.worker.produce.outbox import Entry, OutputBatch
from kunicorn.worker.progress import (
    Attempt,
    Grant,
    GrantFailure,
    GrantState,
    InFlight,
    Interrupts,
    OffsetTracker,
    Poison,
    Slots,
    record_bytes,
)
from kunicorn.worker.scheduler import Scheduler
from kunicorn.worker.stats import Counters

_ADVANCE_NS = NANOSECONDS
"""How often positions are asked for: transaction markers and compacted gaps count as lag until then."""
PARKED_TOLD = 50
_LETTER_NS = NANOSECONDS // 5
"""A partition that is stopped waits for letters until they have been under way for so long."""
_FED_AT_ONCE = 50
"""So many records are taken in before whoever has handled one gets its turn at the table."""


class TableSettings(NamedTuple):
    """Settings that a table needs."""

    ahead_bytes: int
    """So much is kept in memory of what was fetched and is not begun."""
    delays: Mapping[str, int] = {}
    """Milliseconds that records of these topics wait before they are handled; retry topics are listed."""
    gathers: bool = False
    """Some handler takes batches: a partition's records are taken in together."""


class Parts(NamedTuple):
    """Parts that the table is made with."""

    client: Client
    ledger: Ledger
    counters: Counters
    report: Callable[[FromWorker], None]
    """Sends one message to the supervisor."""
    interrupts: Interrupts
    settings: TableSettings


class Partitions:
    """Table of this worker's open grants and their records. A `DeliveryListener`, by the numbers of records in flight,
    and a `transactions.Table`.
    """

    def __init__(self, parts: Parts, slots_of: Callable[[str], Slots], deliveries: Deliveries, told: Told) -> None:
        """`slots_of`: the slots of a topic's handler. `told`: of outputs that arrived or never will."""
        self.interrupts = parts.interrupts
        self.ledger = parts.ledger
        self.settings = parts.settings
        self.several_topics = False
        """Records of more than one topic may be in one batch."""
        self.stops: dict[TopicPartition, int] = {}
        """The first offset not to be handled, for partitions that have one; changed by the control thread."""
        self.draining = False
        self._client = ClientAssignment(parts.client)
        self._counters, self._report = parts.counters, parts.report
        self._slots_of = slots_of
        self._deliveries, self._told = deliveries, told
        self._lock = threading.Lock()
        self._scheduler = Scheduler()
        self._backpressure = Backpressure(self._scheduler, parts.settings.ahead_bytes)
        self._grants: dict[int, Grant] = {}
        self._by_partition: dict[TopicPartition, Grant] = {}
        self._topics: set[str] = set()
        self._batching: list[Slots] = []
        """Those of handlers whose batches wait."""
        self._gated: list[Slots] = []
        """Those of handlers that have a gate."""
        self._held: deque[tuple[InFlight, int]] = deque()
        """Records that a gate has wait, and until when."""
        self._waiting: list[Grant] = []
        """To be assigned with the next turn."""
        self._faulty: list[tuple[Grant, GrantFailure]] = []
        """Behind the records that are still queued the client has an error, and which."""
        self._settling: list[Grant] = []
        """Stopped, and what they have left is on its way."""
        self._advanced_at = 0

    @property
    def drained(self) -> bool:
        """Whether nothing is left to do, and everything has been reported. Caller: the loop."""
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
        """Stop these grants. Reports those of which nothing is in hand, or on its way, before it returns; the others
        are reported when that is over.

        A grant that has ended by itself meanwhile was reported then, and is passed over. `lost`: their next owner may
        have begun.
        """
        with self._lock:
            grants = [grant for number in numbers if (grant := self._grants.get(number)) is not None]
            for grant in grants if lost else ():
                self._lose(grant)
            self._stop(grants)

    def drain(self) -> None:
        """Stop everything; `drained` comes true when the last report is sent."""
        with self._lock:
            self._stop(list(self._grants.values()))
            self.draining = True

    def in_hand(self, now: int) -> InHand | None:
        """What is in hand for the longest, and how many records are in all, for Pong."""
        with self._lock:
            held = [(flight, each.mirror) for each in self._grants.values() if (flight := each.tracker.oldest)]
            if not held:
                return None
            first, mirror = min(held, key=lambda each: each[0].since_ns)
            age = max(0.0, (now - first.since_ns) / NANOSECONDS)
            count = len(first.messages) if first.tracker.slots.runs else self._scheduler.in_flight
            return InHand(first.tp.topic, first.tp.partition, mirror.in_hand(first), count, age)

    def in_flight(self) -> int:
        """Number of records that calls of handlers have right now; of fast ones, which are taken in hand many at once
        and handled one after the other, one.
        """
        with self._lock:
            running = [flight for each in self._grants.values() for flight in each.tracker.running]
            return sum(len(flight.messages) if flight.tracker.slots.bounds else 1 for flight in running)

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """Some of the partitions of which a record waits, and the count of all by what they wait for."""
        with self._lock:
            shut = self._shut(now_ns()) if self._gated else {}
            every = [waits for each in self._grants.values() if (waits := _waiting(each, shut)) is not None]
            told, count = every[:PARKED_TOLD], dict(Counter(each.waits_for for each in every))
        if (why := self._deliveries.late()) is None:
            return told, count
        with self._lock:
            late = [n for n, each in self._grants.items() if each.tracker.sending and _waiting(each, {}) is None]
        told += [Parked(number, "delivery", why) for number in islice(late, PARKED_TOLD - len(told))]
        return told, {**count, "delivery": len(late)} if late else count

    def broken_circuits(self) -> dict[str, int]:
        """Number of partitions by topic whose handler's circuit breaker is not closed."""
        if not self._gated:
            return {}
        with self._lock:
            gated = ((each.tp.topic, each.tracker.slots.gate) for each in self._grants.values())
            return dict(Counter(topic for topic, gate in gated if gate is not None and gate.broken))

    def overdue(self, number: int, offset: int, overdue_ns: int) -> list[InFlight]:
        """The records of that grant that handlers have in hand: that at the offset, and all that were begun at
        `overdue_ns` or earlier. Those besides the one that was named are counted here."""
        with self._lock:
            if (grant := self._grants.get(number)) is None:
                return []
            running = grant.tracker.running
            found = [flight for flight in running if flight.has(offset) or flight.since_ns <= overdue_ns]
            if others := sum(not flight.has(offset) for flight in found):
                self._counters.count(c.HANDLER_TIMEOUTS, others, grant.tp.topic)
            return found

    # -- loop: the client ----------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """Assign and unassign at the client: the last turn is over, and all that it has given out is taken in."""
        due = now - self._advanced_at >= _ADVANCE_NS
        if not (due or self._client.leaving or self._waiting):
            return
        self._client.learn([grant.tp.topic for grant in self._waiting.copy()])
        with self._lock:
            if due:
                self._advanced_at = now
                self._advance()
            self._client.unassign()
            waiting, self._waiting = self._waiting, []
            wanted = [g for g in waiting if g.number in self._grants and g.state is GrantState.WAITING]
            known, refusal = self._client.assign(wanted, now)
            self._waiting += known
            if refusal is not None:
                for grant in wanted:
                    if grant not in known:
                        self._refuse(grant, refusal)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """See `ClientAssignment`; of those that are fetched."""
        self._client.pause({tp for tp in partitions if self.fetching(tp) is not None})

    def resume(self) -> None:
        """See `ClientAssignment`."""
        self._client.resume()

    @property
    def paused(self) -> bool:
        """Whether the client gives out nothing of some partitions."""
        return bool(self._client.paused)

    @property
    def came_at(self) -> int:
        """See `ClientAssignment`."""
        return self._client.came_at

    def fetching(self, tp: TopicPartition) -> Grant | None:
        """The partition's grant, if it is one of which records may be taken in."""
        grant = self._by_partition.get(tp)
        return grant if grant is not None and grant.state is GrantState.FETCHING else None

    def delay(self, tp: TopicPartition, why: str) -> Grant | None:
        """Stop fetching the partition, whose next record waits for its time in a retry topic, until `end_delay`."""
        with self._lock:
            if (grant := self.fetching(tp)) is None:
                return None
            grant.state, grant.waits_for, grant.why = GrantState.DELAYED, "delay", why
            self._client.leave(grant)
            return grant

    def end_delay(self, grant: Grant) -> None:
        """Fetch a delayed partition again; does nothing where the delay ended otherwise."""
        with self._lock:
            if grant.number in self._grants and grant.state is GrantState.DELAYED:
                grant.state = GrantState.WAITING
                self._waiting.append(grant)

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """End the partition's grant once what was fetched before the error is handled, or else a partition of which
        each fetch ends with one would never get on. The client reports it once, in place of records, and would be
        silent from here on; what it says behind a damaged batch names nothing that is there.
        """
        with self._lock:
            if (grant := self.fetching(tp)) is not None:
                self._client.leave(grant)
                grant.state = GrantState.ASIDE
                self._scheduler.fill_no_more(grant.tracker)
                self._faulty.append((grant, GrantFailure(kind, error)))

    # -- loop: what is kept --------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether so much is kept that nothing more is to be fetched."""
        return self._backpressure.full

    @property
    def bytes(self) -> int:
        """Bytes of all records that wait for a free slot, and not for a fuller batch."""
        return self._scheduler.waiting_bytes

    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions of which a record waits for a free slot."""
        with self._lock:
            return [each.tp for each in self._grants.values() if each.tracker.bytes]

    def feed(self, tp: TopicPartition, epoch: int, messages: Run, now: int) -> int:
        """Take in fetched messages, without those of partitions that have been stopped; about how many bytes these
        take."""
        if self._slots_of(tp.topic).runs:
            return self._feed_run(tp, epoch, messages, now)
        parts = range(0, len(messages), _FED_AT_ONCE)
        return sum(self._feed(tp, epoch, messages[first : first + _FED_AT_ONCE]) for first in parts)

    def _feed_run(self, tp: TopicPartition, epoch: int, messages: Run, now: int) -> int:
        with self._lock:
            if not messages or (grant := self.fetching(tp)) is None:
                return 0
            nbytes = kept_bytes(messages)
            self._scheduler.arrive_run(grant.tracker, epoch, messages, nbytes, now)
            return nbytes

    def _feed(self, tp: TopicPartition, epoch: int, messages: Sequence[Message]) -> int:
        with self._lock:
            if (grant := self.fetching(tp)) is None:
                return 0
            scheduler, tracker, nbytes = self._scheduler, grant.tracker, 0
            headers = headers_bytes(messages[0])
            for message in messages:
                offset, key = offset_of(message), message.key()
                size = record_bytes(key, len(message), headers)
                nbytes += size
                flight = scheduler.arrive(tracker, offset, epoch, key, message, size)
                if flight is not None and tracker.poison is not None and tracker.meets_poison(flight):
                    flight.poison, flight.poison_deaths = tracker.poison.why, tracker.poison.deaths
            grant.mirror.store()
            return nbytes

    def balance(self, now: int) -> None:
        """Set aside a partition that fills all there is and cannot go on; take up again those that were. End those of
        which nothing is left before their error; start batches that have waited long enough."""
        with self._lock:
            self._end_faulty()
            if self._settling:
                self._end_settling()
            for slots in self._batching:
                self._scheduler.ripen(slots, now)
            if self.full and (grant := self._backpressure.set_aside(self._grants.values())) is not None:
                self._client.leave(grant)
            self._waiting += self._backpressure.fetched_again(len(self._grants))

    def to_be_given_up(self) -> list[InFlight]:
        """Records in hand of grants that are to end, where they are not handled by the loop's own thread."""
        with self._lock:
            ending = (each.tracker for each in self._grants.values() if each.state is GrantState.STOPPING)
            return [flight for tracker in ending if not tracker.slots.runs for flight in tracker.running]

    # -- executors ---------------------------------------------------------------------------------------------------

    def start_next(self, slots: Slots) -> InFlight | None:
        """Put the next records in hand; None if there are none, or membership is not certain."""
        with self._lock:
            return self._start(slots, now_ns())

    def start_beside(self, slots: Slots, records: int, nbytes: int) -> InFlight | None:
        """Put another partition's next records in hand for a call that has some already, so many at most and with so
        many bytes of values; None if there are none that may be beside others."""
        with self._lock:
            now = now_ns()
            # A handler whose circuit is about to be tried is called with one record.
            if now > self.ledger.lease_ns or (slots.gate is not None and slots.gate.room(now) < records):
                return None
            flight = self._scheduler.start_beside(slots, now, records, nbytes)
            if flight is not None:
                self._grants[flight.tracker.grant].mirror.taken(flight)
                if slots.gate is not None:
                    slots.gate.took_beside(flight, now)
            return flight

    def startable(self, slots: Slots) -> bool:
        """Whether there are records for another free slot. Not locked: a wrong answer costs one look too many."""
        if not self._scheduler.startable(slots) or self.ledger.lease_ns < now_ns() or not self._deliveries.room():
            return False
        return slots.gate is None or slots.gate.room(now_ns()) > 0

    @property
    def held_up(self) -> bool:
        """Whether what is queued may wait for what is on its way to the brokers."""
        return self._scheduler.bytes > 0 and self._scheduler.on_their_way > 0

    def patience(self, now: int, longest: float) -> float:
        """Seconds until the first batch has waited long enough, or a handler's gate may open, at most `longest`."""
        for slots in self._gated:
            if slots.gate is not None:
                longest = slots.gate.patience(now, longest)
        for slots in self._batching:
            with self._lock:
                first = self._scheduler.filling_since(slots)
            if first is not None and slots.bounds is not None:
                longest = min(longest, max(0.0, (first + slots.bounds.wait_ns - now) / NANOSECONDS))
        return longest

    def finish(self, flight: InFlight) -> InFlight | None:
        """Note that the handler is done with the record; the next record for the slot that this frees."""
        with self._lock:
            now = now_ns()
            self._took(flight, 1, now - flight.since_ns, 1)
            self._finish(flight)
            return self._start(flight.tracker.slots, now)

    def returned(
        self, flight: InFlight, finished: int, nanoseconds: int, calls: int, ahead: Collection[int] = ()
    ) -> None:
        """Note that calls of the handler have handled so many records of a run; the others are queued again, but for
        those that are done `ahead` of some that are not."""
        with self._lock:
            self._took(flight, finished, nanoseconds, calls)
            if ahead:
                self._note_done(flight.tracker, ahead)
            if not finished or self._scheduler.overtaken(flight):
                self._put_back(flight)
            else:
                if finished < len(flight.messages):
                    rest = self._scheduler.split(flight, finished)
                    if (gate := flight.tracker.slots.gate) is not None:
                        gate.unused(rest.messages, now_ns())
                self._finish(flight)
            if ahead and flight.tracker.lanes:
                self._scheduler.drop_done(flight.tracker)

    def _note_done(self, tracker: OffsetTracker, ahead: Collection[int]) -> None:
        new = self._scheduler.note_done(tracker, ahead)
        self._counters.finished(tracker.tp.topic, new, 0, 0)
        if (grant := self._grants.get(tracker.grant)) is not None:
            grant.mirror.handled(new)

    def failed(self, flight: InFlight, finished: int, took_ns: int, some: OfSome) -> InFlight | None:
        """Note that of a run so many records are handled, and that those behind them have failed together that `some`
        says: these, in hand. None: all of it is to be handled again.
        """
        with self._lock:
            calls = finished if flight.tracker.slots.bounds is None else 0
            share = took_ns // (calls + 1)
            self._took(flight, finished, took_ns - share, calls)
            if self._scheduler.overtaken(flight):
                self._put_back(flight)
                return None
            rest = self._scheduler.split(flight, finished) if finished else flight
            if some.ahead:
                self._note_done(rest.tracker, some.ahead)
                rest.messages = joined([rest.messages[:1], rest.tracker.without_done(rest.messages[1:])])
            if some.count < len(rest.messages):
                behind = self._scheduler.split(rest, some.count)
                if (gate := flight.tracker.slots.gate) is not None and flight.tracker.slots.bounds is None:
                    gate.unused(behind.messages, now_ns())
                self._scheduler.decide(behind, some.decided)
            if finished:
                now = now_ns()
                self._scheduler.claim(rest, now - share)
                self._finish(flight)
                self._grants[rest.tracker.grant].mirror.taken(rest)
            else:
                rest.withdraw()
            return rest

    # -- senders' threads ----------------------------------------------------------------------------------------------

    def delivered(self, reached: Mapping[int, int]) -> None:
        """Count these records as done: their outputs have arrived. Where the rest of a run is refused, `rewind`
        follows."""
        with self._lock:
            for flight in self._deliveries.arrived(reached):
                self._done(flight)
        self._told.wake()

    def rewind(self, refusals: Mapping[int, int]) -> None:
        """Have these records fail: their outputs are refused. What came behind them in their lanes is handled again."""
        failed = []
        with self._lock:
            for flight in self._deliveries.refused(refusals):
                for recalled in self._scheduler.recall(flight):
                    self._deliveries.forget(recalled)
                    self._grants[recalled.tracker.grant].mirror.left(recalled)
                    recalled.withdraw()
                    recalled.refusal = None
                if (refused := self._refused(flight)) is not None:
                    failed.append(refused)
        self.interrupts.request()
        for flight in failed:
            assert flight.refusal is not None
            self._told.fail(flight, flight.refusal)

    def places(self, batch: OutputBatch, live: Sequence[Entry]) -> list[ClientPartition]:
        """See `transactions.Table`. Those before it that are not delivered yet count as done: their transactions are
        committed before this one, or this one is aborted with them."""
        with self._lock:
            return places_of((before.entries for before in batch.all_before()), live)

    # -- what failed -------------------------------------------------------------------------------------------------

    def park(self, attempt: Attempt, waits_for: str, why: str) -> bool:
        """Have these records wait, for the next try or for their letters, and their lane with them, while all else goes
        on; False if that was their grant's end.
        """
        flight = attempt.flight
        with self._lock:
            self._count_failure(attempt, retried=waits_for == "retry", failed=waits_for != "wait")
            if waits_for == "wait":
                self._counters.count(c.WAITS, 1, flight.tp.topic)
            self._scheduler.wait(flight, waits_for, why)
            return self._left_hands(flight)

    def held(self) -> Iterable[tuple[InFlight, int]]:
        """Records that wait before their first try since the last time, and until when (nanoseconds)."""
        while self._held:
            yield self._held.popleft()

    def begin_again(self, flight: InFlight, now: int) -> bool:
        """Take waiting records that are about to be ended; False if their grant has ended since."""
        with self._lock:
            if not flight.held:
                return False
            self._scheduler.claim(flight, now)
            self._grants[flight.tracker.grant].mirror.taken(flight)
            return True

    def try_again(self, flight: InFlight) -> None:
        """Make the records their lane's next: their wait is over."""
        with self._lock:
            if flight.held:
                self._scheduler.queue_again(flight)

    def overtaken(self, flight: InFlight) -> bool:
        """Whether one of its lane that was refused comes before it now: it is put back, whatever its handler did."""
        return self._scheduler.overtaken(flight)

    def put_back(self, flight: InFlight) -> None:
        """Have the records handled again: the handler was interrupted, or worked too early."""
        with self._lock:
            self._put_back(flight)

    def pass_over(self, attempt: Attempt, end: End, label: str | None) -> bool:
        """Count these records as done, without the handler's return, once their letters (if any) have arrived; False if
        that was the grant's end.
        """
        flight = attempt.flight
        with self._lock:
            self._count_failure(attempt, retried=False, failed=end is not End.DONE)
            flight.passed_over = end, label
            return self._finish(flight)

    def give_up(self, attempt: Attempt, error: str) -> None:
        """End the grant before these records, which cannot be handled and may not be passed over; what else is in hand
        of their partition is waited for."""
        flight = attempt.flight
        with self._lock:
            self._count_failure(attempt, retried=False)
            self._scheduler.queue_again(flight)
            grant = self._grants[flight.tracker.grant]
            self._end(grant, GrantFailure(FailureKind.HANDLER, error, flight.offset))
            self._left_hands(flight)

    # -- under the lock: grants ----------------------------------------------------------------------------------------

    def _open(self, start: FetcherStart) -> Grant:
        tp, slots = TopicPartition(start.topic, start.partition), self._slots_of(start.topic)
        if slots.bounds is not None and slots.bounds.wait_ns and slots not in self._batching:
            self._batching.append(slots)
        if slots.gate is not None and slots not in self._gated:
            self._gated.append(slots)
        tracker = OffsetTracker(tp, start.grant, slots, start.offset, start.leader_epoch)
        tracker.done_before = set(bitmap.read(start.offset, start.done))
        tracker.placed, tracker.began_with = start.offset, start.began_with
        # What has waited in a retry topic waits for no fuller batch: putting the rest off would let go of it.
        tracker.waits = start.topic not in self.settings.delays
        if slots.runs:
            # Records that killed a worker are handled one by one, whatever way of calling it had.
            last = max(start.suspects, default=NO_OFFSET)
            tracker.alone_until = max(start.singly_until, last + 1 if last != NO_OFFSET else NO_OFFSET)
        else:
            tracker.suspects, tracker.alone_until = frozenset(start.suspects), start.singly_until
        if start.poison:
            offset = start.offset if start.poison_offset == NO_OFFSET else start.poison_offset
            tracker.poison = Poison(offset, start.poison, start.poison_deaths)
        mirror: Mirror
        if slots.runs:
            mirror = RunMirror(tracker, self.ledger, start.slot, delivers=self._deliveries.runs_go_on)
            tracker.cell = mirror.progress
        else:
            mirror = MarkedMirror(tracker, self.ledger, start.slot)
        return Grant(start.grant, tp, tracker, mirror)

    def _final(self, grant: Grant) -> Stopped:
        """Final progress under this grant."""
        consumed = grant.mirror.consumed
        done = bitmap.written(consumed.offset, frozenset(grant.tracker.done_ahead()))
        return Stopped(grant.number, consumed.offset, consumed.leader_epoch, done)

    def _stop(self, grants: list[Grant]) -> None:
        reports = []
        for grant in grants:
            self._client.leave(grant)
            self._scheduler.close(grant.tracker)
            self._leave_letters(grant)
            if grant.busy:
                grant.state = GrantState.STOPPING
                self.interrupts.request()
                if grant.tracker.sending:
                    self._deliveries.hurry()
                    self._settling.append(grant)
            else:
                reports.append(self._final(grant))
                self._forget(grant)
        if reports:
            self._report(FetcherStopped(reports))

    def _leave_letters(self, grant: Grant) -> None:
        """Wait no more for letters that do not arrive, where nothing else is sent: their records are not done, and the
        partition's next owner begins with them."""
        if self._deliveries.only_letters:
            since = now_ns() - _LETTER_NS
            if any(flight.since_ns < since for flight in grant.tracker.sending):
                self._lose(grant)

    def _end_settling(self) -> None:
        for grant in self._settling:
            if grant.number in self._grants:
                self._leave_letters(grant)
                self._conclude(grant)
        self._settling = [grant for grant in self._settling if grant.number in self._grants]

    def _lose(self, grant: Grant) -> None:
        """What it has left is delivered no more: its next owner may have begun."""
        grant.tracker.discarded = True
        for flight in list(grant.tracker.sending):
            self._deliveries.forget(flight)
            self._scheduler.arrived(flight)

    def _end(self, grant: Grant, failure: GrantFailure) -> None:
        """Have the grant end with this failure, once nothing of it is in hand."""
        self._client.leave(grant)
        self._scheduler.close(grant.tracker)
        if grant.state is not GrantState.STOPPING:
            grant.state, grant.failure = GrantState.STOPPING, failure
        if grant.tracker.sending:
            self._deliveries.hurry()

    def _refuse(self, grant: Grant, error: KafkaException) -> None:
        report = refused(grant.tp, self._final(grant), error)
        self._end(grant, GrantFailure(report.kind, report.error))
        self._conclude(grant)

    def _conclude(self, grant: Grant) -> bool:
        """Report a grant that is to end once nothing of it is in hand, or on its way."""
        if grant.state is not GrantState.STOPPING or grant.busy:
            return False
        final = self._final(grant)
        self._forget(grant)
        if grant.failure is None:
            self._report(FetcherStopped([final]))
        else:
            kind, error = grant.failure.kind, grant.failure.told(final.offset)
            self._report(Failed(grant.number, kind, final.offset, final.leader_epoch, error, final.done))
        return True

    def _forget(self, grant: Grant) -> None:
        """Remove the grant from the table."""
        self._scheduler.close(grant.tracker)
        # What a record that was interrupted has left must not count under the next grant.
        grant.tracker.discarded = True
        del self._grants[grant.number]
        if self._by_partition.get(grant.tp) is grant:
            del self._by_partition[grant.tp]

    def _end_faulty(self) -> None:
        left = []
        for grant, failure in self._faulty:
            if grant.number not in self._grants or grant.state is not GrantState.ASIDE:
                continue  # It has ended, or is to end, otherwise.
            if grant.tracker.bytes or grant.tracker.waiting:
                left.append((grant, failure))
            else:
                self._end(grant, failure)
                self._conclude(grant)
        self._faulty = left

    # -- under the lock: records ---------------------------------------------------------------------------------------

    def _start(self, slots: Slots, now: int) -> InFlight | None:
        if now > self.ledger.lease_ns or not (room := self._deliveries.room()):
            return None
        if slots.gate is not None and not (room := min(room, slots.gate.room(now))):
            return None
        flight = self._scheduler.start(slots, now, room)
        while flight is not None and slots.gate is not None and not self._admitted(slots.gate, flight, now):
            flight = self._scheduler.start(slots, now, room)
        if flight is not None:
            self._grants[flight.tracker.grant].mirror.taken(flight)
            if slots.gate is not None:
                slots.gate.took(flight, now)
        return flight

    def _admitted(self, gate: Gate, flight: InFlight, now: int) -> bool:
        """Whether records that were about to start may: as many as the gate says, or else all of them wait."""
        if not (count := gate.admitted(flight, now)):
            held = gate.hold(flight, now)
            self._scheduler.wait(flight, held.waits_for, held.why)
            self._held.append((flight, held.until))
            return False
        if count < len(flight.messages):
            self._scheduler.split(flight, count)
        return True

    def _shut(self, now: int) -> Mapping[Slots, Shut]:
        """Handlers whose gate is shut, and why."""
        found = ((slots, slots.gate.shut(now)) for slots in self._gated if slots.gate is not None)
        return {slots: shut for slots, shut in found if shut is not None}

    def _advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones; only
        where nothing that was fetched is unfinished and in memory."""
        every = (grant for grant in self._grants.values() if grant.state is GrantState.FETCHING)
        idle = [grant for grant in every if not grant.tracker.bytes and not grant.tracker.running]
        for grant, position in self._client.positions(idle):
            # What lies behind a stop was fetched and dropped: it is not consumed, and must not be committed.
            offset = min(position.offset, self.stops.get(grant.tp, position.offset))
            self._pass_by(grant, offset, position.leader_epoch)

    def _pass_by(self, grant: Grant, position: int, epoch: int) -> None:
        """Move on to `position`: nothing before it is left to come."""
        tracker = grant.tracker
        if self._deliveries.follows_commits:
            tracker.pass_deleted(position)
            if not tracker.order and max(tracker.consumed, position) > tracker.placed:
                flight = self._scheduler.stand_in(tracker, max(tracker.consumed, position), epoch)
                self._deliveries.put(flight)
            return
        self._scheduler.pass_by(tracker, position)
        if not tracker.order and epoch != NO_EPOCH:
            tracker.epoch = epoch
        grant.mirror.store()

    def _finish(self, flight: InFlight) -> bool:
        """Note that the records have been handled; False if that was their grant's end."""
        if self._scheduler.overtaken(flight):
            return self._put_back(flight)
        if not self._deliveries.wanted(flight):
            return self._done(flight)
        if flight.tracker.discarded:
            return self._put_back(flight)
        grant = self._grants[flight.tracker.grant]
        self._scheduler.send(flight, lane_waits=self._deliveries.lane_waits(flight))
        flight.since_ns = now_ns()
        grant.mirror.returned(flight)
        self._deliveries.put(flight)
        if grant.state is GrantState.STOPPING or self._scheduler.holds_back:
            self._deliveries.hurry()
        return True

    def _done(self, flight: InFlight) -> bool:
        grant, records = self._grants[flight.tracker.grant], len(flight.messages)
        handled = records
        if flight.passed_over is not None:
            self._counters.passed_over(flight.tp.topic, records, *flight.passed_over)
            handled = records if flight.passed_over[0] is End.DONE else 0
        moved = self._scheduler.finish(flight)
        if records:
            grant.mirror.done(flight, handled, moved=moved)
        else:
            grant.mirror.store()  # It stood for offsets without a record.
        return not self._conclude(grant)

    def _put_back(self, flight: InFlight) -> bool:
        if (gate := flight.tracker.slots.gate) is not None:
            gate.withdrawn(flight)
            gate.unused(flight.messages, now_ns())
        flight.withdraw()
        self._scheduler.queue_again(flight)
        return self._left_hands(flight)

    def _left_hands(self, flight: InFlight) -> bool:
        """Note that the handler has returned from records that are not done; False if that was their grant's end."""
        grant = self._grants[flight.tracker.grant]
        grant.mirror.left(flight)
        return not self._conclude(grant)

    def _refused(self, flight: InFlight) -> InFlight | None:
        """The first record whose output is refused, of those on their way, in hand; what comes before it is delivered.
        None: nobody knows which it was, and all are handled again."""
        delivered = len(before(flight.messages, flight.lane.refused_at))
        refusal, rest = flight.refusal, flight
        grant = self._grants[flight.tracker.grant]
        if delivered:
            rest = self._scheduler.split(flight, delivered)
        else:
            self._scheduler.take_back(flight)
            flight.withdraw()
        failed = self._scheduler.fail_first(rest, now_ns())
        rest.refusal = None if failed is None else refusal
        # Only now: a grant that is to end does so with the last of its records.
        if delivered:
            self._done(flight)
        else:
            grant.mirror.left(flight)
        if failed is not None:
            grant.mirror.taken(failed)
        elif flight is rest:
            self._conclude(grant)
        return failed

    def _took(self, flight: InFlight, records: int, nanoseconds: int, calls: int) -> None:
        self._counters.finished(flight.tp.topic, records, nanoseconds, calls)
        if (gate := flight.tracker.slots.gate) is not None and records and calls:
            gate.succeeded(flight, calls, now_ns())
        self._grants[flight.tracker.grant].mirror.took(nanoseconds)

    def _count_failure(self, attempt: Attempt, *, retried: bool, failed: bool = True) -> None:
        self._took(attempt.flight, 0, attempt.nanoseconds, attempt.calls)
        if attempt.calls and failed:
            self._counters.failed(attempt.flight.tp.topic, retried=retried)


def _waiting(grant: Grant, shut: Mapping[Slots, Shut]) -> Parked | None:
    """What a record of the partition waits for, if one does. `shut`: handlers whose gate is shut."""
    if grant.tracker.bytes and (gate := shut.get(grant.tracker.slots)) is not None:
        return Parked(grant.number, gate.waits_for, gate.why)
    if (flight := next(iter(grant.tracker.waiting), None)) is not None:
        return Parked(grant.number, flight.waits_for, flight.why)
    if grant.state is GrantState.DELAYED:
        return Parked(grant.number, grant.waits_for, grant.why)
    for flight in grant.tracker.sending:
        if flight.given_up is not None:
            destination = flight.given_up.destination
            what = f"the {destination.kind} {destination.topic!r}: it is not acknowledged yet"
            return Parked(grant.number, destination.end.value, f"offset {flight.offset} waits for {what}")
    return None
