"""The outbox: what is handled and not yet delivered, outputs on their way and the offsets that wait for them. No client
is used here.

`Outbox`: the runner puts in, a sender's thread takes out, everything so far at once: that is one shipment. While it is
delivered the runner fills the next. Where there are several senders they take in turns.
1. A record's outputs and its offset are put in together, so that a shipment taken at any moment is whole.
2. An offset goes out behind everything of its partition before it: each shipment knows the one before it.
3. Of a grant that is over without its offsets (lost), or whose record was refused by the brokers, nothing more goes out
   from that record on, neither of what is under way.

`Shipment`: entries that are delivered together; `Succession`: how far they are beside those before them.
1. Shipments are taken, and committed, in the order in which their records were handled.
2. What was produced behind a transaction that is aborted is aborted as well, and produced again behind it.

`Step` and `Turn`: what is done about one transaction, in which order, and what follows which end of a step. Pure.
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

from kunicorn.handler.dead_letters import Address, Cause
from kunicorn.handler.outputs import Outgoing


class Step(Enum):
    """What is done next about one shipment."""

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
    """How a step ended."""

    OK = "ok"
    #: Not decided, or not its turn yet: the same step once more.
    AGAIN = "again"
    #: This transaction cannot be committed; another one may.
    ABORTABLE = "abortable"
    FATAL = "fatal"
    #: The shipment is empty by now.
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
    """What librdkafka's classification of an error means for a step (KIP-360, KIP-890 are within it)."""
    if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._FENCED):
        return Result.FATAL
    if error.txn_requires_abort():
        return Result.ABORTABLE
    # A call that was not allowed now has changed nothing; what it was to do did not happen.
    return Result.AGAIN if error.retriable() else Result.FATAL


class Turn(Enum):
    """Whether a shipment may go on."""

    OURS = "ours"
    NOT_YET = "not yet"
    #: The one before was aborted behind our back.
    BROKEN = "broken"


@dataclass(slots=True, eq=False)
class Shipment:
    """Made by the outbox. What is about transactions is changed by `Succession` alone."""

    entries: list[Entry]
    """Those of a refused record, and what is behind it in its partition, leave; under the outbox's lock."""
    nbytes: int = 0
    taken_at: float = 0.0
    before: Shipment | None = None
    """The one that was taken before it; once this one is settled, the last one before it that is not, if any. The table
    may hear of this one first: those behind it count on that one none the less."""
    aborts: int = 0
    """How often its transaction was aborted."""
    aborts_before: int = 0
    """How often the one before was, when this one's transaction began."""
    passed: set[Step] = field(default_factory=set)
    """The steps of its transaction that have ended well."""

    def all_before(self) -> Iterator[Shipment]:
        """Those that were taken before it and are not settled, the last one first."""
        before = self.before
        while before is not None:
            yield before
            before = before.before

    def forget_before(self, settled: Callable[[Shipment], bool]) -> None:
        """This one is settled: let go of those right before it that are as well. Else all that was ever sent stays in
        memory; but what lies behind them and is not settled, those behind this one reach through it alone."""
        while self.before is not None and settled(self.before):
            self.before = self.before.before

    def turn(self, step: Step) -> Turn:
        """Whether that step may be taken now."""
        behind, before = BEHIND.get(step), self.before
        if behind is None or before is None:
            return Turn.OURS
        if before.aborts != self.aborts_before and step not in CLOSED:
            return Turn.BROKEN
        return Turn.OURS if behind in before.passed or Step.DONE in before.passed else Turn.NOT_YET


