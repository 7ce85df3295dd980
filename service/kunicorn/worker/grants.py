"""Open grants of a worker, from StartFetcher to the final report: what the client is assigned of them, and how each one
ends.

1. Every caller holds the table's lock (`worker.partitions`), but for `Grants.learn_topics`. Nothing here blocks but for
   the client's own calls between turns.
2. Reports are sent under the lock: what is said is in the order in which it happened. A grant that ends is reported
   when nothing of it is in hand, or on its way to the brokers, any more (`Grants.conclude`).
3. The consumed offset follows librdkafka's position only where nothing that was fetched is unfinished (`advance`). That
   position survives an unassign for a moment (`rktp_app_pos` is reset by another thread), and would skip records of an
   assignment further back: a partition is assigned only once the client has forgotten where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from confluent_kafka import KafkaException

from kunicorn.ipc import bitmap
from kunicorn.ipc.clock import NANOSECONDS, now_ns
from kunicorn.ipc.ledger import Ledger
from kunicorn.ipc.messages import Failed, FailureKind, FetcherStart, FetcherStopped, FromWorker, Stopped
from kunicorn.positions import NO_EPOCH, NO_OFFSET, TopicPartition
from kunicorn.worker.delivery import Deliveries
from kunicorn.worker.fetching.assignment import ClientAssignment
from kunicorn.worker.fetching.client import Client
from kunicorn.worker.fetching.fetched import no_start, refused
from kunicorn.worker.mirror import MarkedMirror, Mirror, RunMirror
from kunicorn.worker.progress import Grant, GrantFailure, GrantState, Interrupts, OffsetTracker, Poison, Slots
from kunicorn.worker.scheduler import Scheduler
from kunicorn.worker.stats import Counters

_LETTER_NS = NANOSECONDS // 5
"""A partition that is stopped waits for letters until they have been under way for so long."""


AT_ONCE = 1000
"""Larger lists of messages fall out of the processor's cache."""


class TableSettings(NamedTuple):
    """Settings that a table needs."""

    ahead_bytes: int
    """So much is kept in memory of what was fetched and is not begun."""
    delays: Mapping[str, int] = {}
    """Milliseconds that records of these topics wait before they are handled; retry topics are listed."""
    gathers: bool = False
    """Some handler takes batches: a partition's records are taken in together."""
    most_at_once: int = AT_ONCE
    """Records that the client is asked for at once."""


class Parts(NamedTuple):
    """Parts that the table is made with."""

    client: Client
    ledger: Ledger
    counters: Counters
    report: Callable[[FromWorker], None]
    """Sends one message to the supervisor."""
    interrupts: Interrupts
    settings: TableSettings


