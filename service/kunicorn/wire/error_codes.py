"""Kafka's error codes in words: all that the codec knows, not only those that a decision depends on."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as _EveryErrorCode

from kunicorn.group.error_codes import COORDINATOR_MOVED, ErrorCode

__all__ = ["COORDINATOR_MOVED", "ErrorCode", "describe"]


def describe(code: int) -> str:
    """The code for people: "REBALANCE_IN_PROGRESS (27)"; "error 999" where Kafka's list ends."""
    try:
        return f"{_EveryErrorCode(code).name.upper()} ({int(code)})"
    except ValueError:
        return f"error {int(code)}"
