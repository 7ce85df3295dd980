"""Progress of a partition in a worker: its grant, its records in flight, their lanes, its consumed offset. Pure;
changed under the table's lock.

- `Interrupts`: what stops the loop before its next record.
- `Grant`: one partition handed out to this worker, from StartFetcher to the final report.
- `InFlight`: a record on its way where several are in hand; `Lane`: the records that are handled one after the other;
  `OffsetTracker`: how far its partition is, and what may start by that.
- `Slots`: how many records one handler may have in hand at a time, and what they may take next. Every handler has its
  own, with its own order; `scheduler.Scheduler` decides over all of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.handler.outputs import Outgoing
from kunicorn.ipc.bitmap import WINDOW, with_partitions, written
from kunicorn.ipc.ledger import CONSUMED, HAND_COUNT, HAND_END, HAND_OFFSET, HAND_SINCE, HANDLED, LEADER_EPOCH
from kunicorn.ipc.messages import Failed
from kunicorn.positions import NO_EPOCH, NO_OFFSET, Position, TopicPartition
from kunicorn.worker.produce.outbox import GivenUp


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

    #: Its slot is open; fetching starts when the runner has let go of its batch.
    WAITING = "waiting"
    #: Assigned to the client, nothing in hand.
    FETCHING = "fetching"
    #: The handler has records of it.
    IN_HAND = "in hand"
    #: In hand and to be given up: reported as soon as the handler returns.
    STOPPING = "stopping"
    #: Its record failed and waits for the next try; not assigned to the client meanwhile.
    PARKED = "parked"
    #: Its next record, of a retry topic, waits for its time; not assigned to the client meanwhile.
    DELAYED = "delayed"
    #: Not assigned to the client until what was fetched of it is mostly done, or to be ended then, as an error comes
    #: next; only where several are in hand.
    ASIDE = "aside"


@dataclass(slots=True, eq=False)
class Grant:
    """One partition handed out to this worker. Changed only under the table's lock, except what is about failures and
    batches, which is the runner's.
    """

    number: int
    tp: TopicPartition
    at: int
    """Index of its ledger slot's first word."""
    busy_at: int
    """Index of the ledger's word for the time that its records have taken; behind it is that of the run's end."""
    state: GrantState = GrantState.WAITING
    assigned: bool = False
    failures: int = 0
    """Failed tries of the record (or batch) that comes next."""
    failing_since: int = 0
    """When the first of them failed (nanoseconds of `clock.now_ns`)."""
    poison: str = ""
    """Why a record is not for the handler: it killed workers."""
    poison_deaths: int = 0
    poison_at: int = NO_OFFSET
    """It is the first record from this offset on; what comes before it is handled, one by one."""
    handled_to: int = NO_OFFSET
    """Where outputs are sent: handled up to here, while the ledger tells how far they are delivered."""
    refused_at: int = NO_OFFSET
    """The record whose outputs the brokers refuse; from it on nothing more is put into the outbox."""
    refusal: BaseException | None = None
    """Why; met in place of the handler when that record comes again."""
    refusals: int = 0
    refused_before: int = NO_OFFSET
    """How often that record was refused in a row, and which it was."""
    refusal_number: int = 0
    """Of the last refusal; only who met that one may rewind."""
    singly_until: int = NO_OFFSET
    """From where it is rewound to up to here, records are handled one at a time."""
    rewinds: bool = False
    """To be fetched again from the consumed offset on."""
    assignments: int = 0
    """How often it was assigned to the client: what was fetched before that comes once more."""
    stopped: bool = False
    """By the supervisor: it does not go on, whatever is refused."""
    discarded: bool = False
    """The grant is over: what it has left in the outbox is not to be delivered."""
    last_word: Failed | None = None
    """While settling: how it ends, where it is not by `FetcherStopped`."""
    began_with: int | None = None
    """See `FetcherStart`."""
    ahead: frozenset[int] = frozenset()
    """Offsets that are done, though one before them is not."""
    waits_for_batch: bool = False
    """While fetching: some of its records wait for a fuller batch, so that the client's position is ahead of us."""
    waits_for_turn: bool = False
    """Likewise: some wait for the next turn."""
    held: Sequence[Message] = ()
    """While parked: the record, or the batch as it was, to try again. Never more: the rest is fetched again."""
    waits_for: str = ""
    """While parked or put off: "retry", "dead_letter", "retry_topic" or "delay"."""
    why: str = ""
    """While parked or put off, in words."""
    resume_at: Position | None = None
    """From where it is fetched, if not from the next offset to handle: what lies between is known."""

    def from_where(self, cells: memoryview) -> ClientPartition:
        """The partition as the client takes it, from the next offset to handle on.

        What is handled and not delivered yet lies before it: fetched again, its outputs would be sent twice.
        """
        if self.resume_at is not None:
            return self._place(self.resume_at.offset, self.resume_at.leader_epoch)
        return self._place(max(cells[self.at + CONSUMED], self.handled_to), cells[self.at + LEADER_EPOCH])

    def place(self, cells: memoryview, offset: int) -> ClientPartition:
        """That offset of the partition, as the client commits it."""
        epoch, metadata = cells[self.at + LEADER_EPOCH], with_partitions(self.began_with, "")
        if epoch == NO_EPOCH:
            return ClientPartition(*self.tp, offset, metadata)
        return ClientPartition(*self.tp, offset, metadata, epoch)

    def _place(self, offset: int, epoch: int) -> ClientPartition:
        if epoch == NO_EPOCH:
            return ClientPartition(*self.tp, offset)
        return ClientPartition(*self.tp, offset, leader_epoch=epoch)

    def put_in_hand(self, cells: memoryview, following: Sequence[int], epoch: int, now: int) -> None:
        """Note in the ledger that the handler is about to get the records before these offsets, written under
        `epoch`.
        """
        at = self.at
        if cells[at + LEADER_EPOCH] != epoch:
            # Before the first offset of that epoch: an older offset with a newer epoch is harmless.
            cells[at + LEADER_EPOCH] = epoch
        cells[at + HAND_OFFSET] = following[0] - 1
        cells[self.busy_at + HAND_END] = following[-1]
        cells[at + HAND_SINCE] = now
        cells[at + HAND_COUNT] = len(following)

    def in_hand(self, cells: memoryview) -> int:
        """First unfinished offset of what the handler has."""
        return int(max(cells[self.at + HAND_OFFSET], cells[self.at + CONSUMED]))

    def all_delivered(self, cells: memoryview) -> bool:
        """Whether all that was handled is delivered; always so where nothing is sent."""
        return self.handled_to <= int(cells[self.at + CONSUMED])

    def handled(self, following: int) -> None:
        self.handled_to = max(self.handled_to, following)

    @property
    def takes_all_outputs(self) -> bool:
        """Whether no output is to be left out."""
        return not self.discarded and self.refused_at == NO_OFFSET

    def takes_output_at(self, offset: int) -> bool:
        """Whether outputs of that record are to be delivered."""
        return not self.discarded and (self.refused_at == NO_OFFSET or offset < self.refused_at)

    def refuse(self, offset: int, following: int, error: BaseException) -> int:
        """Note that the brokers will not take outputs of the records from `offset` up to `following`; see
        `outbox.Origin`.

        One record has failed by that. Of a batch nobody knows whose output it was: its records are handled again, one
        at a time.
        """
        if not self.takes_output_at(offset):
            return 0
        self.refusals = self.refusals + 1 if offset == self.refused_before else 1
        self.refused_at = self.refused_before = offset
        self.singly_until = following
        self.refusal = error if following == offset + 1 else None
        self.refusal_number += 1
        return self.refusal_number

    def put_down(self, cells: memoryview, finished: int) -> None:
        """Note in the ledger that the handler has returned; `finished` records are done with."""
        cells[self.at + HANDLED] += finished
        cells[self.at + HAND_COUNT] = 0


