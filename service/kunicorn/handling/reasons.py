"""Why a record was given up, in a few words of a fixed list: the label of a counter. Pure."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping
from enum import StrEnum

from kunicorn.decoding import Undecodable
from kunicorn.handlers import HandlerTimeout
from kunicorn.outcomes import DeadLetter


class Reason(StrEnum):
    """What led to the end of a record that could not be handled; docs/metrics.md has the list."""

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
    #: Workers died with it in hand, `max_crashes` times.
    POISON = "poison"


_SAYS: Mapping[type[BaseException], Reason] = {
    DeadLetter: Reason.HANDLER,
    Undecodable: Reason.UNDECODABLE,
}
"""Exceptions that are a reason of their own, however many tries are left."""


def reason_of(error: BaseException, failures: int, attempts: int) -> Reason:
    """Why nobody tries again after the record's `failures`-th failure, of so many `attempts`."""
    said = next((reason for kind, reason in _SAYS.items() if isinstance(error, kind)), None)
    if said is not None:
        return said
    if isinstance(error.__cause__, HandlerTimeout):
        return Reason.HANDLER_TIMEOUT
    if ends_at_once(error):
        return Reason.EXIT
    return Reason.ATTEMPTS if failures >= attempts else Reason.RETRY_TIMEOUT


def ends_at_once(error: BaseException) -> bool:
    """Whether it is not worth another try: SystemExit and KeyboardInterrupt are a handler's way to say that it will not
    go on, and mean its record, never the worker.

    A cancellation is no such word: a pool or a client cancels what others share. Ours is an interruption by now.
    """
    return not isinstance(error, Exception | CancelledError)


def timed_out(interruption: HandlerTimeout) -> TimeoutError:
    """What a call that took too long has failed with: as others that may pass, it is worth another try."""
    error = TimeoutError("in hand for longer than handler_timeout_ms").with_traceback(interruption.__traceback__)
    error.__cause__ = interruption
    return error
