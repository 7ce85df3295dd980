"""Retry rules: whether a failed record is tried again, when, and how it ends if it is not. Pure; time and the random
number are arguments.

`policies_of` makes them of `[handler]` and `[[handler.failures]]` in a process that has the user's code, since the
rules name exception classes. `Reason` is the label of the counter of records given up.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from kunicorn.backoff import Backoff
from kunicorn.errors import ConfigError
from kunicorn.handler.config import FailureRule, HandlerConfig, RetryTopic
from kunicorn.handler.decode import NotDecodableYet, Undecodable
from kunicorn.handler.load import HandlerTimeout, error_message, user_traceback
from kunicorn.handler.outcome import DeadLetter, Done, Halt, Retry, Skip, Wait, is_named


class Expired(Exception):
    """The record is older than `handler.max_age_ms`, and `handler.on_expired` sends it to the dead-letter topic."""


class Reason(StrEnum):
    """Why a record was given up; the values are a counter's label, listed in docs/metrics.md."""

    #: The handler said so itself, by `DeadLetter`.
    HANDLER = "handler"
    #: No try is left: `max_attempts`, or a rule's `attempts`.
    ATTEMPTS = "attempts"
    #: A try is left, but it would come later than `retry_timeout_ms` allows.
    RETRY_TIMEOUT = "retry_timeout"
    #: The last try took longer than `handler_timeout_ms`.
    HANDLER_TIMEOUT = "handler_timeout"
    #: It ended the interpreter, by SystemExit or the like, which is not worth another try.
    EXIT = "exit"
    #: Its value or key cannot be decoded, which no other try would change.
    UNDECODABLE = "undecodable"
    #: It is older than `max_age_ms`, and `on_expired` is "dead_letter".
    EXPIRED = "expired"
    #: Workers died with it in hand, `max_crashes` times.
    POISON = "poison"


_SAYS: Mapping[type[BaseException], Reason] = {
    DeadLetter: Reason.HANDLER,
    Undecodable: Reason.UNDECODABLE,
    Expired: Reason.EXPIRED,
}
"""Exceptions that are a reason of their own, however many tries are left."""


def reason_of(error: BaseException, failures: int, attempts: int) -> Reason:
    """Reason of giving up after the record's `failures`-th failure, of `attempts` allowed."""
    said = next((reason for kind, reason in _SAYS.items() if isinstance(error, kind)), None)
    if said is not None:
        return said
    if isinstance(error.__cause__, HandlerTimeout):
        return Reason.HANDLER_TIMEOUT
    if ends_at_once(error):
        return Reason.EXIT
    return Reason.ATTEMPTS if failures >= attempts else Reason.RETRY_TIMEOUT


def ends_at_once(error: BaseException) -> bool:
    """Whether a retry is pointless. SystemExit and KeyboardInterrupt are a handler's way to say that it will not go on;
    they end its record, never the worker.

    A cancellation does not count: a pool or a client cancels what others share. An interruption of ours has been
    converted by now.
    """
    return not isinstance(error, Exception | CancelledError)


def has_it_wait(error: BaseException) -> bool:
    """Whether no try of the record has failed by that: it comes to the handler again, however often."""
    return isinstance(error, Wait | NotDecodableYet)


def timed_out(interruption: HandlerTimeout) -> TimeoutError:
    """Failure of a call that took too long: a `TimeoutError`, which is worth another try as others that may pass."""
    error = TimeoutError("in hand for longer than handler_timeout_ms").with_traceback(interruption.__traceback__)
    error.__cause__ = interruption
    return error


_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_TRACEBACK_FRAMES = 6


class End(StrEnum):
    """How a failed record ends: the values of `on_failure`, and two more."""

    DONE = "done"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"
    HALT = "halt"
    #: It is in a retry topic, and comes to the handler again from there.
    RETRY_TOPIC = "retry_topic"


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Verdict to retry after `wait_ns`. `attempts` in all; None: without limit."""

    wait_ns: int
    attempts: int | None

    def counted(self, failures: int) -> str:
        """Number of the failed try, in words."""
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
    """`max_attempts` tries in all, the first included; the wait doubles from `retry_backoff_ms` up to
    `retry_backoff_max_ms`.

    No try is due later than `retry_timeout_ms` after the first one failed; one that then waits for a rate limit may
    begin later. After the last one the record goes into the first of `retry_topics`; where none is left, `on_failure`
    is its end.
    """

    max_attempts: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    retry_timeout_ms: int | None = None
    on_failure: End = End.HALT
    retry_topics: tuple[RetryTopic, ...] = ()
    dead_letter_topic: str | None = None
    """Of a rule's own; None: it has none."""

    def behind(self, delay_ms: int) -> RetryPolicy:
        """Policy for records that have waited `delay_ms` in a retry topic: only topics with longer delays are left."""
        return replace(self, retry_topics=tuple(each for each in self.retry_topics if each.delay_ms > delay_ms))

    def backoff_ns(self, failures: int, random: float) -> int:
        """Wait after the `failures`-th failure in a row; `random` is from [0, 1)."""
        backoff = Backoff(self.retry_backoff_ms / 1000, self.retry_backoff_max_ms / 1000)
        return round(backoff.seconds(failures, random) * _NS_PER_S)

    def verdict(self, error: BaseException, failures: int, failing_ns: int, random: float) -> Verdict:
        """Verdict after the record's `failures`-th failure, `failing_ns` after its first.

        What `ends_at_once` is not tried again.
        """
        if ends_at_once(error):
            return self.on_failure
        given_up = End.RETRY_TOPIC if self.retry_topics else self.on_failure
        if failures >= self.max_attempts:
            return given_up
        wait = self.backoff_ns(failures, random)
        if isinstance(error, Retry) and isinstance(error.after, timedelta):
            wait = max(0, int(error.after.total_seconds() * _NS_PER_S))
        if self.retry_timeout_ms is not None and failing_ns + wait > self.retry_timeout_ms * _NS_PER_MS:
            return given_up
        return TryAgain(wait, self.max_attempts)


