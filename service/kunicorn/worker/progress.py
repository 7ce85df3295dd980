"""The progress of a partition in a worker. Pure; changed under the table's lock.

- `Grant`: one partition handed out to this worker, from StartFetcher to the final report.
- `Flight`: a record on its way where several are in hand; `Lane` and `Track`: where it belongs.
- `Hands`: how many records one handler may have in hand at a time, and what they may take next. Every handler has its
  own, with its own order; `scheduler.Lanes` decides over all of them.
- `settle` and what follows it: how far a partition is with its records, and what may start by that.
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


class GrantState(Enum):
    """Where an open grant stands; reported and failed grants are in no state, they are forgotten."""

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
    PUT_OFF = "put off"
    #: Not assigned to the client until what was fetched of it is mostly done, or to be ended then, as an error comes
    #: next; only where several are in hand.
    ASIDE = "aside"


@dataclass(slots=True, eq=False)
class Grant:
    """Changed only under the fetcher's lock, except what is about failures and batches, which is the runner's."""

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
    gathering: bool = False
    """While fetching: some of its records wait for a fuller batch, so that the client's position is ahead of us."""
    left_over: bool = False
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
        """That offset of it as the client commits it."""
        epoch, metadata = cells[self.at + LEADER_EPOCH], with_partitions(self.began_with, "")
        if epoch == NO_EPOCH:
            return ClientPartition(*self.tp, offset, metadata)
        return ClientPartition(*self.tp, offset, metadata, epoch)

    def _place(self, offset: int, epoch: int) -> ClientPartition:
        if epoch == NO_EPOCH:
            return ClientPartition(*self.tp, offset)
        return ClientPartition(*self.tp, offset, leader_epoch=epoch)

    def put_in_hand(self, cells: memoryview, following: Sequence[int], epoch: int, now: int) -> None:
        """The handler is about to get the records before these offsets, written under `epoch`."""
        at = self.at
        if cells[at + LEADER_EPOCH] != epoch:
            # Before the first offset of that epoch: an older offset with a newer epoch is harmless.
            cells[at + LEADER_EPOCH] = epoch
        cells[at + HAND_OFFSET] = following[0] - 1
        cells[self.busy_at + HAND_END] = following[-1]
        cells[at + HAND_SINCE] = now
        cells[at + HAND_COUNT] = len(following)

    def in_hand(self, cells: memoryview) -> int:
        """The first unfinished offset of what the handler has."""
        return int(max(cells[self.at + HAND_OFFSET], cells[self.at + CONSUMED]))

    def settled(self, cells: memoryview) -> bool:
        """All that was handled is delivered; always so where nothing is sent."""
        return self.handled_to <= int(cells[self.at + CONSUMED])

    def handled(self, following: int) -> None:
        """See `outbox.Origin`."""
        self.handled_to = max(self.handled_to, following)

    @property
    def takes_all_outputs(self) -> bool:
        """Whether there is nothing to leave out."""
        return not self.discarded and self.refused_at == NO_OFFSET

    def takes_output_at(self, offset: int) -> bool:
        """Whether what that record leaves is to be delivered."""
        return not self.discarded and (self.refused_at == NO_OFFSET or offset < self.refused_at)

    def refuse(self, offset: int, following: int, error: BaseException) -> None:
        """The brokers will not take what the records from `offset` up to `following` leave.

        One record has failed by that. Of a batch nobody knows whose output it was: its records are handled again, one
        at a time.
        """
        if not self.takes_output_at(offset):
            return
        self.refusals = self.refusals + 1 if offset == self.refused_before else 1
        self.refused_at = self.refused_before = offset
        self.singly_until = following
        self.refusal = error if following == offset + 1 else None

    def put_down(self, cells: memoryview, finished: int) -> None:
        """The handler has returned; `finished` records are done with."""
        cells[self.at + HANDLED] += finished
        cells[self.at + HAND_COUNT] = 0


