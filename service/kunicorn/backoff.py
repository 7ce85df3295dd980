"""Exponential backoff with jitter: how long to wait before what has failed is tried again. Pure; the caller waits.
Small, as it is part of every start, and lies below whatever retries: group, Kafka client, handler, workers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

_MOST_DOUBLINGS = 62
"""What fails for days has failed more often than two can be raised to in a float."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow by `factor` from `first_seconds` up to `longest_seconds`, each ± `jitter` of it."""

    first_seconds: float
    longest_seconds: float
    factor: float = 2.0
    jitter: float = 0.2
    """Kafka's own (KIP-144, KIP-580): without it, all that lost the same broker come back at the same instant."""

    def seconds(self, failures: int, chance: float = 0.5) -> float:
        """The wait after the `failures`-th failure in a row; `chance`, from [0, 1), is where within the jitter."""
        grown = self.first_seconds * self.factor ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
        return min(grown, self.longest_seconds) * (1 - self.jitter + 2 * self.jitter * chance)


class Retries:
    """The failures in a row of one thing that is tried until it succeeds."""

    def __init__(self, backoff: Backoff, chance: Callable[[], float] = random.random) -> None:
        self._backoff = backoff
        self._chance = chance
        self._failures = 0

    def failed(self) -> float:
        """Count one more failure; the seconds to wait before the next try."""
        self._failures += 1
        return self._backoff.seconds(self._failures, self._chance())

    def succeeded(self) -> None:
        """Start over: the next failure is followed by the first wait."""
        self._failures = 0