class Failing(Protocol):
    """Holder of failed tries: a partition, or a single record where several are in hand."""

    failures: int
    failing_since: int
    poison: str
    poison_deaths: int

    @property
    def number(self) -> int: ...
    @property
    def tp(self) -> TopicPartition: ...
    @property
    def held(self) -> Sequence[Message]:
        """Records that wait; none when it was stopped meanwhile."""


F = TypeVar("F", bound=Failing)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[F]):
    """Records that failed together: one, or a batch."""

    grant: F
    records: Sequence[Message]
    following: int
    """The offset to go on from once they are done with."""
    finished: int = 0
    """Records handled before them in the same go."""
    nanoseconds: int = 0
    calls: int = 1
    """Calls of the handler in that go, the failed one included; 0 where there was none."""

    @property
    def offset(self) -> int:
        """Offset of the first record."""
        offset = self.records[0].offset()
        return NO_OFFSET if offset is None else offset


LaneKey = Callable[[int, bytes | None], object]

LANE_KEYS: dict[str, LaneKey] = {
    "partition": lambda offset, key: None,
    # Without a key there is no order to keep: Kafka itself spreads such records over the partitions as it likes.
    "key": lambda offset, key: offset if key is None else key,
    "none": lambda offset, key: offset,
}
"""By ordering: what records of one lane have in common, by offset and key."""


