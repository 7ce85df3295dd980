"""Where a record of a retry topic was first: what the headers say that were added on its way there. Pure.

They count only in the very topic that `RETRY_TOPIC` names: a handler that copies its record's headers into what it
sends must not make that a retry of something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RETRY_TOPIC = "kunicorn-retry-topic"
TOPIC, PARTITION, OFFSET = "kunicorn-topic", "kunicorn-partition", "kunicorn-offset"
TIMESTAMP = "kunicorn-timestamp"
"""Milliseconds since 1970; absent where the record had none."""
ATTEMPTS = "kunicorn-attempts"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where a producer has put a record; of one that is in no retry topic, its own."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    """Milliseconds since 1970."""
    attempts: int = 0
    """Tries that it has had before it came to the topic it is in now."""


def origin_in(headers: Iterable[tuple[str, bytes | None]], topic: str) -> Origin | None:
    """What the headers of a record in `topic` tell; None if it was not put there for a retry."""
    told = {name: value.decode(errors="replace") for name, value in headers if value is not None}
    if told.get(RETRY_TOPIC) != topic:
        return None
    try:
        timestamp = int(told[TIMESTAMP]) if TIMESTAMP in told else None
        return Origin(told[TOPIC], int(told[PARTITION]), int(told[OFFSET]), timestamp, int(told.get(ATTEMPTS, "0")))
    except (KeyError, ValueError):
        return None
