"""The retry topics of a handler: where a failed record waits, while its partition goes on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_UNITS: Mapping[str, int] = {"h": 3_600_000, "m": 60_000, "s": 1000}
"""Milliseconds, the largest first."""


class RetryTopic(NamedTuple):
    """Records wait there for so long before they come to the handler again."""

    name: str
    delay_ms: int

    @property
    def delay(self) -> str:
        """In words, as `delay_in_words`."""
        return delay_in_words(self.delay_ms)


def delay_in_words(delay_ms: int) -> str:
    """5000 is "5s", 90,000 "90s", 600,000 "10m": part of a topic's name, and a metric's label."""
    for unit, length in _UNITS.items():
        if delay_ms % length == 0:
            return f"{delay_ms // length}{unit}"
    return f"{delay_ms}ms"