@dataclass(frozen=True, slots=True)
class Policies:
    """Retry rules of one handler: the first rule that names the exception counts (an outcome, only if it names
    outcomes), else the default policy."""

    default: RetryPolicy
    rules: Sequence[tuple[tuple[type[BaseException], ...], RetryPolicy]] = ()
    on_undecodable: End | None = None
    """None: as the policy's `on_failure` says."""
    dead_letter_topic: str | None = None
    """None: that of the service."""

    def behind(self, delay_ms: int) -> Policies:
        """These rules for records that have waited `delay_ms` in a retry topic."""
        rules = [(classes, policy.behind(delay_ms)) for classes, policy in self.rules]
        return replace(self, default=self.default.behind(delay_ms), rules=rules)

    def of(self, error: BaseException) -> RetryPolicy:
        """Policy for this error."""
        return next((policy for classes, policy in self.rules if is_named(error, classes)), self.default)

    def later(self, times: int, random: float) -> TryAgain:
        """Verdict on a record that could not be decoded for now, for the `times`-th time in a row."""
        return TryAgain(self.default.backoff_ns(times, random), None)

    def verdict(self, error: BaseException, failures: int, failing_ns: int, random: float) -> Verdict:
        """Verdict on this error. An outcome that the handler raised goes before every rule.

        `Undecodable` is not tried again. `NotDecodableYet` is no failure of the record's: it waits, however many tries
        that takes.
        """
        if isinstance(error, NotDecodableYet):
            return self.later(failures, random)
        if isinstance(error, Expired):
            return End.DEAD_LETTER
        if isinstance(error, Undecodable):
            return self.on_undecodable or self.of(error).on_failure
        said = next((end for kind, end in _SAID.items() if isinstance(error, kind)), None)
        return said or self.of(error).verdict(error, failures, failing_ns, random)


def describe(error: BaseException) -> str:
    """The error as text for another process and for people: type, message, last lines of the traceback."""
    message = error_message(error)
    head = f"{type(error).__name__}: {message}" if message else type(error).__name__
    lines = user_traceback(error, _TRACEBACK_FRAMES)
    return f"{head}\n{lines}" if lines else head


_SETTING = "handler.failures"


def find(name: str, setting: str = _SETTING) -> type[BaseException]:
    """Class `package.module.Class`, nested ones included, that the setting names; imports its module. Raises
    `ConfigError`.

    Caller: a worker, after the handler was imported; `kunicorn check`.
    """
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:split])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and (module + ".").startswith(error.name + "."):
                continue
            raise _refused(setting, name, f"importing {module!r} raised {error}") from error
        except Exception as error:
            raise _refused(
                setting, name, f"importing {module!r} raised {type(error).__name__}: {error_message(error)}"
            ) from error
        return _exception_in(setting, name, found, parts[split:])
    raise _refused(setting, name, f"there is no module {parts[0]!r}")


def _exception_in(setting: str, name: str, owner: Any, path: list[str]) -> type[BaseException]:
    for attribute in path:
        if not hasattr(owner, attribute):
            near = difflib.get_close_matches(attribute, dir(owner), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise _refused(setting, name, f"{owner.__name__!r} has no {attribute!r}{hint}")
        owner = getattr(owner, attribute)
    if not inspect.isclass(owner) or not issubclass(owner, BaseException):
        raise _refused(setting, name, "it is no exception class")
    return owner


def _refused(setting: str, name: str, why: str) -> ConfigError:
    return ConfigError(f"{setting} names the exception {name!r}: {why}; correct the name, or remove it")


def policies_of(config: HandlerConfig) -> Policies:
    """The handler's policy and the rules of [[handler.failures]] before it, with the same retry topics. Raises
    `ConfigError` for a class that does not exist.

    Imports the modules that the rules name. Caller: a process that has the user's code, after the handler's import.
    """
    found = [(tuple(map(find, rule.exceptions)), _policy(rule, _topics_of(rule, config))) for rule in config.failures]
    undecodable = config.decoding.on_undecodable
    return Policies(
        _policy(config, config.retry_topics),
        found,
        None if undecodable is None else End(undecodable),
        config.dead_letter_topic,
    )


def _policy(rules: HandlerConfig | FailureRule, retry_topics: Iterable[RetryTopic]) -> RetryPolicy:
    return RetryPolicy(
        rules.max_attempts,
        rules.retry_backoff_ms,
        rules.retry_backoff_max_ms,
        rules.retry_timeout_ms,
        End(rules.on_failure),
        tuple(retry_topics),
        rules.dead_letter_topic if isinstance(rules, FailureRule) else None,
    )


def _topics_of(rule: FailureRule, config: HandlerConfig) -> Iterator[RetryTopic]:
    return (topic for topic in config.retry_topics if topic.delay_ms in rule.retry_topic_delays_ms)
