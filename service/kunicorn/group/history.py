"""The rebalances a member went through: what began them, how they ended, how long they took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

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
