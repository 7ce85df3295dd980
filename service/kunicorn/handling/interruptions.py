"""What a call of the handler has failed with that was interrupted from outside. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kunicorn.handlers import HandlerTimeout
from kunicorn.handling.partial import OfOne
from kunicorn.handling.reasons import timed_out


class Interruption(NamedTuple):
    """What was raised in a call from outside, and how far that call had come by then."""

    error: BaseException
    progress: int
    """As the call stores it: an offset."""


def met(error: BaseException, interruption: Interruption | None, progress: int) -> BaseException:
    """What a call has failed with that raised `error` at `progress`: a time-out is a `TimeoutError`.

    An interruption that its record has survived says nothing of those behind it. In a batch, what is done has moved the
    progress, too.
    """
    if interruption is not None and (isinstance(error, OfOne) or interruption.progress == progress):
        error = interrupted(error, interruption.error)
    return timed_out(error) if isinstance(error, HandlerTimeout) else error


def interrupted(error: BaseException, interruption: BaseException | None) -> BaseException:
    """What a call has failed with that raised `error`, and was interrupted before where `interruption` says so.

    A TaskGroup wraps an interruption in a group, a `finally` block or a decorator replaces it by another error: none of
    that is the record's fault.
    """
    if interruption is None or isinstance(error, type(interruption)):
        return error
    return interruption.with_traceback(error.__traceback__)
