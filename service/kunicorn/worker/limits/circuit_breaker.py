"""Circuit breaker of one handler: whether it is called at all, by the share of its calls that failed of late. Pure;
times are nanoseconds, and arguments.

Closed, it counts calls over a sliding window. Open, nothing is called until `open_ns` are over. Half open, one call at
a time probes whether what the handler needs is back. Which exceptions count is the caller's to say.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, StrEnum

_SLICES = 10
"""The window moves by a tenth of itself."""


class State(StrEnum):
    """State of a circuit breaker."""

    #: The handler is called.
    CLOSED = "closed"
    #: It is not.
    OPEN = "open"
    #: It is called with one record at a time, to see whether it works again.
    HALF_OPEN = "half_open"


class Event(Enum):
    """What changes its state."""

    #: So large a share of the window's calls failed.
    SHARE_REACHED = "share_reached"
    #: It was open for long enough.
    TIME_OVER = "time_over"
    #: As many probes as are wanted succeeded.
    PROBED = "probed"
    #: One failed.
    PROBE_FAILED = "probe_failed"


TRANSITIONS = {
    (State.CLOSED, Event.SHARE_REACHED): State.OPEN,
    (State.OPEN, Event.TIME_OVER): State.HALF_OPEN,
    (State.HALF_OPEN, Event.PROBED): State.CLOSED,
    (State.HALF_OPEN, Event.PROBE_FAILED): State.OPEN,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """When it opens, and when it closes again."""

    window_ns: int
    min_calls: int
    """Fewer calls in the window say nothing."""
    failure_share: float
    open_ns: int
    probes: int
    """So many in a row have to succeed."""


@dataclass(slots=True)
class _Slice:
    number: int
    calls: int = 0
    failures: int = 0


class CircuitBreaker:
    """State and window of one breaker. Not locked."""

    def __init__(self, limits: Limits) -> None:
        self.state = State.CLOSED
        self.until = 0
        """While it is open: when it is half open."""
        self._limits = limits
        self._slices: deque[_Slice] = deque()
        self._slice_ns = max(1, limits.window_ns // _SLICES)
        self._probed = 0
        self._opened_at = 0
        self._shut_ns = 0
        """How long it was not closed, in all, before it opened last."""

    def called(self, calls: int, failures: int, now: int) -> None:
        """Note calls that were begun while it was closed, and how many of them failed."""
        if self.state is not State.CLOSED:
            return
        counts = self._slice_at(now)
        counts.calls += calls
        counts.failures += failures
        calls, failed = self.counted(now)
        if failures and calls >= self._limits.min_calls and failed >= self._limits.failure_share * calls:
            self._opened_at = now
            self._open(Event.SHARE_REACHED, now)

    def probed(self, now: int, *, failed: bool) -> None:
        """Note the end of a probe."""
        if self.state is not State.HALF_OPEN:
            return
        if failed:
            self._open(Event.PROBE_FAILED, now)
            return
        self._probed += 1
        if self._probed >= self._limits.probes:
            self._shut_ns += now - self._opened_at
            self._slices.clear()
            self.state = TRANSITIONS[self.state, Event.PROBED]

    def look(self, now: int) -> State:
        """State at this time."""
        if self.state is State.OPEN and now >= self.until:
            self.state, self._probed = TRANSITIONS[self.state, Event.TIME_OVER], 0
        return self.state

    def counted(self, now: int) -> tuple[int, int]:
        """Calls and failures in the window."""
        oldest = now // self._slice_ns - _SLICES
        while self._slices and self._slices[0].number <= oldest:
            self._slices.popleft()
        return sum(each.calls for each in self._slices), sum(each.failures for each in self._slices)

    def handling_time(self, now: int) -> int:
        """Time that stands still while the breaker is not closed: what an outage takes is no record's fault."""
        return now - self._shut_ns - (0 if self.state is State.CLOSED else now - self._opened_at)

    def _open(self, event: Event, now: int) -> None:
        self.state, self.until = TRANSITIONS[self.state, event], now + self._limits.open_ns

    def _slice_at(self, now: int) -> _Slice:
        number = now // self._slice_ns
        if not self._slices or self._slices[-1].number != number:
            self._slices.append(_Slice(number))
        return self._slices[-1]
