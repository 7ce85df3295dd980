"""Partitions of a worker: the table of open grants and their records in flight, and its lock.

The table is called by four kinds of threads: the loop feeds it and deals with what failed, executors start and finish
records, senders tell what was delivered, the control thread opens and stops grants. All of it happens under the table's
lock, and none of it blocks but for the client's own calls between turns.

1. Only the loop calls the client. confluent-kafka lets one thread at a time into a consumer, and whoever comes second
   sleeps and looks again: beside a loop that waits in `poll`, a control thread would hardly ever get in.
2. So the control thread changes the table, and that takes effect at once: a record is started only after its grant was
   found open. The client follows at the next turn. A stopped partition may be fetched until then, in vain.
3. A *turn* is from before the client is asked until its batch is taken in. Partitions are assigned and unassigned only
   between turns, so a batch never holds records from before a grant that is fetching.

`worker.grants` has how a grant begins and ends, `worker.scheduler` which record comes next, `worker.delivery` when it
is done; here is what the threads do with them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.call import OfSome, OfUncalled
from kunicorn.handler.messages import Run
from kunicorn.handler.outcome import error_type
from kunicorn.handler.record import offset_of
from kunicorn.handler.retry import End
from kunicorn.handler.rows import before, joined
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.messages import FailureKind, FetcherStart, InHand, Parked
from kunicorn.observe import catalogue as c
from kunicorn.positions import TopicPartition
from kunicorn.worker import pong
from kunicorn.worker.buffering import Backpressure
from kunicorn.worker.delivery import Deliveries, Told, places_of
from kunicorn.worker.fetching.fetched import explained, headers_bytes, kept_bytes
from kunicorn.worker.grants import Grants, Parts
from kunicorn.worker.limits.gate import CIRCUIT_BREAKER, Gate, Gates
from kunicorn.worker.produce.outbox import Entry, OutputBatch
from kunicorn.worker.progress import (
    Attempt,
    Grant,
    GrantFailure,
    GrantState,
    InFlight,
    OffsetTracker,
    Slots,
    Stage,
    record_bytes,
)
from kunicorn.worker.scheduler import Scheduler

_ADVANCE_NS = NANOSECONDS
"""How often positions are asked for: transaction markers and compacted gaps count as lag until then."""
_LONGEST_AT_GATE = 1.0
"""Seconds: its rate may have been changed meanwhile."""
_FED_AT_ONCE = 50
"""So many records are taken in before whoever has handled one gets its turn at the table."""


class Partitions:
    """Table of this worker's open grants and their records. A `DeliveryListener`, by the numbers of records in flight,
    and a `transactions.Table`.
    """

    def __init__(self, parts: Parts, slots_of: Callable[[str], Slots], deliveries: Deliveries, told: Told) -> None:
        """`slots_of`: the slots of a topic's handler. `told`: of outputs that arrived or never will."""
        self.interrupts = parts.interrupts
        self.ledger = parts.ledger
        self.settings = parts.settings
        self.draining = False
        self._client = parts.client
        self._counters, self._slots_of = parts.counters, slots_of
        self._deliveries, self._told = deliveries, told
        self._lock = threading.Lock()
        self._scheduler = Scheduler()
        self._backpressure = Backpressure(self._scheduler, parts.settings.ahead_bytes)
        self._grants = Grants(parts, slots_of, self._scheduler, deliveries)
        self._open: Mapping[int, Grant] = self._grants.open
        self.stops: Mapping[TopicPartition, int] = self._grants.stops
        """See `Grants`."""
        self._batching: list[Slots] = []
        """Those of handlers whose batches wait."""
        self._gates = Gates(self._scheduler)
        self._advanced_at = 0

    @property
    def drained(self) -> bool:
        """Whether nothing is left to do, and everything has been reported. Caller: the loop."""
        if not self.draining or self._open:
            return False
        # The sender's thread forgets a grant and then reports it: a worker that ended in between would not.
        with self._lock:
            return not self._open

    @property
    def ended(self) -> int:
        """Number of grants that have ended. Caller: the loop."""
        return self._grants.ended

    # -- control thread ----------------------------------------------------------------------------------------------

    def start(self, starts: Iterable[FetcherStart]) -> None:
        """Open these grants' slots at once; fetching starts with the next turn."""
        starts = list(starts)
        with self._lock:
            for slots in {self._slots_of(start.topic): None for start in starts}:
                if slots.bounds is not None and slots.bounds.wait_ns and slots not in self._batching:
                    self._batching.append(slots)
                self._gates.add(slots)
            self._grants.begin(starts)

    def stop(self, numbers: Iterable[int], *, lost: bool = False) -> None:
        """Stop these grants. Reports those of which nothing is in hand, or on its way, before it returns; the others
        are reported when that is over.

        A grant that has ended by itself meanwhile was reported then, and is passed over. `lost`: their next owner may
        have begun.
        """
        with self._lock:
            grants = [grant for number in numbers if (grant := self._open.get(number)) is not None]
            for grant in grants if lost else ():
                self._grants.lose(grant)
            self._grants.stop(grants)

    def drain(self) -> None:
        """Stop everything; `drained` comes true when the last report is sent."""
        with self._lock:
            self._grants.stop(list(self._open.values()))
            self.draining = True

    def change_rate(self, gate: Gate, per_second: float, burst: float) -> None:
        """Have the gate's handler go on at another rate, also with records that wait for theirs already."""
        with self._lock:
            self._gates.change_rate(gate, per_second, burst, (each.tracker for each in self._open.values()), now_ns())

    def in_hand(self, now: int) -> InHand | None:
        """See `worker.pong`."""
        with self._lock:
            return pong.in_hand(self._open.values(), self._scheduler.in_flight, now)

    def in_calls(self) -> int:
        """See `worker.pong`."""
        with self._lock:
            return pong.in_calls(self._open.values())

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `worker.pong`."""
        late = self._deliveries.late()
        with self._lock:
            return pong.parked(self._open.values(), self._gates.shut(now_ns()), late)

    def broken_circuits(self) -> dict[str, int]:
        """See `worker.pong`."""
        if not self._gates:
            return {}
        with self._lock:
            return pong.broken_circuits(self._open.values())

    def overdue(self, number: int, offset: int, overdue_ns: int) -> list[InFlight]:
        """The records of that grant that handlers have in hand: that at the offset, and all that were begun at
        `overdue_ns` or earlier. Those besides the one that was named are counted here."""
        with self._lock:
            if (grant := self._open.get(number)) is None:
                return []
            running = grant.tracker.running
            found = [flight for flight in running if flight.has(offset) or flight.since_ns <= overdue_ns]
            if others := sum(not flight.has(offset) for flight in found):
                self._counters.count(c.HANDLER_TIMEOUTS, others, grant.tp.topic)
            return found

    def let_go(self, numbers: Collection[int] | None) -> list[InFlight]:
        """Have these grants (None: all) that are to end do so now, whatever the loop is in: records that have failed,
        and wait for it, are handled again by the partition's next owner. What is left in hand of them.
        """
        with self._lock:
            meant = [each for each in self._open.values() if numbers is None or each.number in numbers]
            ending = [each for each in meant if each.state is GrantState.STOPPING]
            for grant in ending:
                grant.tracker.overdue = True
                for flight in list(grant.tracker.failed):
                    self._put_back_failed(flight)
                if grant.tracker.sending:
                    self._grants.leave_letters(grant)
                    self._grants.conclude(grant)
            return [flight for grant in ending for flight in grant.tracker.running]

    # -- loop: the client ----------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """Assign and unassign at the client: the last turn is over, and all that it has given out is taken in."""
        due = now - self._advanced_at >= _ADVANCE_NS
        if not (due or self._grants.to_follow):
            return
        self._grants.learn_topics()
        with self._lock:
            if due:
                self._advanced_at = now
                self._grants.advance()
            self._grants.follow(now)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """See `ClientAssignment`; of those that are fetched."""
        self._grants.client.pause({tp for tp in partitions if self._grants.fetching(tp) is not None})

    def resume(self) -> None:
        """See `ClientAssignment`."""
        self._grants.client.resume()

    @property
    def paused(self) -> bool:
        """Whether the client gives out nothing of some partitions."""
        return bool(self._grants.client.paused)

    @property
    def came_at(self) -> int:
        """See `ClientAssignment`."""
        return self._grants.client.came_at

    @property
    def several_topics(self) -> bool:
        """See `Grants`."""
        return self._grants.several_topics

    def fetching(self, tp: TopicPartition) -> Grant | None:
        """See `Grants`."""
        return self._grants.fetching(tp)

    def topic_id(self, tp: TopicPartition) -> str:
        """See `Grants`."""
        return self._grants.topic_id(tp)

    def delay(self, tp: TopicPartition, why: str) -> Grant | None:
        """See `Grants`."""
        with self._lock:
            return self._grants.delay(tp, why)

    def end_delay(self, grant: Grant) -> None:
        """See `Grants`."""
        with self._lock:
            self._grants.end_delay(grant)

    def broken(self, tp: TopicPartition, kind: FailureKind, error: str) -> None:
        """End the partition's grant once what was fetched before the error is handled, or else a partition of which
        each fetch ends with one would never get on. The client reports it once, in place of records, and would be
        silent from here on; what it says behind a damaged batch names nothing that is there.
        """
        with self._lock:
            self._grants.broken(tp, GrantFailure(kind, error))

    # -- loop: what is kept --------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether so much is kept that nothing more is to be fetched."""
        return self._backpressure.full

    @property
    def bytes(self) -> int:
        """See `Backpressure`."""
        return self._backpressure.bytes

    def partitions(self) -> Iterable[TopicPartition]:
        """Partitions of which a record waits for a free slot."""
        with self._lock:
            return [each.tp for each in self._open.values() if each.tracker.bytes]

    def feed(self, tp: TopicPartition, epoch: int, messages: Run, now: int) -> int:
        """Take in fetched messages, without those of partitions that have been stopped; about how many bytes these
        take."""
        if (grant := self._grants.fetching(tp)) is None:
            return 0
        if grant.tracker.slots.runs:
            return self._feed_run(tp, epoch, messages, now)
        parts = range(0, len(messages), _FED_AT_ONCE)
        return sum(self._feed(tp, epoch, messages[first : first + _FED_AT_ONCE]) for first in parts)

    def _feed_run(self, tp: TopicPartition, epoch: int, messages: Run, now: int) -> int:
        with self._lock:
            if not messages or (grant := self._grants.fetching(tp)) is None:
                return 0
            nbytes = kept_bytes(messages)
            self._scheduler.arrive_run(grant.tracker, epoch, messages, nbytes, now)
            return nbytes

    def _feed(self, tp: TopicPartition, epoch: int, messages: Sequence[Message]) -> int:
        with self._lock:
            if (grant := self._grants.fetching(tp)) is None:
                return 0
            scheduler, tracker, nbytes = self._scheduler, grant.tracker, 0
            headers = headers_bytes(messages[0])
            for message in messages:
                offset, key = offset_of(message), message.key()
                size = record_bytes(key, len(message), headers)
                nbytes += size
                flight = scheduler.arrive(tracker, offset, epoch, key, message, size)
                if flight is not None:
                    tracker.look_for_poison(flight)
            grant.mirror.store()
            return nbytes

    def balance(self, now: int) -> None:
        """Set aside partitions that fill all there is and cannot go on; take up again those that were. End those of
        which nothing is left before their error; start batches that have waited long enough. Let no handler wait for a
        suspect of one whose gate is shut. Copy what is kept where it keeps much else in memory."""
        with self._lock:
            self._grants.end_due()
            for flight in self._scheduler.late_letters(now):
                self._open[flight.tracker.grant].mirror.left(flight)
            self._scheduler.put_off_suspects(now)
            for slots in self._batching:
                self._scheduler.ripen(slots, now)
            for grant in self._backpressure.set_aside(self._open.values()):
                self._grants.client.leave(grant)
            self._grants.fetch_again(self._backpressure.fetched_again(len(self._open)))
        if self._backpressure.is_to_copy(self._client.shared_bytes):
            self._copy_out()

    def _copy_out(self) -> None:
        with self._lock:
            trackers = [each.tracker for each in self._open.values()]
        for tracker in trackers:
            # One at a time: whoever has handled a record waits for this.
            with self._lock:
                self._scheduler.copy_out(tracker)
        self._backpressure.copied(self._client.shared_bytes)

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
                self._open[flight.tracker.grant].mirror.taken(flight)
                if slots.gate is not None:
                    slots.gate.took_beside(flight, now)
            return flight

    def startable(self, slots: Slots) -> bool:
        """Whether there are records for another free slot. Not locked: a wrong answer costs one look too many."""
        if not self._scheduler.startable(slots) or self.ledger.lease_ns < now_ns() or not self._deliveries.room():
            return False
        return slots.gate is None or slots.gate.room(now_ns()) > 0

    def opens_in(self, slots: Slots) -> float | None:
        """Seconds after which the handler's gate is to be looked at again; None: no record with a free slot waits for
        that. Not locked, as `startable`."""
        if (gate := slots.gate) is None or not self._scheduler.startable(slots):
            return None
        if gate.room(now := now_ns()):
            return 0.0 if self.startable(slots) else None  # Open by now, or what is in the way is something else.
        return gate.patience(now, _LONGEST_AT_GATE)

    @property
    def held_up(self) -> bool:
        """Whether what is queued may wait for what is on its way to the brokers."""
        return self._scheduler.bytes > 0 and self._scheduler.on_their_way > 0

    def patience(self, now: int, longest: float) -> float:
        """Seconds until the first batch has waited long enough, or a handler's gate may open, at most `longest`."""
        longest = self._gates.patience(now, longest)
        for slots in self._batching:
            with self._lock:
                first = self._scheduler.filling_since(slots)
            if first is not None and slots.bounds is not None:
                longest = min(longest, max(0.0, (first + slots.bounds.wait_ns - now) / NANOSECONDS))
        return longest

    def finish(self, flight: InFlight) -> InFlight | None:
        """Note that the handler is done with the record; the next record for the slot that this frees."""
        with self._lock:
            now, gate = now_ns(), flight.tracker.slots.gate
            if gate is not None:
                gate.succeeded(flight, 1, now)
            if self._scheduler.overtaken(flight) or self._deliveries.wanted(flight):
                self._took(flight, now - flight.since_ns, 1)
                self._finish(flight)
            else:
                # It is counted with its call: that is once a record.
                self._took(flight, now - flight.since_ns, 1, records=1)
                self._done(flight, counted=True)
            return self._start(flight.tracker.slots, now)

    def returned(
        self, flight: InFlight, finished: int, nanoseconds: int, calls: int, ahead: Collection[int] = ()
    ) -> None:
        """Note that calls of the handler have handled so many records of a run; the others are queued again, but for
        those that are done `ahead` of some that are not."""
        with self._lock:
            self._took(flight, nanoseconds, calls)
            self._succeeded(flight, calls if finished else 0, now_ns())
            if ahead:
                self._note_done(flight.tracker, ahead)
            self._uncalled(flight, finished + len(ahead))
            if not finished or self._scheduler.overtaken(flight):
                self._put_back(flight)
            else:
                if finished < len(flight.messages):
                    self._scheduler.split(flight, finished)
                self._finish(flight)
            if ahead and flight.tracker.lanes:
                self._scheduler.drop_done(flight.tracker)

    def _note_done(self, tracker: OffsetTracker, ahead: Collection[int]) -> None:
        new = self._scheduler.note_done(tracker, ahead)
        self._counters.finished(tracker.tp.topic, new, 0, 0)
        if (grant := self._open.get(tracker.grant)) is not None:
            grant.mirror.handled(new)

    def failed(self, flight: InFlight, finished: int, took_ns: int, some: OfSome) -> InFlight | None:
        """Note that of a run so many records are handled, and that those behind them have failed together that `some`
        says: these, in hand. None: all of it is to be handled again.
        """
        with self._lock:
            # Of a batch only that call counts which has done all that it had.
            calls = (
                finished if flight.tracker.slots.bounds is None else int(isinstance(some, OfUncalled) and finished > 0)
            )
            share = took_ns // (calls + 1)
            self._took(flight, took_ns - share, calls)
            self._succeeded(flight, calls, now_ns())
            if self._scheduler.overtaken(flight):
                self._uncalled(flight, finished + some.undone + len(some.ahead))
                self._put_back(flight)
                return None
            rest = self._scheduler.split(flight, finished) if finished else flight
            if some.ahead:
                self._note_done(rest.tracker, some.ahead)
                rest.messages = joined([rest.messages[:1], rest.tracker.without_done(rest.messages[1:])])
            if some.count < len(rest.messages):
                behind = self._scheduler.split(rest, some.count)
                self._uncalled(behind, some.undone - some.count)
                self._scheduler.decide(behind, some.decided)
            if finished:
                now = now_ns()
                if flight.tracker.slots.gate is not None:
                    flight.tracker.slots.gate.goes_on(flight, rest)
                self._scheduler.claim(rest, now - share)
                self._finish(flight)
                self._open[rest.tracker.grant].mirror.taken(rest)
            else:
                rest.withdraw()
            return rest

    def put_down(self, flight: InFlight) -> None:
        """Note that the call with these records has failed: they are out of hand, and the loop is to take them up."""
        with self._lock:
            if flight.tracker.overdue:
                self._put_back_failed(flight)
            else:
                self._scheduler.fail(flight)
                self._open[flight.tracker.grant].mirror.left(flight)

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
                    self._open[recalled.tracker.grant].mirror.left(recalled)
                    recalled.withdraw()
                    recalled.refusal = None
                self._gates.recalled(flight.lane, now_ns())
                if (refused := self._refused(flight)) is not None:
                    failed.append(refused)
        self.interrupts.request()
        for flight in failed:
            assert flight.refusal is not None
            self._told.fail(flight, flight.refusal)

    def places(self, batch: OutputBatch, live: Sequence[Entry], cluster_id: str) -> list[ClientPartition]:
        """See `transactions.Table`. Those before it that are not delivered yet count as done: their transactions are
        committed before this one, or this one is aborted with them."""
        with self._lock:
            return places_of((before.entries for before in batch.all_before()), live, cluster_id)

    def deny(self, topic: str, error: KafkaError) -> None:
        """See `transactions.Table`."""
        with self._lock:
            for grant in [each for each in self._open.values() if each.tp.topic == topic]:
                told = explained(grant.tp, FailureKind.DENIED, error.code(), error.str())
                self._grants.deny(grant, GrantFailure(FailureKind.DENIED, told))
        self._told.wake()

    # -- what failed -------------------------------------------------------------------------------------------------

    def take_up(self, flight: InFlight, now: int) -> bool:
        """Take records whose call has failed, to say what becomes of them; False if they are handled again anyway."""
        with self._lock:
            if flight.stage is not Stage.FAILED:
                return False  # Given up, with their grant.
            if self._scheduler.overtaken(flight):
                self._put_back_failed(flight)
                return False
            self._scheduler.claim(flight, now)
            self._open[flight.tracker.grant].mirror.taken(flight)
            flight.withdraw()
            return True

    def park(self, attempt: Attempt, waits_for: str, why: str) -> bool:
        """Have these records wait, for the next try or for their letters, and their lane with them, while all else goes
        on; False if that was their grant's end, or if they are handled again at once.
        """
        flight = attempt.flight
        with self._lock:
            if self._scheduler.overtaken(flight):
                # A sender has put refused records before them since the loop looked: a run is in no order any more, and
                # the consumed offset would pass it while it waits.
                self._put_back(flight)
                return False
            self._count_failure(attempt, retried=waits_for == "retry", failed=waits_for != "wait")
            if waits_for == "wait":
                self._counters.count(c.WAITS, 1, flight.tp.topic)
            gate = flight.tracker.slots.gate
            if waits_for == CIRCUIT_BREAKER and gate is not None:
                # Rows of the same call, behind another outcome or of another partition: it is no try of theirs either.
                for each in self._open.values():
                    if each.tracker.slots.gate is gate:
                        self._scheduler.undecide(each.tracker, gate.counts)
            self._scheduler.wait(flight, waits_for, why)
            return self._left_hands(flight)

    def failed_together(self, flights: Sequence[InFlight], error: BaseException, took_ns: int) -> None:
        """Note that one call with records of several partitions has failed, and that nobody knows by whose: all of them
        are handled again. It counts as one call, and as no try."""
        topic, gate = flights[0].tp.topic, flights[0].tracker.slots.gate
        with self._lock:
            self._counters.called_in_vain(topic, error_type(error), took_ns, 1)
            self._counters.failed(topic, retried=True)
            if gate is not None:
                gate.failed(flights[0], error, now_ns())
            for flight in flights:
                self._open[flight.tracker.grant].mirror.took(took_ns // len(flights))
                flight.withdraw()
                self._scheduler.queue_again(flight)
                self._left_hands(flight)

    def held(self) -> Iterable[tuple[InFlight, int]]:
        """See `Gates`."""
        return self._gates.held()

    def begin_again(self, flight: InFlight, now: int) -> bool:
        """Take waiting records that are about to be ended; False if their grant has ended since."""
        with self._lock:
            if not flight.held:
                return False
            self._scheduler.claim(flight, now)
            self._open[flight.tracker.grant].mirror.taken(flight)
            return True

    def try_again(self, flight: InFlight) -> None:
        """Make the records their lane's next: their wait is over."""
        with self._lock:
            if flight.held:
                self._scheduler.queue_again(flight)

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
            grant = self._open[flight.tracker.grant]
            self._grants.end(grant, GrantFailure(FailureKind.HANDLER, error, flight.offset))
            self._left_hands(flight)

    # -- under the lock ---------------------------------------------------------------------------------------

    def _start(self, slots: Slots, now: int) -> InFlight | None:
        if now > self.ledger.lease_ns or not (room := self._deliveries.room()):
            return None
        if slots.gate is not None and not (room := min(room, slots.gate.room(now))):
            return None
        flight = self._scheduler.start(slots, now, room)
        while flight is not None and slots.gate is not None and not self._gates.admitted(slots.gate, flight, now):
            flight = self._scheduler.start(slots, now, room)
        if flight is not None:
            self._open[flight.tracker.grant].mirror.taken(flight)
            if slots.gate is not None:
                slots.gate.took(flight, now)
        return flight

    def _finish(self, flight: InFlight) -> bool:
        """Note that the records have been handled; False if that was their grant's end."""
        if self._scheduler.overtaken(flight):
            return self._put_back(flight)
        if not self._deliveries.wanted(flight):
            return self._done(flight)
        if flight.tracker.discarded:
            return self._put_back(flight)
        grant = self._open[flight.tracker.grant]
        flight.since_ns = now_ns()
        self._scheduler.send(flight, lane_waits=self._deliveries.lane_waits(flight))
        grant.mirror.returned(flight)
        self._deliveries.put(flight)
        if grant.state is GrantState.STOPPING or self._scheduler.holds_back:
            self._deliveries.hurry()
        return True

    def _done(self, flight: InFlight, *, counted: bool = False) -> bool:
        """Note that nothing is left to do for the records; False if that was their grant's end. `counted`: they are
        among those handled."""
        grant, records = self._open[flight.tracker.grant], len(flight.messages)
        handled = records
        if flight.passed_over is not None:
            self._counters.passed_over(flight.tp.topic, records, *flight.passed_over)
            handled = records if flight.passed_over[0] is End.DONE else 0
        elif records and not counted:
            self._counters.finished(flight.tp.topic, records, 0, 0)
        moved = self._scheduler.finish(flight)
        if records:
            grant.mirror.done(flight, handled, moved=moved)
        else:
            grant.mirror.store()  # It stood for offsets without a record.
        return not self._grants.conclude(grant)

    def _uncalled(self, flight: InFlight, called: int) -> None:
        """Note that the handler did not get to the records behind so many."""
        if (gate := flight.tracker.slots.gate) is not None and called < len(flight.messages):
            gate.unused(flight.messages[called:], now_ns())

    def _put_back_failed(self, flight: InFlight) -> None:
        """Have records handled again that have failed, before the loop has said what becomes of them."""
        if (gate := flight.tracker.slots.gate) is not None and (flight.poison or flight.decided is not None):
            gate.uncalled(flight, now_ns())
        self._put_back(flight)

    def _put_back(self, flight: InFlight) -> bool:
        if (gate := flight.tracker.slots.gate) is not None:
            gate.withdrawn(flight)
        flight.withdraw()
        self._scheduler.queue_again(flight)
        return self._left_hands(flight)

    def _left_hands(self, flight: InFlight) -> bool:
        """Note that the handler has returned from records that are not done; False if that was their grant's end."""
        grant = self._open[flight.tracker.grant]
        grant.mirror.left(flight)
        return not self._grants.conclude(grant)

    def _refused(self, flight: InFlight) -> InFlight | None:
        """The first record whose output is refused, of those on their way, in hand; what comes before it is delivered.
        Records whose letters are refused are in hand together. None: nobody knows which record it was, and all are
        handled again."""
        delivered = len(before(flight.messages, flight.lane.refused_at))
        refusal, rest = flight.refusal, flight
        fail = self._scheduler.fail_first if flight.given_up is None else self._scheduler.fail_whole
        grant = self._open[flight.tracker.grant]
        if delivered:
            rest = self._scheduler.split(flight, delivered)
        else:
            self._scheduler.take_back(flight)
            flight.withdraw()
        failed = fail(rest, now_ns())
        rest.refusal = None if failed is None else refusal
        # Only now: a grant that is to end does so with the last of its records.
        if delivered:
            self._done(flight)
        else:
            grant.mirror.left(flight)
        if failed is not None:
            grant.mirror.taken(failed)
        elif flight is rest:
            self._grants.conclude(grant)
        return failed

    def _took(self, flight: InFlight, nanoseconds: int, calls: int, records: int = 0) -> None:
        """Note what calls took, and how many records are done with them: others may be handled again, and are counted
        when they are done."""
        self._counters.finished(flight.tp.topic, records, nanoseconds, calls)
        self._open[flight.tracker.grant].mirror.took(nanoseconds)

    def _succeeded(self, flight: InFlight, calls: int, now: int) -> None:
        if (gate := flight.tracker.slots.gate) is not None and calls:
            gate.succeeded(flight, calls, now)

    def _count_failure(self, attempt: Attempt, *, retried: bool, failed: bool = True) -> None:
        flight, calls = attempt.flight, attempt.calls
        if calls and attempt.error_type:
            self._counters.called_in_vain(flight.tp.topic, attempt.error_type, attempt.nanoseconds, calls)
            self._open[flight.tracker.grant].mirror.took(attempt.nanoseconds)
        else:
            self._took(flight, attempt.nanoseconds, calls)
        if calls and failed:
            self._counters.failed(flight.tp.topic, retried=retried)