class Grants:
    """Grants that are open, by number and by partition. Changed only under the table's lock."""

    def __init__(
        self, parts: Parts, slots_of: Callable[[str], Slots], scheduler: Scheduler, deliveries: Deliveries
    ) -> None:
        """`slots_of`: the slots of a topic's handler."""
        self.open: dict[int, Grant] = {}
        self.client = ClientAssignment(parts.client)
        self.several_topics = False
        """Records of more than one topic may be in one batch."""
        self.stops: dict[TopicPartition, int] = {}
        """The first offset not to be handled, for partitions that have one; changed by the control thread."""
        self.ended = 0
        """How many have ended."""
        self._parts, self._slots_of = parts, slots_of
        self._scheduler, self._deliveries = scheduler, deliveries
        self._by_partition: dict[TopicPartition, Grant] = {}
        self._topics: set[str] = set()
        """The first two that it had partitions of: topics come and go, and with two there are several."""
        self._waiting: list[Grant] = []
        """To be assigned with the next turn."""
        self._faulty: list[tuple[Grant, GrantFailure]] = []
        """Behind the records that are still queued the client has an error, and which."""
        self._settling: list[Grant] = []
        """Stopped, and something of theirs is in hand or on its way: what fails now may leave a letter, too."""

    # -- beginning ---------------------------------------------------------------------------------------------------

    def begin(self, starts: Iterable[FetcherStart]) -> None:
        """Open these grants' slots at once; fetching starts with the next turn."""
        for start in starts:
            if start.offset < 0:
                self._parts.report(no_start(start))
                continue
            grant = self._opened(start)
            self.open[grant.number] = self._by_partition[grant.tp] = grant
            if len(self._topics) < 2:
                self._topics.add(start.topic)
            self.stops.pop(grant.tp, None)  # That of an earlier grant ended with it.
            if start.stop != NO_OFFSET:
                self.stops[grant.tp] = start.stop
            self._waiting.append(grant)
        self.several_topics = len(self._topics) > 1

    def _opened(self, start: FetcherStart) -> Grant:
        tp, slots = TopicPartition(start.topic, start.partition), self._slots_of(start.topic)
        tracker = OffsetTracker(tp, start.grant, slots, start.offset, start.leader_epoch)
        tracker.done_before = set(bitmap.read(start.offset, start.done))
        tracker.placed, tracker.began_with, tracker.topic_id = start.offset, start.began_with, start.topic_id
        # What has waited in a retry topic waits for no fuller batch: putting the rest off would let go of it.
        tracker.waits = start.topic not in self._parts.settings.delays
        if slots.runs:
            # Records that killed a worker are handled one by one, whatever way of calling it had.
            last = max(start.suspects, default=NO_OFFSET)
            tracker.alone_until = max(start.singly_until, last + 1 if last != NO_OFFSET else NO_OFFSET)
        else:
            tracker.suspects, tracker.alone_until = frozenset(start.suspects), start.singly_until
        tracker.poisons = {each.offset: Poison(each.why, each.deaths) for each in start.more_poison}
        if start.poison:
            tracker.poisons[start.poison_offset] = Poison(start.poison, start.poison_deaths)
        # What is kept from the handler is in no run with others.
        tracker.singly_until = max(tracker.poisons, default=NO_OFFSET) + 1
        mirror: Mirror
        if slots.runs:
            mirror = RunMirror(tracker, self._parts.ledger, start.slot, delivers=self._deliveries.runs_go_on)
            tracker.cell = mirror.progress
        else:
            mirror = MarkedMirror(tracker, self._parts.ledger, start.slot)
        return Grant(start.grant, tp, tracker, mirror)

    # -- fetching ----------------------------------------------------------------------------------------------------

    @property
    def to_follow(self) -> bool:
        """Whether the client is to be told of a change."""
        return bool(self.client.leaving or self._waiting)

    def learn_topics(self) -> None:
        """See `ClientAssignment.learn`; of those that are to be assigned. Not locked."""
        self.client.learn([grant.tp.topic for grant in self._waiting.copy()])

    def follow(self, now: int) -> None:
        """Assign and unassign at the client. Caller: the loop, between turns."""
        self.client.unassign()
        waiting, self._waiting = self._waiting, []
        wanted = [g for g in waiting if g.number in self.open and g.state is GrantState.WAITING]
        known, refusal = self.client.assign(wanted, now)
        self._waiting += known
        if refusal is not None:
            for grant in wanted:
                if grant not in known:
                    self._refuse(grant, refusal)

    def fetching(self, tp: TopicPartition) -> Grant | None:
        """The partition's grant, if it is one of which records may be taken in."""
        grant = self._by_partition.get(tp)
        return grant if grant is not None and grant.state is GrantState.FETCHING else None

    def topic_id(self, tp: TopicPartition) -> str:
        """Which topic of that name the partition is of, by its grant; empty where that is not known."""
        grant = self._by_partition.get(tp)
        return "" if grant is None else grant.tracker.topic_id

    def advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones; only
        where nothing that was fetched is unfinished and in memory."""
        every = (grant for grant in self.open.values() if grant.state is GrantState.FETCHING)
        idle = [each for each in every if not (each.tracker.bytes or each.tracker.running or each.tracker.failed)]
        for grant, position in self.client.positions(idle):
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

    def fetch_again(self, grants: Iterable[Grant]) -> None:
        """Have these assigned with the next turn."""
        self._waiting += grants

    def delay(self, tp: TopicPartition, why: str) -> Grant | None:
        """Stop fetching the partition, whose next record waits for its time, until `end_delay`."""
        if (grant := self.fetching(tp)) is None:
            return None
        grant.state, grant.waits_for, grant.why = GrantState.DELAYED, "delay", why
        self.client.leave(grant)
        return grant

    def end_delay(self, grant: Grant) -> None:
        """Fetch a delayed partition again; does nothing where the delay ended otherwise."""
        if grant.number in self.open and grant.state is GrantState.DELAYED:
            grant.state = GrantState.WAITING
            self._waiting.append(grant)

    # -- ending ------------------------------------------------------------------------------------------------------

    def stop(self, grants: Sequence[Grant]) -> None:
        """Stop these. Reports those of which nothing is in hand, or on its way, before it returns; the others are
        reported when that is over."""
        reports = []
        for grant in grants:
            self.client.leave(grant)
            self._close(grant.tracker)
            self.leave_letters(grant)
            if grant.busy:
                grant.state = GrantState.STOPPING
                self._parts.interrupts.request()
                self._settling.append(grant)
                if grant.tracker.sending:
                    self._deliveries.hurry()
            else:
                reports.append(_final(grant))
                self._forget(grant)
        if reports:
            self._parts.report(FetcherStopped(reports))

    def lose(self, grant: Grant) -> None:
        """What it has left is delivered no more: its next owner may have begun."""
        grant.tracker.discarded = True
        for flight in list(grant.tracker.sending):
            self._deliveries.forget(flight)
            self._scheduler.arrived(flight)

    def end(self, grant: Grant, failure: GrantFailure) -> None:
        """Have the grant end with this failure, once nothing of it is in hand."""
        self.client.leave(grant)
        self._close(grant.tracker)
        if grant.state is not GrantState.STOPPING:
            grant.state, grant.failure = GrantState.STOPPING, failure
        if grant.tracker.sending:
            self._deliveries.hurry()

    def broken(self, tp: TopicPartition, failure: GrantFailure) -> None:
        """End the partition's grant once what was fetched before the client's error is handled. In transactions at
        once where this user may not read the topic: none with its offset is taken, and all others would wait for it.
        """
        if (grant := self.fetching(tp)) is not None:
            if failure.kind is FailureKind.DENIED and self._deliveries.follows_commits:
                self.deny(grant, failure)
                return
            self.client.leave(grant)
            grant.state = GrantState.ASIDE
            self._scheduler.fill_no_more(grant.tracker)
            self._faulty.append((grant, failure))

    def deny(self, grant: Grant, failure: GrantFailure) -> None:
        """End the grant of a partition of which no transaction takes an offset any more, and drop what it has left."""
        self.lose(grant)
        self.end(grant, failure)
        # Also of one that was stopped: a transaction with its offset may be committed yet, which this report says.
        grant.failure = failure
        self.conclude(grant)

    def end_due(self) -> None:
        """End those of which nothing is left before their error, and those that have waited for letters long enough."""
        self._end_faulty()
        if self._settling:
            self._end_settling()

    def conclude(self, grant: Grant) -> bool:
        """Report a grant that is to end once nothing of it is in hand, or on its way; whether that was so."""
        if grant.state is not GrantState.STOPPING or grant.busy:
            return False
        final = _final(grant)
        self._forget(grant)
        if grant.failure is None:
            self._parts.report(FetcherStopped([final]))
        else:
            kind, error = grant.failure.kind, grant.failure.told(final.offset)
            self._parts.report(Failed(grant.number, kind, final.offset, final.leader_epoch, error, final.done))
        return True

    def leave_letters(self, grant: Grant) -> None:
        """Wait no more for letters that do not arrive, once nothing else is on its way: their records are not done, and
        the partition's next owner begins with them."""
        tracker = grant.tracker
        if (tracker.running or tracker.failed) and not tracker.overdue:
            return  # What is in hand would not be done any more, and be handled a second time.
        sending = tracker.sending
        if self._deliveries.letters_apart and all(flight.given_up is not None for flight in sending):
            since = now_ns() - _LETTER_NS
            if any(flight.since_ns < since for flight in sending):
                self.lose(grant)

    def _end_settling(self) -> None:
        for grant in self._settling:
            if grant.number in self.open:
                self.leave_letters(grant)
                self.conclude(grant)
        self._settling = [grant for grant in self._settling if grant.number in self.open]

    def _end_faulty(self) -> None:
        left = []
        for grant, failure in self._faulty:
            if grant.number not in self.open or grant.state is not GrantState.ASIDE:
                continue  # It has ended, or is to end, otherwise.
            # What is in hand or on its way may fail, and is tried again here: elsewhere its tries begin anew.
            if grant.tracker.bytes or grant.tracker.waiting or grant.busy:
                left.append((grant, failure))
            else:
                self.end(grant, failure)
                self.conclude(grant)
        self._faulty = left

    def _refuse(self, grant: Grant, error: KafkaException) -> None:
        report = refused(grant.tp, _final(grant), error)
        self.end(grant, GrantFailure(report.kind, report.error))
        self.conclude(grant)

    def _close(self, tracker: OffsetTracker) -> None:
        if (gate := tracker.slots.gate) is not None:
            # Tokens that were taken in advance, before the records are dropped: these have the keys.
            gate.forgo(chain.from_iterable(lane.queue for lane in tracker.lanes.values()), now_ns())
        self._scheduler.close(tracker)

    def _forget(self, grant: Grant) -> None:
        self._close(grant.tracker)
        # What a record that was interrupted has left must not count under the next grant.
        grant.tracker.discarded = True
        self._scheduler.forget(grant.tracker)
        self.ended += 1
        del self.open[grant.number]
        if self._by_partition.get(grant.tp) is grant:
            del self._by_partition[grant.tp]


def _final(grant: Grant) -> Stopped:
    """Final progress under this grant."""
    consumed = grant.mirror.consumed
    done = bitmap.written(consumed.offset, frozenset(grant.tracker.done_ahead()))
    return Stopped(grant.number, consumed.offset, consumed.leader_epoch, done)