class ReadyLanes:
    """Lanes whose first record may be started, if nothing of it has changed since: one of each partition in turn, so
    that what comes to a partition waits for none of another one's backlog."""

    def __init__(self) -> None:
        self._of: OrderedDict[OffsetTracker, deque[Lane]] = OrderedDict()
        """The partition whose turn it is comes first."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, lane: Lane, *, first: bool) -> None:
        """`first`: before all others, as a retry whose wait is over."""
        tracker = lane.tracker
        lanes = self._of.get(tracker)
        if lanes is None:
            self._of[tracker] = deque((lane,))
        elif first:
            lanes.appendleft(lane)
        else:
            lanes.append(lane)
        if first:
            self._of.move_to_end(tracker, last=False)

    def take(self) -> Lane:
        tracker = next(iter(self._of))
        lanes = self._of[tracker]
        lane = lanes.popleft()
        if lanes:
            self._of.move_to_end(tracker)
        else:
            del self._of[tracker]
        return lane

    def drop(self, tracker: OffsetTracker) -> None:
        """Remove the lanes of that partition."""
        for lane in self._of.pop(tracker, ()):
            lane.ready = False


@dataclass(slots=True, eq=False)
class Slots:
    """Concurrency slots of one handler: their number, those in use, and the lanes that are ready to start. Changed by
    `Scheduler` alone.
    """

    ordering: str
    most: int
    """Records in hand at a time, over all partitions of the handler."""
    busy: int = 0
    ready: ReadyLanes = field(default_factory=ReadyLanes)
    lane_key: LaneKey = field(init=False)

    def __post_init__(self) -> None:
        self.lane_key = LANE_KEYS[self.ordering]


class Stage(Enum):
    """Stage of a record in flight."""

    #: Fetched; behind others in its lane, or as soon as there is a free slot.
    QUEUED = "queued"
    #: A handler is called with it.
    RUNNING = "running"
    #: Handled; its outputs are on their way.
    SENDING = "sending"
    #: Failed: waits for its next try, or for its dead letter.
    WAITING = "waiting"
    #: Not kept in memory, to be fetched again.
    DROPPED = "dropped"
    #: Done with.
    DONE = "done"


@dataclass(slots=True, eq=False)
class InFlight:
    """A record from its arrival until it is done with. `number` is unique in the worker."""

    number: int
    tracker: OffsetTracker
    lane: Lane
    offset: int
    epoch: int
    size: int
    message: Any
    stage: Stage = Stage.QUEUED
    since_ns: int = 0
    """When the handler got it."""
    failures: int = 0
    failing_since: int = 0
    poison: str = ""
    """Why it is not for the handler: it killed workers."""
    poison_deaths: int = 0
    waits_for: str = ""
    why: str = ""
    outputs: Sequence[Outgoing] = ()
    """What its handler returned, or the dead letter in place of that, until it is delivered."""
    given_up: GivenUp | None = None
    """Set: it is the latter."""
    refusal: BaseException | None = None
    """Why the brokers will not take its outputs."""
    refusal_number: int = 0

    @property
    def tp(self) -> TopicPartition:
        return self.tracker.tp

    @property
    def held(self) -> tuple[Any, ...]:
        """The record while it waits, and nothing once that is over."""
        return (self.message,) if self.stage is Stage.WAITING and not self.tracker.closed else ()

    @property
    def takes_all_outputs(self) -> bool:
        refused_at = self.lane.refused_at
        return not self.tracker.discarded and (refused_at == NO_OFFSET or self.offset < refused_at)

    def takes_output_at(self, offset: int) -> bool:
        return self.takes_all_outputs

    def withdraw(self) -> None:
        """Drop the outputs of its handler's call: the record is handled again, or ends otherwise."""
        self.outputs, self.given_up = (), None

    def handled(self, following: int) -> None:
        """See `outbox.Origin`: its stage says so."""

    def refuse(self, offset: int, following: int, error: BaseException) -> int:
        """See `outbox.Origin`: it has failed by that, and what its lane went on with behind it is not delivered."""
        if not self.takes_all_outputs:
            return 0
        self.refusal, self.lane.refused_at = error, self.offset
        self.refusal_number += 1
        return self.refusal_number


