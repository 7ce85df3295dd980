"""One partition that is ours, or is still being let go of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kunicorn.group.partitions import PartitionEvent, PartitionState, advance
from kunicorn.pipes import clock, marks
from kunicorn.pipes.ledger import NOT_STARTED, SlotReading
from kunicorn.supervisor.age import Age
from kunicorn.supervisor.worker import WorkerProcess
from kunicorn.topics import NO_OFFSET, Position, TopicPartition


@dataclass(frozen=True, slots=True)
class Poison:
    """Records that killed workers more than once: those from `offset` on, `count` of them at least."""

    offset: int
    count: int
    deaths: int
    how: str
    exact: bool = False
    """`offset` is the record's own, wherever its partition stands; else it is the first that is fetched."""

    def warning(self, position: int) -> dict[str, Any]:
        """What `FetcherStart` says of it to the next worker, which starts at `position`.

        One record is to be kept from the handler. Of a batch nobody knows which one it was: its records are handled one
        at a time, until deaths single it out. Gaps between offsets make that range too short; the next batch then dies,
        too, and is looked through likewise.
        """
        if position > self.offset:
            return {}
        singly = {"singly_until": self.offset + self.count}
        if self.count > 1:
            return singly
        if not self.exact and position == self.offset:
            return {"poison": str(self), "poison_deaths": self.deaths}
        # Where outputs are sent, those before it may have to be handled again.
        return {"poison": str(self), "poison_deaths": self.deaths, "poison_offset": self.offset, **singly}

    def __str__(self) -> str:
        return f"{self.deaths} workers died ({self.how}) with offset {self.offset} in hand"


class Partition:
    """State, position and the grant under which a worker holds it. Positions are the next offset to handle."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.state = PartitionState.RESOLVING
        self.since = clock.now()
        self.reason: str | None = None
        self.position: Position | None = None
        """Consumed up to here; while a worker holds the partition, as of the last look into its ledger."""
        self.committed: int | None = None
        self.committed_done = ""
        """What the broker was told with it of records that are done beyond it."""
        self.stop = NO_OFFSET
        """Records from this offset on are not ours to handle; `NO_OFFSET`: there is no end."""
        self.lost = False
        """Another member may own it, or its topic is gone: nothing is committed any more."""
        self.topic_id: UUID | None = None
        """Which topic of that name it belongs to; None where the brokers are too old to say."""
        self.fresh = False
        """Its topic was created anew while we owned it: it starts at its beginning, whatever is committed."""
        self.grant = 0
        self.slot = -1
        self.worker: WorkerProcess | None = None
        self.last_worker: int | None = None
        self.deaths: Counter[int] = Counter()
        """How many workers died with this offset in hand."""
        self.poison: Poison | None = None
        self.reset = False
        """Its position was not in the log: a handler that keeps offsets is told the new one, not asked for its own."""
        self.suspects: frozenset[int] = frozenset()
        """Offsets of records that workers died with, and with others: each is to be handled with nothing beside it."""
        self.done: frozenset[int] = frozenset()
        """Offsets beyond the position that are done already, as told under grants that are over."""
        self.denied = False
        """Halted because this user may not read the topic; tried again, and told only once."""
        self.log_end: int | None = None
        self.demand = 0.0
        """What it takes of a worker's capacity, as last measured (`group.loads`)."""
        self.age = Age()
        self.reading: SlotReading = NOT_STARTED

    def meet(self, event: PartitionEvent, reason: str | None = None) -> None:
        """Advance the state; `reason` is what `/status` says of the new one."""
        state = advance(self.state, event)
        if state is self.state is PartitionState.PAUSED:
            return  # Why it is paused outlives the worker that let go of it.
        if state is not self.state:
            self.state, self.since = state, clock.now()
        self.reason = reason

    def look(self) -> None:
        """Read the ledger: a started fetcher shows there, and so does what it has consumed."""
        if self.worker is None:
            return
        self.reading = self.worker.ledger.read(self.slot, self.grant)
        if not self.reading.started:
            return
        self.position = self.reading.consumed
        self.reset = False
        self.age.taken(self.reading.timestamp_ms)
        if self.state is PartitionState.STARTING:
            self.meet(PartitionEvent.FETCHED)

    def end_seen(self, end: int | None, at_ms: int) -> None:
        """The broker has said where the log ends; None: it did not say. `at_ms`: when it was asked."""
        self.log_end = end
        self.look()
        if end is not None and self.position is not None:
            self.age.end_seen(self.position.offset, end, at_ms)

    @property
    def busy(self) -> bool:
        """Whether its worker has a record of it in hand at this moment."""
        self.look()
        return self.reading.in_hand != NO_OFFSET

    def begin_at(self, start: Position) -> None:
        """The position was looked up, or chosen. What was known of records beyond another one is forgotten: they may be
        other records by now, or are to be handled again."""
        self.position = start._replace(done="")
        self.done = marks.read(start.offset, start.done)
        self.suspects = frozenset()

    def reached(self) -> Position | None:
        """The position, and what is done beyond it."""
        if self.position is None:
            return None
        done = self._done_beyond(self.position.offset)
        return self.position._replace(done=marks.written(self.position.offset, done) if done else "")

    def _done_beyond(self, offset: int) -> frozenset[int]:
        told = self.done
        if self.worker is not None and self.worker.ledger.marked and self.reading.started:
            told |= self.worker.ledger.done(self.slot).from_offset(offset)
        return told

    def in_hands(self) -> frozenset[int]:
        """Offsets of the records that handlers of its worker have. Caller: after `look`; final once the worker is
        dead."""
        if self.worker is None or self.reading.in_hand == NO_OFFSET:
            return frozenset()
        if not self.worker.ledger.marked:
            return frozenset({self.reading.in_hand})
        first = self.reading.consumed.offset
        return self.worker.ledger.in_hand(self.slot).from_offset(first) - self._done_beyond(first)

    def hand_to(self, worker: WorkerProcess, grant: int) -> None:
        """Under this grant the worker may handle it, from `position` on."""
        self.grant, self.slot, self.worker = grant, worker.take_slot(), worker
        self.last_worker = worker.number

    def take_back(self) -> None:
        """The grant is over: nobody here has the partition in hand."""
        if self.position is not None:
            first = self.position.offset
            self.done = frozenset(offset for offset in self._done_beyond(first) if offset > first)
            self.suspects = frozenset(offset for offset in self.suspects if offset >= first)
            self.deaths = Counter({offset: count for offset, count in self.deaths.items() if offset >= first})
        if self.worker is not None:
            self.worker.free_slot(self.slot)
        self.grant, self.slot, self.worker, self.reading = 0, -1, None, NOT_STARTED
