"""Token bucket: how many records (or calls) may begin, at so many a second. Pure; times are nanoseconds, and arguments.

What begins takes its tokens at once, and more than there are: a batch of 500 may begin with a single token, and the
next one waits until all 500 are paid for. So the rate holds over time, whatever the size of what begins.
"""

from __future__ import annotations

from kunicorn.ipc.clock import NANOSECONDS


class TokenBucket:
    """Full at first. Not locked."""

    def __init__(self, per_second: float, burst: float, now: int) -> None:
        """`burst`: so many tokens it holds, at least one."""
        self.per_second = per_second
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._at = now

    def tokens(self, now: int) -> float:
        """Tokens at this time; negative: so many are to be paid for first."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self.per_second / NANOSECONDS)
            self._at = now
        return self._tokens

    def take(self, count: float, now: int) -> None:
        """Take tokens, whether or not there are as many; negative: give them back."""
        self._tokens = min(self._burst, self.tokens(now) - count)

    def wait_ns(self, now: int) -> int:
        """Time until there is a whole token."""
        missing = 1.0 - self.tokens(now)
        return 0 if missing <= 0 else max(1, round(missing / self.per_second * NANOSECONDS))

    def is_full(self, now: int) -> bool:
        """Whether it holds all that it may: it is as one that is new."""
        return self.tokens(now) >= self._burst

    def change(self, per_second: float, burst: float, now: int) -> None:
        """Go on at another rate; what was earned or owed stays, as far as it fits."""
        tokens = self.tokens(now)
        self.per_second, self._burst = per_second, max(1.0, burst)
        self._tokens = min(self._burst, tokens)
