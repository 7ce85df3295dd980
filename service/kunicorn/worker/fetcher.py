"""The table of grants where records of one partition at a time are in the handler's hands.

See `table.GrantTable` for what it shares with the control thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec
from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handling.calls import following_offsets
from kunicorn.handling.retry import End
from kunicorn.pipes import marks
from kunicorn.pipes.clock import NANOSECONDS
from kunicorn.pipes.ledger import (
    CONSUMED,
    HAND_COUNT,
    HAND_OFFSET,
    HAND_SINCE,
    HANDLED,
    LEADER_EPOCH,
    TIMESTAMP,
)
from kunicorn.pipes.messages import FailureKind, FetcherStart, FetcherStopped, InHand, Parked, Stopped
from kunicorn.topics import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kunicorn.worker.grants import Attempt, Grant, GrantState
from kunicorn.worker.table import PARKED_TOLD, GrantTable, Parts


class Fetcher(GrantTable):
    """See the module's head."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.batches = False
        """Whether a call gets all records that are in hand."""
        self.singly: dict[TopicPartition, int] = {}
        """Up to this offset a batch has one record, for partitions whose batch killed workers."""
        self.alone: dict[TopicPartition, int] = {}
        """Up to this offset a record is delivered before anything else is begun, for partitions of which something
        killed workers in hand or on its way."""
        self._hand: Grant | None = None

    # -- control thread ----------------------------------------------------------------------------------------------

    def in_hand(self, now: int) -> InHand | None:
        """What the handler is busy with."""
        with self._lock:
            if (grant := self._hand) is None:
                return None
            cells, at = self._cells, grant.at
            offset = max(cells[at + HAND_OFFSET], cells[at + CONSUMED])
            age = (now - cells[at + HAND_SINCE]) / NANOSECONDS
            return InHand(grant.tp.topic, grant.tp.partition, offset, cells[at + HAND_COUNT], max(0.0, age))

    def in_flight(self) -> int:
        """Records that a call of the handler has right now; of fast ones, which are taken in hand many at once, one."""
        with self._lock:
            if (grant := self._hand) is None:
                return 0
            return self._cells[grant.at + HAND_COUNT] if self.batches else 1

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """Some of the partitions whose record waits, and how many there are in all, by what they wait for."""
        with self._lock:
            states = (GrantState.PARKED, GrantState.PUT_OFF)
            parked = [grant for grant in self._grants.values() if grant.state in states]
            told = [Parked(grant.number, grant.waits_for, grant.why) for grant in parked[:PARKED_TOLD]]
            return told, dict(Counter(grant.waits_for for grant in parked))

    # -- runner --------------------------------------------------------------------------------------------------------

    def take(
        self, tp: TopicPartition, following: Sequence[int], epoch: int, now: int, timestamp: int = NO_TIMESTAMP
    ) -> Grant | None:
        """Put the records before these offsets in hand; None if they are not ours to handle any more.

        `timestamp`: of the first one, milliseconds since 1970.
        """
        with self._lock:
            grant = self._by_partition.get(tp)
            if grant is None or grant.state is not GrantState.FETCHING:
                return None
            self._take(grant, following, epoch, now)
            self._cells[grant.at + TIMESTAMP] = timestamp
            return grant

    def retake(self, grant: Grant, now: int) -> bool:
        """Put what a parked grant holds in hand again; False if the grant has ended since."""
        with self._lock:
            if grant.state is not GrantState.PARKED or grant.number not in self._grants:
                return False
            epoch = grant.held[0].leader_epoch()
            self._take(grant, following_offsets(grant.held), NO_EPOCH if epoch is None else epoch, now)
            return True

    def release(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> bool:
        """The handler has returned after `finished` records, in so many calls; False if that was the grant's end."""
        with self._lock:
            self._put_down(grant, finished, nanoseconds, calls)
            return not self._ended(grant) and self._go_on(grant)

    def pass_over(self, attempt: Attempt[Grant], end: End, label: str | None) -> bool:
        """These records are done with, though not by the handler's return; False if that was the grant's end."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=False, failed=end is not End.DONE)
            self._meter.passed_over(grant.tp.topic, len(attempt.records), end, label)
            self._done_up_to(grant, attempt.following, len(attempt.records))
            grant.failures = 0
            return not self._ended(grant) and self._go_on(grant)

    def park(self, attempt: Attempt[Grant], waits_for: str, why: str) -> bool:
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

    def give_up(self, attempt: Attempt[Grant], error: str) -> None:
        """These cannot be handled and may not be passed over: the grant ends before them."""
        grant = attempt.grant
        with self._lock:
            self._end_attempt(attempt, retried=False)
            if not self._ended(grant):
                self._fail(grant, FailureKind.HANDLER, attempt.offset, error)

    def spare(self, grant: Grant, offsets: Collection[int]) -> None:
        """The handler is done with these, though not with one before them: they do not come to it again."""
        new = frozenset(offsets) - grant.ahead
        with self._lock:
            grant.ahead |= new
            self._cells[grant.at + HANDLED] += len(new)
            self._meter.finished(grant.tp.topic, len(new), 0, 0)

    def unhandled(self, tp: TopicPartition, messages: list[Message]) -> list[Message]:
        """Without those that are done already, here or before: like compacted ones, a gap that the position passes."""
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
        grant.ahead = marks.read(start.offset, start.done)
        self.singly.pop(grant.tp, None)
        self.alone.pop(grant.tp, None)
        if start.singly_until != NO_OFFSET:
            self.singly[grant.tp] = self.alone[grant.tp] = start.singly_until
        return grant

    def _final(self, grant: Grant) -> Stopped:
        final = super()._final(grant)
        return msgspec.structs.replace(final, done=marks.written(final.offset, grant.ahead)) if grant.ahead else final

    def _busy(self, grant: Grant) -> bool:
        """The handler has records of it."""
        return grant.state in (GrantState.IN_HAND, GrantState.STOPPING)

    def _take(self, grant: Grant, following: Sequence[int], epoch: int, now: int) -> None:
        grant.put_in_hand(self._cells, following, epoch, now)
        grant.state = GrantState.IN_HAND
        self._hand = grant

    def _put_down(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> None:
        grant.put_down(self._cells, finished)
        self._cells[grant.busy_at] += nanoseconds
        self._hand = None
        self._meter.finished(grant.tp.topic, finished, nanoseconds, calls)

    def _done_up_to(self, grant: Grant, following: int, records: int) -> None:
        """So far, with so many records more, but not by the handler's return."""
        self._cells[grant.at + CONSUMED] = following

    def _end_attempt(self, attempt: Attempt[Grant], *, retried: bool, failed: bool = True) -> None:
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
        final = self._final(grant)
        self._forget(grant)
        self._report(FetcherStopped([final]))
        return True

    def _advance(self) -> None:
        """Follow the client over what it gives out no record for: transaction markers, aborted and compacted ones."""
        fetching = (grant for grant in self._by_partition.values() if grant.state is GrantState.FETCHING)
        idle = [grant for grant in fetching if not (grant.gathering or grant.left_over)]
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
