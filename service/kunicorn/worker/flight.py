"""A record on its way through a worker that has several in hand, and where it belongs: its lane and its track. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kunicorn.handling.outputs import Outgoing
from kunicorn.topics import NO_EPOCH, NO_OFFSET, TopicPartition
from kunicorn.worker.hands import Hands
from kunicorn.worker.outbox import GivenUp


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