class Succession:
    """Tells the senders of one another's progress. Caller: their threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def begin(self, shipment: Shipment) -> None:
        """Its transaction begins: from now on it depends on that of the one before."""
        with self._changed:
            if shipment.before is not None:
                shipment.aborts_before = shipment.before.aborts

    def wait(self, shipment: Shipment, step: Step, seconds: float) -> Turn:
        """Wait so long for its turn to take that step."""
        with self._changed:
            self._changed.wait_for(lambda: shipment.turn(step) is not Turn.NOT_YET, seconds)
            return shipment.turn(step)

    def passed(self, shipment: Shipment, step: Step) -> None:
        """That step has ended well."""
        with self._changed:
            shipment.passed.add(step)
            self._changed.notify_all()

    def aborted(self, shipment: Shipment) -> None:
        """Its transaction is given up."""
        with self._changed:
            shipment.passed.clear()
            shipment.aborts += 1
            self._changed.notify_all()

    def delivered(self, shipment: Shipment) -> None:
        """It is committed, or nothing of it is left, and the table knows."""
        with self._changed:
            shipment.forget_before(lambda before: Step.DONE in before.passed)
            shipment.passed.add(Step.DONE)
            self._changed.notify_all()


_IDLE_SECONDS = 1.0
_LATE_SECONDS = 10.0
"""From then on a shipment that has not arrived is worth telling of."""


class Origin(Protocol):
    """Whose outputs they are: a grant's, or one record's where several are in hand. Under the outbox's lock."""

    @property
    def number(self) -> int:
        """Which one it is: of those of its kind in the worker no other has it."""

    @property
    def takes_all_outputs(self) -> bool:
        """Whether there is nothing to leave out."""

    def takes_output_at(self, offset: int) -> bool:
        """Whether what that record leaves is still to be delivered."""

    def handled(self, following: int) -> None:
        """What comes before that offset is handled."""

    def refuse(self, offset: int, following: int, error: BaseException) -> None:
        """The brokers will not take what the records from `offset` up to `following` leave."""


class Settles(Protocol):
    """The table that is told what became of entries, by their origins' numbers. Caller: a sender's thread."""

    def settle(self, reached: Mapping[int, int]) -> None:
        """Everything of these before that offset is delivered."""

    def rewind(self, numbers: Iterable[int]) -> None:
        """Some of these is refused."""


