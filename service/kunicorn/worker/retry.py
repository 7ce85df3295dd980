"""What becomes of a record whose handler raised. Pure; the random number is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from kunicorn.handlers import user_traceback

_JITTER = 0.2
"""Kafka's own for its exponential backoff (KIP-580)."""
_TRACEBACK_FRAMES = 6


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` tries in all, the first included; the wait doubles from `backoff_ms` up to `backoff_max_ms`."""

    attempts: int
    backoff_ms: int
    backoff_max_ms: int

    def wait_ns(self, failures: int, error: BaseException, random: float) -> int | None:
        """How long to wait after the record's `failures`-th failure; None: give it up.

        `random` is from [0, 1). Only an `Exception` is worth another try: SystemExit and KeyboardInterrupt are a
        handler's way to say that it will not go on, and mean its record, never the worker.
        """
        if failures >= self.attempts or not isinstance(error, Exception):
            return None
        doublings = min(failures - 1, 62)
        wait_ms = min(self.backoff_ms * (1 << doublings), self.backoff_max_ms)
        return int(wait_ms * 1_000_000 * (1 - _JITTER + 2 * _JITTER * random))


def describe(error: BaseException) -> str:
    """The error as text for another process and for a person: type, message, last lines of the traceback."""
    head = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lines = user_traceback(error, _TRACEBACK_FRAMES)
    return f"{head}\n{lines}" if lines else head
