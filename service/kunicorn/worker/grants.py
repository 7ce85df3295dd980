"""A grant as the worker sees it: one partition handed out to it, from StartFetcher to the final report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from confluent_kafka import Message
from confluent_kafka import TopicPartition as ClientPartition

from kunicorn.pipes.ledger import CONSUMED, HAND_COUNT, HAND_OFFSET, HAND_SINCE, HANDLED, LEADER_EPOCH
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
    #: Not assigned to the client until what was fetched of it is mostly done; only where several are in hand.
    ASIDE = "aside"


@dataclass(slots=True, eq=False)
class Grant:
    """Changed only under the fetcher's lock, except what is about failures and batches, which is the runner's."""

    number: int
    tp: TopicPartition
    at: int
    """Index of its ledger slot's first word."""
    state: GrantState = GrantState.WAITING
    assigned: bool = False
    stale_position: int = NO_OFFSET
    """librdkafka's position from before this assignment; it may be reported until a record was fetched."""
    failures: int = 0
    """Failed tries of the record (or batch) that comes next."""
    failing_since: int = 0
    """When the first of them failed (nanoseconds of `clock.now_ns`)."""
    poison: str = ""
    """Why the first record is not for the handler: it killed workers."""
    poison_deaths: int = 0
    ahead: frozenset[int] = frozenset()
    """Offsets that are done, though one before them is not."""
    gathering: bool = False
    """While fetching: some of its records wait for a fuller batch, so that the client's position is ahead of us."""
    held: Sequence[Message] = ()
    """While parked: the record, or the batch as it was, to try again. Never more: the rest is fetched again."""
    waits_for: str = ""
    """While parked: "retry" or "dead_letter"."""
    why: str = ""
    """While parked, in words."""
    resume_at: Position | None = None
    """From where it is fetched, if not from the next offset to handle: what lies between is known."""

    def from_where(self, cells: memoryview) -> ClientPartition:
        """The partition as the client takes it, from the next offset to handle on."""
        offset, epoch = cells[self.at + CONSUMED], cells[self.at + LEADER_EPOCH]
        if self.resume_at is not None:
            offset, epoch = self.resume_at.offset, self.resume_at.leader_epoch
        if epoch == NO_EPOCH:
            return ClientPartition(*self.tp, offset)
        return ClientPartition(*self.tp, offset, leader_epoch=epoch)

    def put_in_hand(self, cells: memoryview, offset: int, count: int, epoch: int, now: int) -> None:
        """The handler is about to get `count` records from `offset` on, written under `epoch`."""
        at = self.at
        if cells[at + LEADER_EPOCH] != epoch:
            # Before the first offset of that epoch: an older offset with a newer epoch is harmless.
            cells[at + LEADER_EPOCH] = epoch
        cells[at + HAND_OFFSET] = offset
        cells[at + HAND_SINCE] = now
        cells[at + HAND_COUNT] = count

    def in_hand(self, cells: memoryview) -> int:
        """The first unfinished offset of what the handler has."""
        return int(max(cells[self.at + HAND_OFFSET], cells[self.at + CONSUMED]))

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
