"""Progress of a partition in a worker: its grant, its records in flight, their lanes, its consumed offset. Pure;
changed under the table's lock.

- `Interrupts`: what stops the loop's own calls before their next record.
- `Grant`: one partition handed out to this worker, from StartFetcher to the final report.
- `InFlight`: records on their way from the client until they are done with: one, or a run of several that one call
  gets; `Lane`: those that are handled one after the other; `OffsetTracker`: how far their partition is.
- `Slots`: how many calls one handler may have at a time, and what they may take next. Every handler has its own, with
  its own order; `scheduler.Scheduler` decides over all of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop
from typing import TYPE_CHECKING

from confluent_kafka import Message

from kunicorn.handler.messages import Run
from kunicorn.handler.outputs import Outgoing
from kunicorn.handler.retry import End
from kunicorn.handler.rows import fitting, without
from kunicorn.ipc.bitmap import WINDOW, written
from kunicorn.ipc.messages import FailureKind
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position, TopicPartition
from kunicorn.worker.fetching.fetched import ChunkPace
from kunicorn.worker.produce.outbox import Entry, GivenUp

if TYPE_CHECKING:
    from kunicorn.worker.limits.gate import Gate
    from kunicorn.worker.mirror import Mirror


class Interrupts(list[None]):
    """Flag that makes the loop stop before its next record and look around: set while not empty. A list, as the hot
    loop tests its truth.
    """

    def request(self) -> None:
        """Set the flag. Caller: any thread."""
        if not self:
            self.append(None)


class GrantState(Enum):
    """State of an open grant; reported and failed grants have none, they are forgotten."""

    #: Its slot is open; fetching starts when the loop has let go of its batch.
    WAITING = "waiting"
    #: Assigned to the client.
    FETCHING = "fetching"
    #: To be given up: reported as soon as nothing of it is in hand, or on its way to the brokers.
    STOPPING = "stopping"
    #: Its next record, of a retry topic, waits for its time; not assigned to the client meanwhile.
    DELAYED = "delayed"
    #: Not assigned to the client until what was fetched of it is mostly done, or to be ended then, as an error comes
    #: next.
    ASIDE = "aside"


@dataclass(slots=True, eq=False)
class Grant:
    """One partition handed out to this worker, as the client and the supervisor see it. Changed only under the table's
    lock."""

    number: int
    tp: TopicPartition
    tracker: OffsetTracker
    mirror: Mirror
    state: GrantState = GrantState.WAITING
    assigned: bool = False
    was_assigned: bool = False
    """At any time before."""
    waits_for: str = ""
    """While delayed: what `/status` calls it."""
    why: str = ""
    """While delayed, in words."""
    failure: GrantFailure | None = None
    """Why the grant ends by itself, once nothing of it is in hand; None: it was stopped."""

    @property
    def busy(self) -> bool:
        """Whether a record of it is in hand, on its way to the brokers, or has failed just now."""
        return bool(self.tracker.running or self.tracker.sending or self.tracker.failed)


@dataclass(frozen=True, slots=True)
class GrantFailure:
    """Why a grant ends that nobody stopped."""

    kind: FailureKind
    error: str
    offset: int = NO_OFFSET
    """Of the record that it is about, if it is about one."""

    def told(self, offset: int) -> str:
        """The error, for a grant that ends before that offset: one of a record further on names that."""
        return self.error if self.offset in (NO_OFFSET, offset) else f"offset {self.offset}: {self.error}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Records that failed together: one, or a batch."""

    flight: InFlight
    nanoseconds: int = 0
    """The time that the call took."""
    calls: int = 1
    """Calls of the handler that this counts for; 0 where there was none, or it counts with others."""
    error_type: str = ""
    """What telemetry calls the error of these calls; empty where they ended with an outcome."""
    met_after_ns: int = 0
    """So much later the loop, which was in a call, came to that."""
    beside: bool = False
    """Their call counts with records of another partition, which failed with them."""

    @property
    def records(self) -> Sequence[Message]:
        """All of them."""
        return self.flight.messages

    @property
    def offset(self) -> int:
        """Offset of the first record."""
        return self.flight.offset

    def left_of(self, wait_ns: int) -> int:
        """What is left of a wait that began when they failed."""
        return max(0, wait_ns - self.met_after_ns)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Size of a full batch, and how long its first record waits for one."""

    records: int
    bytes: int | None
    wait_ns: int
    memory: int
    """Bytes of all that waits so, about."""


LaneKey = Callable[[int, bytes | None], object]

LANE_KEYS: Mapping[str, LaneKey] = {
    "partition": lambda offset, key: None,
    # Without a key there is no order to keep: Kafka itself spreads such records over the partitions as it likes.
    "key": lambda offset, key: offset if key is None else key,
    "none": lambda offset, key: offset,
}
"""By ordering: what records of one lane have in common, by offset and key."""


class ReadyLanes:
    """Lanes whose first record may be started, if nothing of it has changed since: one of each partition in turn, so
    that what comes to a partition waits for none of another one's backlog. Partitions that have had no turn yet come
    before those that have."""

    def __init__(self) -> None:
        self._new: OrderedDict[OffsetTracker, deque[Lane]] = OrderedDict()
        """Of partitions that have had no turn, and of those whose lane is to be the next."""
        self._of: OrderedDict[OffsetTracker, deque[Lane]] = OrderedDict()
        """Of the others; the one whose turn it is comes first."""

    def __bool__(self) -> bool:
        return bool(self._new) or bool(self._of)

    def __len__(self) -> int:
        return sum(map(len, (*self._new.values(), *self._of.values())))

    @property
    def hurries(self) -> bool:
        """Whether the next is of a partition that has had no turn, or is to be the next."""
        return bool(self._new)

    def add(self, lane: Lane, *, first: bool) -> None:
        """`first`: before all others, as a retry whose wait is over."""
        tracker = lane.tracker
        if first:
            self._new[tracker] = deque((lane, *self._new.pop(tracker, ()), *self._of.pop(tracker, ())))
            self._new.move_to_end(tracker, last=False)
        elif (lanes := self._new.get(tracker) or self._of.get(tracker)) is not None:
            lanes.append(lane)
        else:
            (self._of if tracker.served else self._new)[tracker] = deque((lane,))

    def take(self) -> Lane:
        hurries = self.hurries
        of = self._new if hurries else self._of
        tracker, lanes = of.popitem(last=False)
        tracker.served = True
        lane = lanes.popleft()
        lane.hurries = hurries
        if lanes:
            self._of[tracker] = lanes
        return lane

    def drop(self, tracker: OffsetTracker) -> None:
        """Remove the lanes of that partition."""
        for lane in (*self._new.pop(tracker, ()), *self._of.pop(tracker, ())):
            lane.ready = False


@dataclass(slots=True, eq=False)
class Slots:
    """Concurrency slots of one handler: their number, those in use, and the lanes that are ready to start. Changed by
    `Scheduler` alone.
    """

    ordering: str
    most: int
    """Calls at a time, over all partitions of the handler."""
    runs: bool = False
    """A call gets a run of one partition's records, not one record: they stay together from their arrival on."""
    bounds: Bounds | None = None
    """Of batches: a run is one call's; None: its records are handled one after the other."""
    gate: Gate | None = None
    """What the settings put before its calls."""
    across: bool = False
    """A call has runs of several partitions, which fill its batch together."""
    busy: int = 0
    ready: ReadyLanes = field(default_factory=ReadyLanes)
    filling: dict[Lane, int] = field(default_factory=dict)
    """Lanes whose records wait for a fuller batch, and their bytes."""
    pace: ChunkPace = field(default_factory=ChunkPace)
    """Where runs are no batches: how many records between two looks at the clock."""
    lane_key: LaneKey = field(init=False)

    def __post_init__(self) -> None:
        self.lane_key = LANE_KEYS[self.ordering]

    def is_shut(self, now: int) -> bool:
        """Whether nothing of the handler may start now, whatever else may."""
        return self.gate is not None and not self.gate.room(now)

    def taken_at_once(self, flight: InFlight) -> int:
        """Number of that run's records for the next call."""
        tracker = flight.tracker
        if flight.offset < max(tracker.singly_until, tracker.alone_until):
            return 1
        if self.bounds is None:
            return self.pace.size
        return fitting(flight.messages[: self.bounds.records], self.bounds.bytes)