class GivenUp(NamedTuple):
    """Of records that the handler is not asked about again: where they go, and what they failed by."""

    address: Address
    cause: Cause


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What one record (in batch mode: one call's records) leaves to be delivered."""

    origin: Origin
    offset: int
    """Of the first record."""
    following: int
    """The offset to go on from once it is delivered."""
    outputs: Sequence[Outgoing]
    given_up: GivenUp | None = None
    """They are records that were: refused ones cannot become dead letters again."""


class Limits(NamedTuple):
    """When a shipment is full, and when it is due."""

    records: int
    nbytes: int
    seconds: float
    """The oldest entry waits no longer."""


class Outbox:
    """Caller: the runner, for `put` and `room`; the control thread, for `late`; senders' threads, for the rest."""

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
        self._under_way: list[Shipment] = []
        """Taken and not done, in order."""
        self._under_way_bytes = 0
        self._last: Shipment | None = None
        """The one that was taken last."""
        self._hurried = False
        self.trouble = ""
        """What a sender met last with a shipment under way, for a person."""

    # -- runner --------------------------------------------------------------------------------------------------------

    def put(self, entry: Entry, records: int, nbytes: int) -> None:
        """One more record is handled. Never blocks; `room` says beforehand whether it should."""
        origin = entry.origin
        with self._lock:
            if not origin.takes_output_at(entry.offset):
                return
            origin.handled(entry.following)
            self._records += records
            self._bytes += nbytes
            entries = self._entries
            entries.append(entry)
            self._counts.append((records, nbytes))
            if len(entries) == 1:
                self._oldest = self._now()
                self._changed.notify_all()
            elif self._full:
                self._changed.notify_all()

    def room(self) -> int:
        """So many more records may be handled now."""
        if self._bytes + self._under_way_bytes >= self._limits.nbytes:
            return 0
        return max(0, self._limits.records - self._records)

    def wait_for_room(self, seconds: float) -> bool:
        """Wait so long for room; whether there is some."""
        with self._changed:
            return self._changed.wait_for(lambda: self.room() > 0, seconds)

    def wait_until_empty(self, seconds: float) -> bool:
        """Have everything delivered, and wait so long for it; whether it is."""
        with self._changed:
            if self._empty:
                return True
            self._hurried = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._empty, seconds)

    def hurry(self) -> None:
        """A partition is given up: deliver what there is now."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    # -- sender --------------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether there is something for `take`."""
        return bool(self._entries)

    def take(self, sender: int = 0) -> Shipment | None:
        """The next shipment, as soon as it is due and that sender's turn; None if nothing happens for a second."""
        with self._changed:
            if not self._turned.wait_for(lambda: self._turn == sender, _IDLE_SECONDS):
                return None
            if not self._changed.wait_for(lambda: bool(self._entries), _IDLE_SECONDS):
                self._hurried = False
                return None
            while not (self._full or self._hurried) and (left := self._oldest + self._limits.seconds - self._now()) > 0:
                self._changed.wait(left)
            shipment = self._last = Shipment(self._entries, self._bytes, self._now(), self._last)
            self._under_way.append(shipment)
            self._under_way_bytes += shipment.nbytes
            self._entries, self._counts, self._records, self._bytes = [], [], 0, 0
            self._hurried, self._turn = False, (sender + 1) % self._senders
            self._changed.notify_all()
            self._turned.notify_all()
            return shipment

    def done(self, shipment: Shipment) -> None:
        """It is delivered."""
        with self._changed:
            self._under_way.remove(shipment)
            self._under_way_bytes -= shipment.nbytes
            # The next one refers to it, for as long as nothing more comes.
            shipment.entries = []
            shipment.forget_before(lambda before: before not in self._under_way)
            self.trouble = ""
            self._changed.notify_all()

    def live(self, shipment: Shipment) -> Sequence[Entry]:
        """What of it is still to be delivered."""
        with self._lock:
            if all(origin.takes_all_outputs for origin in {entry.origin for entry in shipment.entries}):
                return shipment.entries
            return _wanted(shipment.entries)

    def refuse(self, entry: Entry, error: BaseException) -> None:
        """The brokers will never take these outputs: the record has failed, and whatever came behind it in its
        partition is not to be delivered before it."""
        with self._changed:
            entry.origin.refuse(entry.offset, entry.following, error)
            self._leave_out_unwanted()
            # Once it is rewound its grant takes outputs again: those of what it handles anew.
            for shipment in self._under_way:
                shipment.entries = _wanted(shipment.entries)
            self._changed.notify_all()

    # -- control thread ------------------------------------------------------------------------------------------------

    def late(self) -> str | None:
        """For a person: how long what is under way has not arrived, and why; None unless that is ten seconds."""
        with self._changed:
            if not self._under_way or (waited := self._now() - self._under_way[0].taken_at) < _LATE_SECONDS:
                return None
            why = self.trouble or "no broker has answered yet"
            return f"its outputs have waited {waited:.0f} s for delivery: {why}"

    def _leave_out_unwanted(self) -> None:
        """What is left out takes no room: with nothing to take, nothing would ever make some."""
        every = zip(self._entries, self._counts, strict=True)
        kept = [(entry, count) for entry, count in every if entry.origin.takes_output_at(entry.offset)]
        self._entries, self._counts = [entry for entry, _ in kept], [count for _, count in kept]
        self._records = sum(records for records, _ in self._counts)
        self._bytes = sum(nbytes for _, nbytes in self._counts)

    @property
    def _empty(self) -> bool:
        return not self._entries and not self._under_way

    @property
    def _full(self) -> bool:
        return self._records >= self._limits.records or self._bytes + self._under_way_bytes >= self._limits.nbytes


def _wanted(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.origin.takes_output_at(entry.offset)]
