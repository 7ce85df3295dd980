"""The outbox: handled records that are not delivered, with their outputs and the offsets that wait for them. No client
is used here.

`Outbox`: whoever called the handler puts in, a sender's thread takes out, everything so far at once: an `OutputBatch`.
While it is delivered the next one fills. Where there are several senders they take in turns. 1. A record's outputs and
its offset are put in together, so that a batch taken at any moment is whole. 2. An offset goes out behind everything of
its partition before it: each batch knows the one before it. 3. Of a grant that is over without its offsets (lost), or
whose record was refused by the brokers, nothing more goes out from that record on, neither of what is under way.

`OutputBatch`: entries that are delivered together; `TransactionOrder`: how far they are beside those before them. 1.
Batches are taken, and committed, in the order in which their records were handled. 2. What was produced behind a
transaction that is aborted is aborted as well, and produced again behind it.

`Step` and `Turn`: the steps of one transaction, their order, and what follows which end of a step. Pure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec
from confluent_kafka import KafkaError

from kunicorn.handler.dead_letters import Cause, Destination
from kunicorn.handler.outputs import Outgoing


class Step(Enum):
    """Next step of one transaction."""

    #: Ask the supervisor as whom to commit; drop what is not ours any more.
    ASK = "ask"
    BEGIN = "begin"
    PRODUCE = "produce"
    #: Wait until the brokers have acknowledged all of it.
    FLUSH = "flush"
    OFFSETS = "offsets"
    COMMIT = "commit"
    ABORT = "abort"
    #: Nothing is open. Wait until everything before it is delivered, then begin again.
    REST = "rest"
    #: Nothing of it is left to commit. Wait until everything before it is delivered: what comes behind it waits for
    #: this one alone.
    EMPTY = "empty"
    #: It is committed, or nothing of it was left to commit.
    DONE = "done"
    #: The producer is of no use any more.
    FENCED = "fenced"


class Result(Enum):
    """End of a step."""

    OK = "ok"
    #: Not decided, or not its turn yet: the same step once more.
    AGAIN = "again"
    #: This transaction cannot be committed; another one may.
    ABORTABLE = "abortable"
    FATAL = "fatal"
    #: The batch is empty by now.
    EMPTY = "empty"


S, R = Step, Result

STEPS: Mapping[tuple[Step, Result], Step] = {
    (S.ASK, R.OK): S.BEGIN,
    (S.ASK, R.AGAIN): S.ASK,
    (S.ASK, R.EMPTY): S.EMPTY,
    (S.BEGIN, R.OK): S.PRODUCE,
    (S.BEGIN, R.AGAIN): S.BEGIN,
    # Left over from a call whose end was not seen.
    (S.BEGIN, R.ABORTABLE): S.ABORT,
    (S.BEGIN, R.FATAL): S.FENCED,
    (S.PRODUCE, R.OK): S.FLUSH,
    (S.PRODUCE, R.AGAIN): S.PRODUCE,
    (S.PRODUCE, R.ABORTABLE): S.ABORT,
    (S.PRODUCE, R.FATAL): S.FENCED,
    (S.FLUSH, R.OK): S.OFFSETS,
    (S.FLUSH, R.AGAIN): S.FLUSH,
    (S.FLUSH, R.ABORTABLE): S.ABORT,
    (S.FLUSH, R.FATAL): S.FENCED,
    (S.OFFSETS, R.OK): S.COMMIT,
    (S.OFFSETS, R.AGAIN): S.OFFSETS,
    (S.OFFSETS, R.ABORTABLE): S.ABORT,
    (S.OFFSETS, R.FATAL): S.FENCED,
    (S.COMMIT, R.OK): S.DONE,
    # Its outcome is unknown until the call says so: aborting now could abort what the brokers have committed.
    (S.COMMIT, R.AGAIN): S.COMMIT,
    (S.COMMIT, R.ABORTABLE): S.ABORT,
    (S.COMMIT, R.FATAL): S.FENCED,
    (S.ABORT, R.OK): S.REST,
    (S.ABORT, R.AGAIN): S.ABORT,
    (S.ABORT, R.ABORTABLE): S.FENCED,
    (S.ABORT, R.FATAL): S.FENCED,
    (S.REST, R.OK): S.ASK,
    (S.REST, R.AGAIN): S.REST,
    (S.EMPTY, R.OK): S.DONE,
    (S.EMPTY, R.AGAIN): S.EMPTY,
}
"""What follows which end of a step; the only place that decides it."""

ENDS = frozenset({S.DONE, S.FENCED})

BEHIND: Mapping[Step, Step] = {
    # Else outputs of one partition could change their order.
    S.PRODUCE: S.FLUSH,
    # Of a group's offsets for one partition, those written last count, in whatever order their transactions end
    # (OffsetMetadataManager.java, replayEndTransactionMarker).
    S.OFFSETS: S.OFFSETS,
    # Offsets are never committed past an unfinished record.
    S.COMMIT: S.COMMIT,
    S.REST: S.DONE,
    S.EMPTY: S.DONE,
}
"""Steps that wait for the transaction before: which of its steps must have ended well. It may still be aborted behind
that; then this one is, too."""

CLOSED = frozenset({S.REST, S.EMPTY})
"""In these nothing is open, whatever becomes of the transaction before."""

OPEN = frozenset({S.OFFSETS, S.COMMIT})
"""Waiting for its turn here, a transaction is open at the brokers, and its time-out runs."""


def result_of(error: KafkaError) -> Result:
    """Result of a step that failed with this error, by librdkafka's classification (KIP-360, KIP-890 are within it)."""
    if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._FENCED):
        return Result.FATAL
    if error.txn_requires_abort():
        return Result.ABORTABLE
    # A call that was not allowed now has changed nothing; what it was to do did not happen.
    return Result.AGAIN if error.retriable() else Result.FATAL


