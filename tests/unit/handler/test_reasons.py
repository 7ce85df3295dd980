"""Why a record was given up."""

from __future__ import annotations

import pytest

from kunicorn.handler.load import HandlerTimeout
from kunicorn.handler.outcome import DeadLetter, Retry
from kunicorn.handler.retry import Reason, reason_of


def timed_out() -> TimeoutError:
    error = TimeoutError("in hand for longer than handler_timeout_ms")
    error.__cause__ = HandlerTimeout()
    return error


@pytest.mark.parametrize(
    ("error", "failures", "reason"),
    [
        (ValueError(), 3, Reason.ATTEMPTS),
        (Retry("later"), 3, Reason.ATTEMPTS),
        (ValueError(), 2, Reason.RETRY_TIMEOUT),
        (DeadLetter("a negative total"), 1, Reason.HANDLER),
        (timed_out(), 3, Reason.HANDLER_TIMEOUT),
        (TimeoutError("the database"), 3, Reason.ATTEMPTS),
        (SystemExit(1), 1, Reason.EXIT),
        (KeyboardInterrupt(), 3, Reason.EXIT),
    ],
)
def test_the_reason_is_what_ended_the_tries(error: BaseException, failures: int, reason: Reason) -> None:
    assert reason_of(error, failures, attempts=3) is reason
