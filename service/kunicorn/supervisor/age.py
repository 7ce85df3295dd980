"""What is known of the time of the oldest record that one partition has not handled. Pure.

`kunicorn.supervisor.ages` has the rules, and asks the brokers for what no worker tells.
"""

from __future__ import annotations

from kunicorn.topics import NO_OFFSET, NO_TIMESTAMP


class Age:
    """Milliseconds since 1970 throughout; outlives the grants under which the partition is handed out."""

    def __init__(self) -> None:
        self._taken_ms = NO_TIMESTAMP
        self._caught_up_ms = NO_TIMESTAMP
        self._found = (NO_OFFSET, NO_TIMESTAMP)
        self._furthest = NO_OFFSET

    def taken(self, timestamp_ms: int) -> None:
        """A worker has taken a record of that time in hand."""
        if timestamp_ms != NO_TIMESTAMP:
            self._taken_ms = timestamp_ms

    def end_seen(self, position: int, end: int, at_ms: int) -> None:
        """The log ended at `end`, at `at_ms` or later."""
        if position < self._furthest:
            self._caught_up_ms = NO_TIMESTAMP  # Set back: what is unhandled now was written before.
        if position >= end:
            self._caught_up_ms = at_ms
        self._furthest = position

    def found(self, position: int, timestamp_ms: int) -> None:
        """The log says that the record at `position` is of that time; `NO_TIMESTAMP`: it cannot say."""
        self._found = (position, timestamp_ms)

    def known_at(self, position: int) -> bool:
        """Whether the log was asked about the record at that position."""
        return self._found[0] == position

    def oldest_ms(self, position: int | None, *, in_hand: bool) -> int:
        """The time of the record at `position`; `NO_TIMESTAMP` while unknown."""
        if in_hand and self._taken_ms != NO_TIMESTAMP:
            return self._taken_ms
        at, timestamp_ms = self._found
        if at == position and timestamp_ms != NO_TIMESTAMP:
            return timestamp_ms
        return max(self._taken_ms, self._caught_up_ms)