class Turn(Enum):
    """Whether a batch may take its next step."""

    OURS = "ours"
    NOT_YET = "not yet"
    #: The one before was aborted behind our back.
    BROKEN = "broken"


@dataclass(slots=True, eq=False)
class OutputBatch:
    """Entries that are delivered together. Made by the outbox; its part in transactions is changed by
    `TransactionOrder` alone.
    """

    entries: list[Entry]
    """Those of a refused record, and what is behind it in its partition, leave; under the outbox's lock."""
    nbytes: int = 0
    taken_at: float = 0.0
    before: OutputBatch | None = None
    """The one that was taken before it; once this one is delivered, the last one before it that is not, if any. The
    table may hear of this one first: those behind it count on that one none the less."""
    aborts: int = 0
    """How often its transaction was aborted."""
    aborts_before: int = 0
    """How often the one before was, when this one's transaction began."""
    passed: set[Step] = field(default_factory=set)
    """The steps of its transaction that have ended well."""

    def all_before(self) -> Iterator[OutputBatch]:
        """Batches that were taken before it and are not delivered, the last one first."""
        before = self.before
        while before is not None:
            yield before
            before = before.before

    def forget_before(self, delivered: Callable[[OutputBatch], bool]) -> None:
        """Drop the delivered batches right before this delivered one: otherwise all that was ever sent stays in memory.
        Undelivered ones behind those stay, as later batches reach them through this one alone.
        """
        while self.before is not None and delivered(self.before):
            self.before = self.before.before

    def turn(self, step: Step) -> Turn:
        """Whether that step may be taken now."""
        behind, before = BEHIND.get(step), self.before
        if behind is None or before is None:
            return Turn.OURS
        if before.aborts != self.aborts_before and step not in CLOSED:
            return Turn.BROKEN
        return Turn.OURS if behind in before.passed or Step.DONE in before.passed else Turn.NOT_YET


class TransactionOrder:
    """Order of the transactions of several senders. Caller: their threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def begin(self, batch: OutputBatch) -> None:
        """Begin the batch's transaction: from now on it depends on that of the one before."""
        with self._changed:
            if batch.before is not None:
                batch.aborts_before = batch.before.aborts

    def wait(self, batch: OutputBatch, step: Step, seconds: float) -> Turn:
        """Wait so long for the batch's turn to take that step."""
        with self._changed:
            self._changed.wait_for(lambda: batch.turn(step) is not Turn.NOT_YET, seconds)
            return batch.turn(step)

    def passed(self, batch: OutputBatch, step: Step) -> None:
        """Note that the step has ended well."""
        with self._changed:
            batch.passed.add(step)
            self._changed.notify_all()

    def aborted(self, batch: OutputBatch) -> None:
        """Note that the batch's transaction is aborted."""
        with self._changed:
            batch.passed.clear()
            batch.aborts += 1
            self._changed.notify_all()

    def delivered(self, batch: OutputBatch) -> None:
        """Note that the batch is committed, or nothing of it is left, and the table knows."""
        with self._changed:
            batch.forget_before(lambda before: Step.DONE in before.passed)
            batch.passed.add(Step.DONE)
            self._changed.notify_all()


