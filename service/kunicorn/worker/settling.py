"""The table of grants where outputs are sent: the ledger follows the delivery, not the handler.

1. A record counts as consumed when its outputs, and those of everything before it in its partition, are delivered.
2. A grant that is given up settles first: it is reported when all that it handled is delivered. Only one that is lost
   is reported at once, and what it has left is delivered no more.
3. Of a partition with a refused output nothing more is handled until it is rewound to that record.
4. What is handled and not delivered, the ledger says exactly: with nothing in hand, from the consumed offset to the
   hand's. Whoever has to blame a record for a worker's death goes by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.pipes.ledger import CONSUMED, HAND_OFFSET, LEADER_EPOCH
from kunicorn.pipes.messages import Failed, FailureKind, FetcherStopped, Parked
from kunicorn.topics import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from kunicorn.worker.fetcher import Fetcher
from kunicorn.worker.grants import Grant, GrantState
from kunicorn.worker.outbox import Entry, Outbox
from kunicorn.worker.shipment import Shipment
from kunicorn.worker.table import PARKED_TOLD, Parts

_AT_REST = (GrantState.WAITING, GrantState.FETCHING, GrantState.PARKED, GrantState.PUT_OFF)
"""Nothing of it is in hand."""


class SettlingFetcher(Fetcher):
    """See the module's head. While a grant settles it is *stopping*, with nothing in hand."""

    def __init__(self, parts: Parts, outbox: Outbox) -> None:
        super().__init__(parts)
        parts.ledger.use_delivery()
        self._outbox = outbox
        self._rewinding: list[Grant] = []

    # -- sender's thread -----------------------------------------------------------------------------------------------

    def settle(self, reached: Mapping[int, int]) -> None:
        """By the grant's number: everything before that offset is delivered."""
        with self._lock:
            for number, following in reached.items():
                if (grant := self._grants.get(number)) is not None and not grant.discarded:
                    at = grant.at + CONSUMED
                    self._cells[at] = max(self._cells[at], following)
                    self._close_if_settled(grant)

    def rewind(self, numbers: Iterable[int]) -> None:
        """Their refused record is the next to be delivered now: have it, and what is behind it, fetched again."""
        with self._lock:
            for number in numbers:
                if (grant := self._grants.get(number)) is not None:
                    grant.handled_to, grant.rewinds = self._cells[grant.at + CONSUMED], True
                    if grant.last_word is not None:
                        # It was to end at a record behind that one, which comes first.
                        grant.last_word = None
                        grant.state = GrantState.STOPPING if grant.stopped else GrantState.WAITING
                    self._rewinding.append(grant)
                    self._close_if_settled(grant)
        self.interrupt()

    def places(self, shipment: Shipment, live: Sequence[Entry]) -> list[ClientPartition]:
        """See `transactions.Table`."""
        last = {entry.origin: entry.following for entry in live}
        return [grant.place(self._cells, offset) for grant, offset in last.items() if isinstance(grant, Grant)]

    # -- control thread ------------------------------------------------------------------------------------------------

    def parked(self) -> tuple[list[Parked], dict[str, int]]:
        """See `GrantTable`: and those whose outputs do not arrive."""
        told, count = super().parked()
        if (why := self._outbox.late()) is None:
            return told, count
        with self._lock:
            late = [
                grant.number
                for grant in self._grants.values()
                if grant.state not in (GrantState.PARKED, GrantState.PUT_OFF) and not grant.settled(self._cells)
            ]
        told += [Parked(number, "delivery", why) for number in late[: PARKED_TOLD - len(told)]]
        return told, {**count, "delivery": len(late)} if late else count

    # -- runner --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now: int) -> None:
        """See `GrantTable`."""
        if self._rewinding:
            with self._lock:
                rewinding, self._rewinding = self._rewinding, []
                for grant in rewinding:
                    if grant.number in self._grants and grant.state in _AT_REST:
                        self._rewind(grant)
        super().begin_turn(now)

    def take(
        self, tp: TopicPartition, following: Sequence[int], epoch: int, now: int, timestamp: int = NO_TIMESTAMP
    ) -> Grant | None:
        """See `Fetcher`."""
        grant = self._by_partition.get(tp)
        if grant is not None and grant.refused_at != NO_OFFSET:
            return None
        return super().take(tp, following, epoch, now, timestamp)

    def retake(self, grant: Grant, now: int) -> bool:
        """See `Fetcher`."""
        return grant.refused_at == NO_OFFSET and super().retake(grant, now)

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _take(self, grant: Grant, following: Sequence[int], epoch: int, now: int) -> None:
        cells, at, offset = self._cells, grant.at, following[0] - 1
        if grant.settled(cells) and offset > cells[at + CONSUMED]:
            # Markers and compacted records lie between: what is not delivered begins with this one.
            cells[at + CONSUMED] = offset
        super()._take(grant, following, epoch, now)

    def _put_down(self, grant: Grant, finished: int, nanoseconds: int, calls: int) -> None:
        if finished:
            self._done_up_to(grant, self._cells[grant.at + HAND_OFFSET], finished)
        super()._put_down(grant, finished, nanoseconds, calls)
        self._cells[grant.at + HAND_OFFSET] = grant.handled_to

    def _done_up_to(self, grant: Grant, following: int, records: int) -> None:
        self._outbox.put(Entry(grant, following - 1, following, ()), records, 0)
        if records:
            self._cells[grant.at + HAND_OFFSET] = grant.handled_to

    def _stop(self, grants: list[Grant]) -> None:
        for grant in grants:
            grant.stopped = True
        super()._stop(grants)

    def _busy(self, grant: Grant) -> bool:
        # One that is stopping already waits for its delivery alone; that of a lost one is waited for no more.
        return self._hand is grant or self._settles(grant)

    def _settles(self, grant: Grant) -> bool:
        """Whether it has to wait for its delivery before it can be reported; that is hurried then."""
        if grant.settled(self._cells):
            return False
        self._outbox.hurry()
        return True

    def _ended(self, grant: Grant) -> bool:
        if grant.state is GrantState.STOPPING and self._settles(grant):
            return True
        if grant.state is GrantState.IN_HAND and grant.rewinds:
            self._rewind(grant)
            return True
        return super()._ended(grant)

    def _fail(self, grant: Grant, kind: FailureKind, offset: int, error: str) -> None:
        if not self._settles(grant):
            super()._fail(grant, kind, offset, error)
            return
        self._leave(grant)
        grant.state = GrantState.STOPPING
        grant.last_word = Failed(grant.number, kind, offset, self._cells[grant.at + LEADER_EPOCH], error)

    def _close_if_settled(self, grant: Grant) -> None:
        if grant.state is GrantState.STOPPING and self._hand is not grant and grant.settled(self._cells):
            last_word = grant.last_word or FetcherStopped([self._final(grant)])
            self._forget(grant)
            self._report(last_word)

    def _forget(self, grant: Grant) -> None:
        # What a record that was interrupted has left in the outbox must not count under the next grant.
        grant.discarded = True
        super()._forget(grant)

    def _rewind(self, grant: Grant) -> None:
        grant.rewinds, grant.refused_at, grant.held = False, NO_OFFSET, ()
        self._cells[grant.at + HAND_OFFSET] = grant.handled_to
        self.singly[grant.tp] = max(grant.singly_until, self.singly.get(grant.tp, NO_OFFSET))
        grant.state = GrantState.WAITING
        self._leave(grant)
        if grant not in self._waiting:
            self._waiting.append(grant)
