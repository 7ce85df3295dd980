"""What members of either protocol have in common. Pure; times are seconds of the driver's clock.

- `Standing`: what a member knows about its standing in the group.
- `Pulse` and `Patience`: when it speaks, in heartbeats and retries; `Timings`: until when its membership is certain.
- `Search`: where the coordinator is, as far as it knows.
- `History`: the rebalances it went through: what began them, how they ended, how long they took.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from kunicorn.group import events as ev
from kunicorn.group.events import BeCertain, Command
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.states import COMMITTING, State

_JITTER = 0.2
"""Kafka's `ExponentialBackoff`: members cut off together must not come back together."""


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


class Pulse:
    """When the next heartbeat is due."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._fast_until = float("-inf")
        self.due = float("-inf")

    def hurry(self, now: float) -> None:
        """Membership changed: beat at once, and fast for a while."""
        self._fast_until = now + self._timings.fast_period
        self.due = now

    def sent(self, now: float, *, unsettled: bool) -> None:
        """A heartbeat went out; `unsettled` members keep the fast interval."""
        fast = unsettled or now < self._fast_until
        timings = self._timings
        self.due = now + (min(timings.fast_heartbeat_interval, timings.heartbeat_interval) if fast
                          else timings.heartbeat_interval)  # fmt: skip


class Patience:
    """Exponential backoff with jitter between retries of joins and look-ups."""

    def __init__(self, timings: Timings, rng: random.Random) -> None:
        self._timings = timings
        self._rng = rng
        self._failures = 0
        self.until = float("-inf")
        """Nothing is retried before then."""

    def failed(self, now: float) -> None:
        """One more failure in a row."""
        timings = self._timings
        wait = min(timings.retry_backoff * 2.0**self._failures, timings.retry_backoff_max)
        self.until = now + wait * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        self._failures = min(self._failures + 1, 30)

    def succeeded(self) -> None:
        """The next failure starts from the shortest wait."""
        self._failures = 0
        self.until = float("-inf")


class Search:
    """The coordinator is known, being looked up, or to be looked up as soon as patience allows; one look-up at a time.

    Losing it costs a member nothing: id, generation and partitions stay until a coordinator says otherwise.
    """

    def __init__(self, patience: Patience) -> None:
        """`patience` is shared with the member's other retries: a cluster in trouble is not asked twice as often."""
        self.known = False
        self._looking = False
        self._patience = patience

    def found(self) -> None:
        """The look-up succeeded. Whether that helps is for the node to show: a dead one is named until it is fenced,
        seven to twelve seconds later, and each try there fails at once."""
        self._looking, self.known = False, True

    def refused(self, now: float) -> None:
        """The look-up failed: again, after a while."""
        self._looking = False
        self._patience.failed(now)

    def lost(self, why: str, now: float) -> list[Command]:
        """The coordinator is elsewhere or silent."""
        if not self.known:
            return []
        self.known = False
        self._patience.failed(now)
        return [ev.ForgetCoordinator(why)]

    def due(self, now: float) -> list[Command]:
        """The look-up, if one is due."""
        if self.known or self._looking or now < self._patience.until:
            return []
        self._looking = True
        return [ev.FindCoordinator()]

    def deadline(self) -> float:
        """When the next look-up is due; infinity while one is under way. Only while the coordinator is not known."""
        return float("inf") if self._looking else self._patience.until


_KEPT = 20


class Cause(StrEnum):
    """What began a rebalance, in one word for the metrics; the reason has the words."""

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
    """"completed" or "lost"."""
    seconds: float
    ended_at: float
    cause: Cause = Cause.GROUP


class History:
    """Counts rebalances; one that needs two joins (KIP-429) counts once."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: deque[Rebalance] = deque(maxlen=_KEPT)
        self._began: tuple[float, str, Cause] | None = None

    @property
    def open(self) -> bool:
        """Whether a rebalance is under way."""
        return self._began is not None

    def disturbed(self, reason: str, now: float, cause: Cause) -> None:
        """The first sign of a rebalance; later ones until it settles belong to it."""
        if self._began is None:
            self._began = (now, reason, cause)

    def settled(self, generation: int, result: str, now: float) -> None:
        """The rebalance is over."""
        began, reason, cause = self._began or (now, "unannounced", Cause.GROUP)
        self.count += 1
        self.recent.append(Rebalance(generation, reason, result, now - began, now, cause))
        self._began = None


class Standing:
    """Who we are to the coordinator, since when, and how certain that is. Times are seconds of the driver's clock."""

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
        self.certain_until: float | None = None
        self.session_timeout = timings.session_timeout
        """Without an answer for so long we are out: what the brokers have for us, or our setting where it is less."""
        self.history = History()
        self._rebalance_timeout = timings.rebalance_timeout
        self._expelled_at = float("inf")
        """When at the earliest the coordinator goes on without us whatever heartbeats it has had: the rebalance timeout
        after we last knew that none was under way for us."""
        self._pulse = Pulse(timings)
        self._patience = Patience(timings, rng)
        self._search = Search(self._patience)

    @property
    def may_commit(self) -> bool:
        """Whether the broker takes commits of our generation now (invariant 2)."""
        return self.state in COMMITTING and self.generation != NO_GENERATION

    def _certain(self, sent_at: float) -> Command:
        until = sent_at + self.session_timeout
        # What was promised before a rebalance ends with it where the session outlives the rebalance timeout.
        self.certain_until = min(max(until, self.certain_until or until), self._expelled_at)
        return BeCertain(self.certain_until)