@dataclass(slots=True, eq=False)
class Lane:
    """Records that are handled one after the other."""

    tracker: OffsetTracker
    key: object
    queue: deque[InFlight] = field(default_factory=deque)
    """The first one may be running or waiting; it leaves when it is done."""
    ready: bool = False
    """In the list of those that may start."""
    sending: dict[InFlight, None] = field(default_factory=dict)
    """Handled and not delivered, in order, where the lane goes on meanwhile."""
    overtaken: InFlight | None = None
    """In hand when a refused record was put before it: nothing of the lane is started before it is back."""
    refused_at: int = NO_OFFSET
    """The lowest record whose outputs the brokers refuse; of it and those behind it nothing is to be delivered."""

    def make_ready(self, *, first: bool = False) -> None:
        """Put the lane among those that a free slot looks at; `first`: before the others."""
        if not self.ready:
            self.ready = True
            self.tracker.slots.ready.add(self, first=first)


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
    """Offsets that were done under earlier grants."""
    suspects: frozenset[int] = frozenset()
    closed: bool = False
    """Nothing of it is started any more."""
    discarded: bool = False
    """It is lost: nothing that it has left is to be delivered."""
    following: int = 0
    """Beyond every offset that has arrived."""
    order: deque[InFlight] = field(default_factory=deque)
    """From the lowest unfinished one on, in offset order."""
    running: dict[InFlight, None] = field(default_factory=dict)
    """The oldest first."""
    waiting: set[InFlight] = field(default_factory=set)
    lanes: dict[object, Lane] = field(default_factory=dict)
    sending: set[InFlight] = field(default_factory=set)
    beyond: list[tuple[int, int, Lane]] = field(default_factory=list)
    """Heap of lanes whose next record lies beyond the window, each by that record's offset and number."""
    dropped: deque[InFlight] = field(default_factory=deque)
    bytes: int = 0
    """Of what is queued."""
    placed: int = NO_OFFSET
    """Where transactions are committed: the offset that the last one was given."""
    began_with: int | None = None
    """See `FetcherStart`."""
    passed: list[int] = field(default_factory=list)
    """Offsets that the consumed one has moved over since it was stored last."""

    @property
    def oldest(self) -> InFlight | None:
        """Record that a handler has had in hand for the longest."""
        return next(iter(self.running), None)

    def advance(self) -> bool:
        """Drop what is done with nothing unfinished before it; whether the consumed offset has moved by that."""
        order = self.order
        if not order or order[0].stage is not Stage.DONE:
            return False
        while order and order[0].stage is Stage.DONE:
            flight = order.popleft()
            self.passed.append(flight.offset)
            self.consumed, self.epoch = flight.offset + 1, flight.epoch
        if order:
            self.consumed = order[0].offset
        # Only those that may start now: each that may not would come back with every record that ends.
        while self.beyond and self.beyond[0][0] < self.consumed + WINDOW:
            heappop(self.beyond)[2].make_ready()
        return True

    def pass_deleted(self, position: int) -> None:
        """Dropped records that did not come again before `position` were compacted away meanwhile."""
        gone = False
        while self.dropped and self.dropped[0].offset < position:
            self.dropped.popleft().stage = Stage.DONE
            gone = True
        if gone:
            self.advance()

    def done_ahead(self) -> Iterator[int]:
        """Offsets that are done beyond the consumed one: under this grant, and under earlier ones."""
        yield from (flight.offset for flight in self.order if flight.stage is Stage.DONE)
        yield from (offset for offset in self.done_before if offset >= self.consumed)

    def position_with(self, delivered: Collection[InFlight]) -> Position:
        """Position of the partition once these are done, too."""
        consumed, epoch, ahead = self.consumed, self.epoch, []
        unfinished = False
        for flight in self.order:
            if unfinished and flight.offset >= consumed + WINDOW:
                break
            if flight.stage is not Stage.DONE and flight not in delivered:
                consumed, unfinished = (consumed if unfinished else flight.offset), True
            elif unfinished:
                ahead.append(flight.offset)
            else:
                consumed, epoch = flight.offset + 1, flight.epoch
        ahead += [offset for offset in self.done_before if offset >= consumed]
        return Position(consumed, epoch, written(consumed, frozenset(ahead)))


_MESSAGE_BYTES = 600


def kept_bytes(key: bytes | None, value: bytes | None, headers: int) -> int:
    """Memory of a queued record: key, value, headers of so many bytes, and what the message has around them."""
    return _MESSAGE_BYTES + headers + (0 if key is None else len(key)) + (0 if value is None else len(value))