_IDLE_SECONDS = 1.0
_LATE_SECONDS = 10.0
"""From then on a batch that has not arrived is worth telling of."""


class Origin(Protocol):
    """Source of outputs: the records of one call (`progress.InFlight`). Called under the outbox's lock."""

    @property
    def number(self) -> int:
        """Number that no other origin of this kind in the worker has."""

    @property
    def takes_all_outputs(self) -> bool:
        """Whether no output is to be left out."""

    def takes_output_at(self, offset: int) -> bool:
        """Whether outputs of the record at that offset are still to be delivered."""

    def refuse(self, offset: int, following: int, error: BaseException) -> int:
        """Note that the brokers refuse outputs of the records from `offset` up to `following`; the refusal's number,
        higher than those before, or 0 where these outputs are not to be delivered anyway."""


class DeliveryListener(Protocol):
    """The table, as senders see it; origins are given by their numbers. Caller: a sender's thread."""

    def delivered(self, reached: Mapping[int, int]) -> None:
        """Note that everything of these origins before that offset is delivered."""

    def rewind(self, refusals: Mapping[int, int]) -> None:
        """Have these origins' refused records, and what is behind them, handled again; with the number of the refusal
        that is meant. One that came since is rewound by whoever met it."""


class GivenUp(NamedTuple):
    """Destination and cause of records that the handler is not asked about again."""

    destination: Destination
    cause: Cause
    label: str | None = None
    """Of the counter of such ends: a `Reason`, or a retry topic's delay."""
    arrived: frozenset[int] = frozenset()
    """Those of their letters, by place, that have arrived while others were refused: they are not sent again."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Outputs and offset of one handled record (in batch mode: of one call's records)."""

    origin: Origin
    offset: int
    """Of the first record."""
    following: int
    """The offset to go on from once it is delivered."""
    outputs: Sequence[Outgoing]
    given_up: GivenUp | None = None
    """They are records that were: refused ones cannot become dead letters again."""


class Limits(NamedTuple):
    """Size at which a batch is full, and time after which it is due."""

    records: int
    nbytes: int
    seconds: float
    """The oldest entry waits no longer."""


