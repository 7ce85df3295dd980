"""A grant as the worker sees it: one partition handed out to it, from StartFetcher to the final report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.pipes.ledger import CONSUMED, HAND_COUNT, HAND_END, HAND_OFFSET, HAND_SINCE, HANDLED, LEADER_EPOCH
from kunicorn.pipes.marks import with_partitions
from kunicorn.pipes.messages import Failed
from kunicorn.topics import NO_EPOCH, NO_OFFSET, Position, TopicPartition


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