class Stage(Enum):
    """Stage of records in flight."""

    #: Fetched; behind others in their lane, or as soon as there is a free slot.
    QUEUED = "queued"
    #: A handler is called with them.
    RUNNING = "running"
    #: Handled; their outputs are on their way.
    SENDING = "sending"
    #: Their call has failed, and the loop has not come to that: until then nobody knows how they end.
    FAILED = "failed"
    #: Failed: they wait for their next try, or for their dead letters.
    WAITING = "waiting"
    #: Not kept in memory, to be fetched again.
    DROPPED = "dropped"
    #: Done with.
    DONE = "done"


@dataclass(slots=True, eq=False)
class InFlight:
    """Records from their arrival until they are done with: one, or a run of one partition's that one call gets.
    `number` is unique in the worker. An `outbox.Origin`.
    """

    number: int
    tracker: OffsetTracker
    lane: Lane
    offset: int
    """Of the first record."""
    epoch: int
    size: int
    messages: Sequence[Message]
    end: int = NO_OFFSET
    """The offset to go on from once they are done."""
    stage: Stage = Stage.QUEUED
    since_ns: int = 0
    """When the handler got it; while a batch fills, when it came."""
    failures: int = 0
    """Failed tries."""
    failing_since: int = 0
    """When the first of them failed (nanoseconds of `clock.now_ns`)."""
    undecoded: int = 0
    """How often in a row what decodes them, or encodes their outputs, was away; no failed tries."""
    poison: str = ""
    """Why it is not for the handler, however often it comes: it killed workers."""
    poison_deaths: int = 0
    waits_for: str = ""
    """While waiting: "retry", "wait", "circuit_breaker", "rate_limit", "dead_letter" or "retry_topic"."""
    wait: int = 0
    """Number of its latest wait."""
    paid: int = 0
    """So many of its leading records have waited for the rate limit, and may start."""
    why: str = ""
    """While waiting, in words."""
    entries: list[Entry] = field(default_factory=list)
    """What its handler returned, or letters in place of that, until it is delivered."""
    given_up: GivenUp | None = None
    """Set: they are the latter."""
    passed_over: tuple[End, str | None] | None = None
    """How the records end once their letters have arrived, and the label of the counter of such ends."""
    decided: BaseException | None = None
    """How the records end without a call: their handler has said so with those before them."""
    refusal: BaseException | None = None
    """Why the brokers will not take its outputs."""

    def __post_init__(self) -> None:
        if self.end == NO_OFFSET:
            self.end = self.offset + 1

    @property
    def tp(self) -> TopicPartition:
        return self.tracker.tp

    @property
    def stays_as_it_is(self) -> bool:
        """Whether these records are not cut, dropped, or gathered with others: they failed together, or end so."""
        return bool(self.failures or self.poison) or self.decided is not None

    @property
    def held(self) -> Sequence[Message]:
        """The records while they wait, and nothing once that is over."""
        return self.messages if self.stage is Stage.WAITING and not self.tracker.closed else ()

    @property
    def takes_all_outputs(self) -> bool:
        return self.takes_output_at(self.end - 1)

    def takes_output_at(self, offset: int) -> bool:
        refused_at = self.lane.refused_at
        return not self.tracker.discarded and (refused_at == NO_OFFSET or offset < refused_at)

    def has(self, offset: int) -> bool:
        """Whether the record at that offset would be among these."""
        return self.offset <= offset < self.end

    def leave(self, first: int, following: int, outputs: Sequence[Outgoing]) -> None:
        """Keep what the handler returned for the records from `first` up to `following`. Caller: the handler's call."""
        self.entries.append(Entry(self, first, following, outputs))

    def withdraw(self) -> None:
        """Drop the outputs of its handler's call: the records are handled again, or end otherwise."""
        self.entries, self.given_up, self.passed_over = [], None, None

    def refuse(self, offset: int, following: int, error: BaseException) -> int:
        """See `outbox.Origin`: it has failed by that, and what its lane went on with behind it is not delivered."""
        if not self.takes_output_at(offset):
            return 0
        self.refusal = error
        return self.lane.refuse(offset, following)


