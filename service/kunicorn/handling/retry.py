"""What becomes of a record whose handler raised. Pure; time and the random number are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from kunicorn.decoding import NotDecodableYet, Undecodable
from kunicorn.handlers import error_message, user_traceback
from kunicorn.handling.reasons import ends_at_once
from kunicorn.outcomes import DeadLetter, Done, Halt, Retry, Skip
from kunicorn.retry_topics import RetryTopic

_JITTER = 0.2
"""Kafka's own for its exponential backoff (KIP-580)."""
_NS_PER_MS = 1_000_000
_TRACEBACK_FRAMES = 6


class End(StrEnum):
    """How a record ends whose handler did not simply return; the values are those of `on_failure`, and two more."""

    DONE = "done"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"
    HALT = "halt"
    #: It is in a retry topic, and comes to the handler again from there.
    RETRY_TOPIC = "retry_topic"


@dataclass(frozen=True, slots=True)
class TryAgain:
    """After `wait_ns`; `attempts` in all, None: as many as it takes."""

    wait_ns: int
    attempts: int | None

    def counted(self, failures: int) -> str:
        """Which try it was that failed, in words."""
        return f"try {failures}" if self.attempts is None else f"try {failures} of {self.attempts}"


Verdict = TryAgain | End

_SAID: Mapping[type[BaseException], End] = {
    Done: End.DONE,
    Skip: End.SKIP,
    DeadLetter: End.DEAD_LETTER,
    Halt: End.HALT,
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` tries in all, the first included; the wait doubles from `backoff_ms` up to `backoff_max_ms`.

    No try begins later than `timeout_ms` after the first one failed. After the last one the record goes into the first
    of `retry_topics`; where none is left, `on_failure` is its end.
    """

    attempts: int
    backoff_ms: int
    backoff_max_ms: int
    timeout_ms: int | None = None
    on_failure: End = End.HALT
    retry_topics: tuple[RetryTopic, ...] = ()

    def behind(self, delay_ms: int) -> RetryPolicy:
        """For records that have waited so long already: what is left is topics with longer delays."""
        return replace(self, retry_topics=tuple(each for each in self.retry_topics if each.delay_ms > delay_ms))

    def backoff_ns(self, failures: int, random: float) -> int:
        """The wait after the `failures`-th failure in a row; `random` is from [0, 1)."""
        doublings = min(failures - 1, 62)
        wait_ms = min(self.backoff_ms * (1 << doublings), self.backoff_max_ms)
        return int(wait_ms * _NS_PER_MS * (1 - _JITTER + 2 * _JITTER * random))

    def verdict(self, error: BaseException, failures: int, failing_ns: int, random: float) -> Verdict:
        """After the record's `failures`-th failure, `failing_ns` after its first.

        What `ends_at_once` is not worth another try.
        """
        if ends_at_once(error):
            return self.on_failure
        given_up = End.RETRY_TOPIC if self.retry_topics else self.on_failure
        if failures >= self.attempts:
            return given_up
        wait = self.backoff_ns(failures, random)
        if isinstance(error, Retry) and isinstance(error.after, timedelta):
            wait = max(0, int(error.after.total_seconds() * 1_000_000_000))
        if self.timeout_ms is not None and failing_ns + wait > self.timeout_ms * _NS_PER_MS:
            return given_up
        return TryAgain(wait, self.attempts)


@dataclass(frozen=True, slots=True)
class Policies:
    """Rules for some exceptions, the first match counts, and the policy for all others."""

    default: RetryPolicy
    rules: Sequence[tuple[tuple[type[BaseException], ...], RetryPolicy]] = ()
    on_undecodable: End | None = None
    """None: as the policy's `on_failure` says."""

    def behind(self, delay_ms: int) -> Policies:
        """See `RetryPolicy.behind`."""
        rules = [(classes, policy.behind(delay_ms)) for classes, policy in self.rules]
        return replace(self, default=self.default.behind(delay_ms), rules=rules)

    def of(self, error: BaseException) -> RetryPolicy:
        """The policy for this error."""
        return next((policy for classes, policy in self.rules if isinstance(error, classes)), self.default)

    def verdict(self, error: BaseException, failures: int, failing_ns: int, random: float) -> Verdict:
        """See `RetryPolicy.verdict`; what the handler says itself goes before every rule.

        What cannot be decoded is not worth another try. What cannot be decoded yet is no fault of the record's: it
        waits, however many tries that takes.
        """
        if isinstance(error, NotDecodableYet):
            return TryAgain(self.default.backoff_ns(failures, random), None)
        if isinstance(error, Undecodable):
            return self.on_undecodable or self.of(error).on_failure
        said = next((end for kind, end in _SAID.items() if isinstance(error, kind)), None)
        return said or self.of(error).verdict(error, failures, failing_ns, random)


def describe(error: BaseException) -> str:
    """The error as text for another process and for a person: type, message, last lines of the traceback."""
    message = error_message(error)
    head = f"{type(error).__name__}: {message}" if message else type(error).__name__
    lines = user_traceback(error, _TRACEBACK_FRAMES)
    return f"{head}\n{lines}" if lines else head
