"""What a member of either protocol knows about its standing in the group."""

from __future__ import annotations

import random

from kunicorn.group.events import BeCertain, Command
from kunicorn.group.history import History
from kunicorn.group.protocol import NO_GENERATION
from kunicorn.group.search import Search
from kunicorn.group.states import COMMITTING, State
from kunicorn.group.timing import Patience, Pulse, Timings


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