class Outbox:
    """Queue of handled and undelivered records. Caller: executors, for `put` and `room`; the control thread, for
    `late`; senders' threads, for the rest.
    """

    def __init__(self, limits: Limits, now: Callable[[], float] = time.monotonic, senders: int = 1) -> None:
        self._limits = limits
        self._senders = senders
        self._turn = 0
        """Which of the senders takes next."""
        self._now = now
        self._lock = threading.Lock()
        """Taken for every record: as `with` of the lock itself it costs a fifth of what the condition's does."""
        self._changed = threading.Condition(self._lock)
        self._turned = threading.Condition(self._lock)
        self._entries: list[Entry] = []
        self._counts: list[tuple[int, int]] = []
        """Records and bytes that each of these counts for."""
        self._records = self._bytes = 0
        self._oldest = 0.0
        self._under_way: list[OutputBatch] = []
        """Taken and not done, in order."""
        self._under_way_bytes = 0
        self._last: OutputBatch | None = None
        """The one that was taken last."""
        self._hurried = False
        self._trouble = ""

    # -- executors ----------------------------------------------------------------------------------------------------

    def put(self, entries: Sequence[Entry], records: int, nbytes: int) -> None:
        """Add what so many handled records left, all of one origin and in order; the last entry has their end. Never
        blocks; `room` says beforehand whether it fits.
        """
        origin = entries[0].origin
        with self._lock:
            if not origin.takes_all_outputs:
                entries = [entry for entry in entries if origin.takes_output_at(entry.offset)]
                if not entries:
                    return
            self._records += records
            self._bytes += nbytes
            waiting = bool(self._entries)
            self._entries += entries
            self._counts += [(0, 0)] * (len(entries) - 1)
            self._counts.append((records, nbytes))
            if not waiting:
                self._oldest = self._now()
                self._changed.notify_all()
            elif self._full:
                self._changed.notify_all()

    def room(self) -> int:
        """Number of records that may still be handled now."""
        if self._bytes + self._under_way_bytes >= self._limits.nbytes:
            return 0
        return max(0, self._limits.records - self._records)

    def hurry(self) -> None:
        """Deliver what there is now, for a partition that is given up."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    # -- sender --------------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether there is something for `take`."""
        return bool(self._entries)

    def take(self, sender: int = 0) -> OutputBatch | None:
        """The next batch, as soon as it is due and that sender's turn; None if nothing happens for a second."""
        with self._changed:
            if not self._turned.wait_for(lambda: self._turn == sender, _IDLE_SECONDS):
                return None
            if not self._changed.wait_for(lambda: bool(self._entries), _IDLE_SECONDS):
                self._hurried = False
                return None
            while not (self._full or self._hurried) and (left := self._oldest + self._limits.seconds - self._now()) > 0:
                self._changed.wait(left)
            batch = self._last = OutputBatch(self._entries, self._bytes, self._now(), self._last)
            self._under_way.append(batch)
            self._under_way_bytes += batch.nbytes
            self._entries, self._counts, self._records, self._bytes = [], [], 0, 0
            self._hurried, self._turn = False, (sender + 1) % self._senders
            self._changed.notify_all()
            self._turned.notify_all()
            return batch

    def done(self, batch: OutputBatch) -> None:
        """Remove a delivered batch."""
        with self._changed:
            self._under_way.remove(batch)
            self._under_way_bytes -= batch.nbytes
            # The next one refers to it, for as long as nothing more comes.
            batch.entries = []
            batch.forget_before(lambda before: before not in self._under_way)
            self._trouble = ""
            self._changed.notify_all()

    @property
    def trouble(self) -> str:
        """Last problem of a sender with a batch under way, for people."""
        return self._trouble

    def note_trouble(self, why: str) -> None:
        """Note why a batch under way is held up."""
        self._trouble = why

    def live(self, batch: OutputBatch) -> Sequence[Entry]:
        """Entries of the batch that are still to be delivered."""
        with self._lock:
            if all(origin.takes_all_outputs for origin in {entry.origin for entry in batch.entries}):
                return batch.entries
            return _wanted(batch.entries)

    def refuse(self, refused: Sequence[tuple[Entry, BaseException]]) -> Mapping[int, int]:
        """Note that the brokers will never take outputs of these: each record has failed, and whatever came behind it
        in its partition is not to be delivered before it. The number of each origin's last refusal, see
        `Origin.refuse`.

        All together: a topic may refuse a whole batch, and to look at all that is kept for each output of it would last
        longer than the brokers keep a transaction open.
        """
        if not refused:
            return {}
        with self._changed:
            under_way = {id(entry) for batch in self._under_way for entry in batch.entries}
            numbers = dict[int, int]()
            for entry, error in refused:
                # Else it was left out by a refusal before, and what its origin has under way by now is of another call.
                if id(entry) in under_way and (number := entry.origin.refuse(entry.offset, entry.following, error)):
                    numbers[entry.origin.number] = number
            if numbers:
                self._leave_out_unwanted()
                # Once it is rewound its grant takes outputs again: those of what it handles anew.
                for batch in self._under_way:
                    batch.entries = _wanted(batch.entries)
                self._changed.notify_all()
            return numbers

    # -- control thread ------------------------------------------------------------------------------------------------

    def late(self) -> str | None:
        """How long what is under way has not arrived, and why, for people; None unless that is ten seconds."""
        with self._changed:
            if not self._under_way or (waited := self._now() - self._under_way[0].taken_at) < _LATE_SECONDS:
                return None
            why = self._trouble or "no broker has answered yet"
            return f"its outputs have waited {waited:.0f} s for delivery: {why}"

    def _leave_out_unwanted(self) -> None:
        """Free the room of entries that are left out: with nothing to take, nothing else would ever free it."""
        every = zip(self._entries, self._counts, strict=True)
        kept = [(entry, count) for entry, count in every if entry.origin.takes_output_at(entry.offset)]
        self._entries, self._counts = [entry for entry, _ in kept], [count for _, count in kept]
        self._records = sum(records for records, _ in self._counts)
        self._bytes = sum(nbytes for _, nbytes in self._counts)

    @property
    def _full(self) -> bool:
        return self._records >= self._limits.records or self._bytes + self._under_way_bytes >= self._limits.nbytes


def _wanted(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.origin.takes_output_at(entry.offset)]