@dataclass(slots=True)
class Filled:
    """What a lane has queued for a fuller batch."""

    runs: int = 0
    """So many of what it has queued, from the first one on, are counted here."""
    records: int = 0
    nbytes: int = 0
    """Of values; where the batch has a bound for them."""
    of_one_epoch: bool = True


@dataclass(slots=True, eq=False)
class Lane:
    """Records that are handled one after the other."""

    tracker: OffsetTracker
    key: object
    queue: deque[InFlight] = field(default_factory=deque)
    """The first one may be running or waiting; it leaves when it is done."""
    ready: bool = False
    """In the list of those that may start."""
    ripe: bool = False
    """Its first batch need not become fuller."""
    hurries: bool = False
    """It was taken before others when it could not start: it waits for a fuller batch, and comes before them then."""
    filled: Filled | None = None
    """As far as it was counted; None: what it has queued has changed other than by what came."""
    sending: dict[InFlight, None] = field(default_factory=dict)
    """Handled and not delivered, in order, where the lane goes on meanwhile."""
    overtaken: InFlight | None = None
    """In hand when a refused record was put before it: nothing of the lane is started before it is back."""
    refused_at: int = NO_OFFSET
    """The lowest record whose outputs the brokers refuse; of it and those behind it nothing is to be delivered. Nothing
    of the lane is started until that is dealt with: it would be handled in vain, and kept in memory uncounted."""
    refused_to: int = NO_OFFSET
    """Up to there nobody knows whose output it was."""
    refusals: int = 0
    """Only who met the last one may have it handled again."""

    def make_ready(self, *, first: bool = False) -> None:
        """Put the lane among those that a free slot looks at; `first`: before the others."""
        if not self.ready:
            self.ready = True
            self.tracker.slots.ready.add(self, first=first or self.hurries)

    def refuse(self, offset: int, following: int) -> int:
        """Note a refusal; its number."""
        self.refused_at, self.refused_to = offset, following
        self.refusals += 1
        return self.refusals


