"""When a member speaks: heartbeat phases, retries, and until when its membership is certain. Pure; seconds."""

from __future__ import annotations

import random
from dataclasses import dataclass

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
