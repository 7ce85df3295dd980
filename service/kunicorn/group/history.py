"""The rebalances a member went through: what began them, how they ended, how long they took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_KEPT = 20


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance that is over. `seconds` from its first sign to a settled assignment."""

    generation: int
    reason: str
    result: str
    """"completed" or "lost"."""
    seconds: float
    ended_at: float


class History:
    """Counts rebalances; one that needs two joins (KIP-429) counts once."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: deque[Rebalance] = deque(maxlen=_KEPT)
        self._began: tuple[float, str] | None = None

    @property
    def open(self) -> bool:
        """Whether a rebalance is under way."""
        return self._began is not None

    def disturbed(self, reason: str, now: float) -> None:
        """The first sign of a rebalance; later ones until it settles belong to it."""
        if self._began is None:
            self._began = (now, reason)

    def settled(self, generation: int, result: str, now: float) -> None:
        """The rebalance is over."""
        began, reason = self._began or (now, "unannounced")
        self.count += 1
        self.recent.append(Rebalance(generation, reason, result, now - began, now))
        self._began = None