class Failing(Protocol):
    """What has failed tries: a partition, or a single record where several are in hand."""

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
        """What waits; nothing when it was stopped meanwhile."""


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
        """Of the first of them."""
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
        self._of: OrderedDict[Track, deque[Lane]] = OrderedDict()
        """The partition whose turn it is comes first."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, lane: Lane, *, first: bool) -> None:
        """`first`: before all others, as a retry whose wait is over."""
        track = lane.track
        lanes = self._of.get(track)
        if lanes is None:
            self._of[track] = deque((lane,))
        elif first:
            lanes.appendleft(lane)
        else:
            lanes.append(lane)
        if first:
            self._of.move_to_end(track, last=False)

    def take(self) -> Lane:
        """The next one."""
        track = next(iter(self._of))
        lanes = self._of[track]
        lane = lanes.popleft()
        if lanes:
            self._of.move_to_end(track)
        else:
            del self._of[track]
        return lane

    def drop(self, track: Track) -> None:
        """None of that partition is to be started."""
        for lane in self._of.pop(track, ()):
            lane.ready = False


@dataclass(slots=True, eq=False)
class Hands:
    """Changed by `Lanes` alone."""

    ordering: str
    most: int
    """Records in hand at a time, over all partitions of the handler."""
    busy: int = 0
    ready: ReadyLanes = field(default_factory=ReadyLanes)
    lane_key: LaneKey = field(init=False)

    def __post_init__(self) -> None:
        self.lane_key = LANE_KEYS[self.ordering]


class Stage(Enum):
    """Where a record stands."""

    #: Fetched; behind others in its lane, or as soon as there is a free hand.
    QUEUED = "queued"
    #: In a handler's hands.
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
class Flight:
    """One record from its arrival until it is done with. `number` is unique in the worker."""

    number: int
    track: Track
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

    @property
    def tp(self) -> TopicPartition:
        """Its partition."""
        return self.track.tp

    @property
    def held(self) -> tuple[Any, ...]:
        """The record while it waits, and nothing once that is over."""
        return (self.message,) if self.stage is Stage.WAITING and not self.track.closed else ()

    @property
    def takes_all_outputs(self) -> bool:
        """See `outbox.Origin`."""
        refused_at = self.lane.refused_at
        return not self.track.discarded and (refused_at == NO_OFFSET or self.offset < refused_at)

    def takes_output_at(self, offset: int) -> bool:
        """See `outbox.Origin`."""
        return self.takes_all_outputs

    def withdraw(self) -> None:
        """What its handler returned is not to be delivered: it is handled again, or ends otherwise."""
        self.outputs, self.given_up = (), None

    def handled(self, following: int) -> None:
        """See `outbox.Origin`: its stage says so."""

    def refuse(self, offset: int, following: int, error: BaseException) -> None:
        """See `outbox.Origin`: it has failed by that, and what its lane went on with behind it is not delivered."""
        if self.takes_all_outputs:
            self.refusal, self.lane.refused_at = error, self.offset


@dataclass(slots=True, eq=False)
class Lane:
    """Records that are handled one after the other."""

    track: Track
    key: object
    queue: deque[Flight] = field(default_factory=deque)
    """The first one may be running or waiting; it leaves when it is done."""
    ready: bool = False
    """In the list of those that may start."""
    sending: dict[Flight, None] = field(default_factory=dict)
    """Handled and not delivered, in order, where the lane goes on meanwhile."""
    overtaken: Flight | None = None
    """In hand when a refused record was put before it: nothing of the lane is started before it is back."""
    refused_at: int = NO_OFFSET
    """The lowest record whose outputs the brokers refuse; of it and those behind it nothing is to be delivered."""


@dataclass(slots=True, eq=False)
class Track:
    """One partition under one grant."""

    tp: TopicPartition
    grant: int
    hands: Hands
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
    order: deque[Flight] = field(default_factory=deque)
    """From the lowest unfinished one on, in offset order."""
    running: dict[Flight, None] = field(default_factory=dict)
    """The oldest first."""
    waiting: set[Flight] = field(default_factory=set)
    lanes: dict[object, Lane] = field(default_factory=dict)
    sending: set[Flight] = field(default_factory=set)
    beyond: list[tuple[int, int, Lane]] = field(default_factory=list)
    """Heap of lanes whose next record lies beyond the window, each by that record's offset and number."""
    dropped: deque[Flight] = field(default_factory=deque)
    bytes: int = 0
    """Of what is queued."""
    placed: int = NO_OFFSET
    """Where transactions are committed: the offset that the last one was given."""
    began_with: int | None = None
    """See `FetcherStart`."""
    passed: list[int] = field(default_factory=list)
    """Offsets that the consumed one has moved over since it was stored last."""


def oldest(track: Track) -> Flight | None:
    """What a handler has had in hand for the longest."""
    return next(iter(track.running), None)


_MESSAGE_BYTES = 600


def kept_bytes(key: bytes | None, value: bytes | None, headers: int) -> int:
    """What a record takes in memory while it is queued: key, value, headers of so many bytes, and so much that the
    message has around them."""
    return _MESSAGE_BYTES + headers + (0 if key is None else len(key)) + (0 if value is None else len(value))


def settle(track: Track) -> bool:
    """Let go of what is done with nothing unfinished before it; whether the consumed offset has moved by that."""
    order = track.order
    if not order or order[0].stage is not Stage.DONE:
        return False
    while order and order[0].stage is Stage.DONE:
        flight = order.popleft()
        track.passed.append(flight.offset)
        track.consumed, track.epoch = flight.offset + 1, flight.epoch
    if order:
        track.consumed = order[0].offset
    # Only those that may start now: each that may not would come back with every record that ends.
    while track.beyond and track.beyond[0][0] < track.consumed + WINDOW:
        make_ready(heappop(track.beyond)[2])
    return True


def note_gone(track: Track, position: int) -> None:
    """Dropped records that did not come again were compacted away meanwhile."""
    gone = False
    while track.dropped and track.dropped[0].offset < position:
        track.dropped.popleft().stage = Stage.DONE
        gone = True
    if gone:
        settle(track)


def make_ready(lane: Lane, *, first: bool = False) -> None:
    """Put the lane among those that a free hand looks at; `first`: before the others."""
    if lane.ready:
        return
    lane.ready = True
    lane.track.hands.ready.add(lane, first=first)


def done_ahead(track: Track) -> Iterator[int]:
    """What is done beyond the consumed offset: under this grant, and under earlier ones."""
    yield from (flight.offset for flight in track.order if flight.stage is Stage.DONE)
    yield from (offset for offset in track.done_before if offset >= track.consumed)


def place_with(track: Track, delivered: Collection[Flight]) -> Position:
    """How far the partition is once these are done, too."""
    consumed, epoch, ahead = track.consumed, track.epoch, []
    unfinished = False
    for flight in track.order:
        if unfinished and flight.offset >= consumed + WINDOW:
            break
        if flight.stage is not Stage.DONE and flight not in delivered:
            consumed, unfinished = (consumed if unfinished else flight.offset), True
        elif unfinished:
            ahead.append(flight.offset)
        else:
            consumed, epoch = flight.offset + 1, flight.epoch
    ahead += [offset for offset in track.done_before if offset >= consumed]
    return Position(consumed, epoch, written(consumed, frozenset(ahead)))