@dataclass(slots=True, eq=False)
class OffsetTracker:
    """Progress of one partition under one grant."""

    tp: TopicPartition
    grant: int
    slots: Slots
    """Of the handler that has its records."""
    consumed: int
    epoch: int = NO_EPOCH
    """Of the last record below `consumed`."""
    done_before: set[int] = field(default_factory=set)
    """Offsets that were done under earlier grants, or within a batch of which an earlier record failed."""
    suspects: frozenset[int] = frozenset()
    """Records that are handled with nothing beside them."""
    alone_until: int = NO_OFFSET
    """Likewise everything before this offset."""
    singly_until: int = NO_OFFSET
    """Before this offset a call gets one record."""
    poisons: dict[int, Poison] = field(default_factory=dict)
    """Records that killed workers, by their own offset: one that was compacted away speaks against none behind it."""
    cell: int = NO_OFFSET
    """Where a call gets a run: index of the ledger's word in which the call stores how far it is."""
    closed: bool = False
    """Nothing of it is started any more."""
    overdue: bool = False
    """Its drain budget is over: nothing of it waits for the loop."""
    discarded: bool = False
    """It is lost: nothing that it has left is to be delivered."""
    served: bool = False
    """It has had a turn."""
    waits: bool = True
    """Its records may wait for a fuller batch."""
    following: int = 0
    """Beyond every offset that has arrived."""
    following_epoch: int = NO_EPOCH
    """Of the last record that has."""
    order: deque[InFlight] = field(default_factory=deque)
    """From the lowest unfinished one on, in offset order; where a call gets a run, only what was begun."""
    running: dict[InFlight, None] = field(default_factory=dict)
    """The oldest first."""
    failed: dict[InFlight, bool] = field(default_factory=dict)
    """Whether each of those keeps its slot."""
    waiting: set[InFlight] = field(default_factory=set)
    lanes: dict[object, Lane] = field(default_factory=dict)
    sending: set[InFlight] = field(default_factory=set)
    beyond: list[tuple[int, int, Lane]] = field(default_factory=list)
    """Heap of lanes whose next record lies beyond the window, each by that record's offset and number."""
    dropped: deque[InFlight] = field(default_factory=deque)
    """To be fetched again, in offset order; where a call gets a run, `following` is set back instead."""
    bytes: int = 0
    """Of what is queued."""
    parked_bytes: int = 0
    """Of what waits, or has its letters on their way."""
    placed: int = NO_OFFSET
    """Where transactions are committed: the offset that the last one was given."""
    began_with: int | None = None
    """See `FetcherStart`."""
    topic_id: str = ""
    """See `FetcherStart`."""
    passed: list[int] = field(default_factory=list)
    """Offsets that the consumed one has moved over since it was stored last; only of single records."""

    @property
    def oldest(self) -> InFlight | None:
        """Records that a handler has had in hand for the longest."""
        return next(iter(self.running), None)

    @property
    def handled_to(self) -> int:
        """Where a call gets a run: up to there everything is handled, delivered or not."""
        if not self.order:
            return self.consumed
        last = self.order[-1]
        return last.end if last.stage is Stage.SENDING else last.offset

    def look_for_poison(self, flight: InFlight) -> None:
        """Keep the record from the handler if it is one that killed workers."""
        if (poison := self.poisons.get(flight.offset)) is not None:
            flight.poison, flight.poison_deaths = poison.why, poison.deaths

    def advance(self) -> bool:
        """Drop what is done with nothing unfinished before it; whether the consumed offset has moved by that."""
        order = self.order
        if not order or order[0].stage is not Stage.DONE:
            return False
        while order and order[0].stage is Stage.DONE:
            flight = order.popleft()
            self.consumed, self.epoch = flight.end, flight.epoch
            if not self.slots.runs:
                self.passed.append(flight.offset)
        if order:
            self.pass_gap(order[0])
        # Only those that may start now: each that may not would come back with every record that ends.
        while self.beyond and self.beyond[0][0] < self.consumed + WINDOW:
            heappop(self.beyond)[2].make_ready()
        return True

    def pass_gap(self, flight: InFlight) -> None:
        """Move the consumed offset to the first record that is not done: what lies between has been deleted or
        compacted away, or is markers, and nothing there is unfinished.

        The record's leader epoch comes along. Leaders may have changed within the gap, and an offset beyond the end of
        its epoch passes for truncated: what is done ahead of it would be handled again.
        """
        if flight.offset > self.consumed:
            self.consumed, self.epoch = flight.offset, flight.epoch

    def pass_deleted(self, position: int) -> None:
        """Dropped records that did not come again before `position` were compacted away meanwhile."""
        gone = False
        while self.dropped and self.dropped[0].offset < position:
            self.dropped.popleft().stage = Stage.DONE
            gone = True
        if gone:
            self.advance()

    def done_ahead(self) -> Iterator[int]:
        """Offsets that are done beyond the consumed one: under this grant, and under earlier ones. Also some before it,
        as the ledger may not say yet that it has moved over them.
        """
        yield from (flight.offset for flight in self.order if flight.stage is Stage.DONE)
        yield from self.done_before

    def without_done(self, messages: Run) -> Run:
        """Messages without those that are done already: like compacted ones, gaps that the position passes."""
        return without(messages, self.done_before) if self.done_before else messages

    def position_with(self, delivered: Mapping[InFlight, int]) -> Position:
        """Position of the partition once these are done, each up to that offset, too."""
        consumed, epoch, ahead = self.consumed, self.epoch, []
        unfinished = False
        for flight in self.order:
            if unfinished and flight.offset >= consumed + WINDOW:
                break
            end = flight.end if flight.stage is Stage.DONE else delivered.get(flight, NO_OFFSET)
            if end < flight.end:
                if not unfinished and (at := max(flight.offset, end)) > consumed:
                    consumed, epoch = at, flight.epoch  # As in `pass_gap`.
                unfinished = True
            elif unfinished:
                ahead.append(flight.offset)
            else:
                consumed, epoch = flight.end, flight.epoch
        ahead += [offset for offset in self.done_before if offset >= consumed]
        return Position(consumed, epoch, written(consumed, frozenset(ahead), self.topic_id))


@dataclass(frozen=True, slots=True)
class Poison:
    """Why a record that killed workers is kept from the handler."""

    why: str
    deaths: int


_MESSAGE_BYTES = 600


def record_bytes(key: bytes | None, value: int, headers: int) -> int:
    """Memory of a queued record: key, value and headers of so many bytes, and what the message has around them."""
    return _MESSAGE_BYTES + headers + (0 if key is None else len(key)) + value
