"""Exponential backoff with jitter; pure, the caller waits."""

from __future__ import annotations

from random import Random

_FACTOR = 2.0
_JITTER = 0.2
"""Kafka's own (KIP-144, KIP-580): without it, everybody that lost the same broker comes back at the same instant."""


class Backoff:
    """Delays in seconds: `initial`, doubled each time up to `maximum`, each ±20 %."""

    def __init__(self, initial: float, maximum: float, rng: Random) -> None:
        self._initial = initial
        self._maximum = maximum
        self._rng = rng
        self._delay = initial

    def next(self) -> float:
        """The seconds to wait before the next try."""
        delay = self._delay
        self._delay = min(delay * _FACTOR, self._maximum)
        return delay * self._rng.uniform(1 - _JITTER, 1 + _JITTER)

    def reset(self) -> None:
        """Something worked: the next failure starts over with the initial delay."""
        self._delay = self._initial
