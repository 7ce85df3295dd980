"""The parts that members of both protocols share. Pure; times are seconds of the driver's clock.

- `GroupMember`: a member's state, id, generation and lease.
- `HeartbeatSchedule` and `RetrySchedule`: when heartbeats and retries are due; `Timings`: the settings of time.
- `CoordinatorLookup`: where the coordinator is, as far as it knows.
- `History`: the rebalances it went through: what began them, how they ended, how long they took.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from kunicorn.backoff import Backoff, Retries
from kunicorn.group import events as ev
from kunicorn.group.events import Command, ExtendLease
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.states import COMMITTING, State


@dataclass(frozen=True, slots=True)
class Timings:
    """A member's settings of time, in seconds."""

    session_timeout: float = 45.0
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 1.0
    fast_heartbeat_interval: float = 0.5
    """Right after an assignment: the second phase of a cooperative rebalance is announced by a heartbeat."""
    fast_period: float = 27.0
    """How long after an assignment the fast interval holds: the longest drain of another member, and a bit."""
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0


class HeartbeatSchedule:
    """When the next heartbeat is due."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._fast_until = float("-inf")
        self.due = float("-inf")

    def hurry(self, now: float) -> None:
        """Send a heartbeat at once, and fast ones for a while: the membership has changed."""
        self._fast_until = now + self._timings.fast_period
        self.due = now

    def sent(self, now: float, *, unsettled: bool) -> None:
        """Note that a heartbeat was sent; `unsettled` members keep the fast interval."""
        fast = unsettled or now < self._fast_until
        timings = self._timings
        self.due = now + (min(timings.fast_heartbeat_interval, timings.heartbeat_interval) if fast
                          else timings.heartbeat_interval)  # fmt: skip


class RetrySchedule:
    """When a join or a look-up that failed is due again."""

    def __init__(self, timings: Timings, rng: random.Random) -> None:
        self._retries = Retries(Backoff(timings.retry_backoff, timings.retry_backoff_max), rng.random)
        self.due = float("-inf")
        """Nothing is retried before then."""

    def failed(self, now: float) -> None:
        """One more failure in a row."""
        self.due = now + self._retries.failed()

    def succeeded(self) -> None:
        """The next failure starts from the shortest wait."""
        self._retries.succeeded()
        self.due = float("-inf")


class CoordinatorLookup:
    """When the coordinator is to be looked up: one look-up at a time, none while it is known.

    Losing it costs a member nothing: id, generation and partitions stay until a coordinator says otherwise.
    """

    def __init__(self, retries: RetrySchedule) -> None:
        """`retries` are shared with the member's other retries: a cluster in trouble is not asked twice as often."""
        self.known = False
        self._looking = False
        self._retries = retries

    def found(self) -> None:
        """Note that the look-up succeeded. The backoff goes on: a dead node is named until it is fenced, seven to
        twelve seconds later, and each try there fails at once."""
        self._looking, self.known = False, True

    def refused(self, now: float) -> None:
        """Note that the look-up failed; the next one is due after the backoff."""
        self._looking = False
        self._retries.failed(now)

    def lost(self, why: str, now: float) -> list[Command]:
        """Forget a coordinator that moved, or does not answer."""
        if not self.known:
            return []
        self.known = False
        self._retries.failed(now)
        return [ev.ForgetCoordinator(why)]

    def due(self, now: float) -> list[Command]:
        """The look-up, if one is due."""
        if self.known or self._looking or now < self._retries.due:
            return []
        self._looking = True
        return [ev.FindCoordinator()]

    def deadline(self) -> float:
        """When the next look-up is due; infinity while one is under way. Only while the coordinator is not known."""
        return float("inf") if self._looking else self._retries.due


_KEPT = 20


class Cause(StrEnum):
    """The cause of a rebalance, in one word for the metrics; its reason has the words."""

    #: This member joined, or came back.
    JOIN = "join"
    #: The coordinator wanted it: another member came, went or changed its mind.
    GROUP = "group"
    #: The topics are others, or have more partitions.
    TOPICS = "topics"
    #: The coordinator has excluded this member.
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance that is over. `seconds` from its first sign to a settled assignment."""

    generation: int
    reason: str
    result: str
    """"completed", "lost" or "failed": the coordinator did not take the plan."""
    seconds: float
    ended_at: float
    cause: Cause = Cause.GROUP


class History:
    """The rebalances of a member; one that needs two joins (KIP-429) counts once."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: deque[Rebalance] = deque(maxlen=_KEPT)
        self._began: tuple[float, str, Cause] | None = None

    @property
    def open(self) -> bool:
        """Whether a rebalance is under way."""
        return self._began is not None

    def begin(self, reason: str, now: float, cause: Cause) -> None:
        """Note the first sign of a rebalance; later ones until `end` belong to it."""
        if self._began is None:
            self._began = (now, reason, cause)

    def end(self, generation: int, result: str, now: float) -> None:
        """Note the end of the rebalance."""
        began, reason, cause = self._began or (now, "unannounced", Cause.GROUP)
        self.count += 1
        self.recent.append(Rebalance(generation, reason, result, now - began, now, cause))
        self._began = None


class GroupMember:
    """A group member's state, id, generation and lease, whatever its protocol. Times are seconds of the driver's
    clock."""

    def __init__(self, member_id: str, instance_id: str | None, timings: Timings, rng: random.Random) -> None:
        self.state = State.IDLE
        self.generation = NO_GENERATION
        """In the consumer protocol, the member epoch."""
        self.member_id = member_id
        self.instance_id = instance_id
        self.assignor: str | None = None
        self.joined = False
        """Has been stable at least once."""
        self.heartbeat_ok_at: float | None = None
        self.lease_until: float | None = None
        self.session_timeout = timings.session_timeout
        """Without an answer for so long we are out: what the brokers have for us, or our setting where it is less."""
        self.history = History()
        self._rebalance_timeout = timings.rebalance_timeout
        self._expelled_at = float("inf")
        """When at the earliest the coordinator goes on without us whatever heartbeats it has had: the rebalance timeout
        after we last knew that none was under way for us."""
        self._schedule = HeartbeatSchedule(timings)
        self._retries = RetrySchedule(timings, rng)
        self._coordinator = CoordinatorLookup(self._retries)

    @property
    def may_commit(self) -> bool:
        """Whether the broker takes commits of our generation now (invariant 2)."""
        return self.state in COMMITTING and self.generation != NO_GENERATION

    def _extend_lease(self, sent_at: float) -> Command:
        # A rebalance may begin at the next moment, and end without us while nothing of it reaches us.
        until = sent_at + min(self.session_timeout, self._rebalance_timeout)
        # What was promised before a rebalance ends with it where the session outlives the rebalance timeout.
        self.lease_until = min(max(until, self.lease_until or until), self._expelled_at)
        return ExtendLease(self.lease_until)
