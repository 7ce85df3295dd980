"""What an action is asked for and what comes of it: shared by the HTTP server and by who acts. Loads no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a seek is to go; exactly one is set."""

    edge: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SeekMove:
    """What a seek means for one partition."""

    topic: str
    partition: int
    position: int | None
    """The next offset to handle, now; None while it is not known."""
    committed: int | None
    then: int
    log_start: int
    log_end: int
    problem: str
    """Why it cannot be; empty if it can."""


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, or why it did nothing."""

    ok: bool
    said: str
    moves: Sequence[SeekMove] | None = None
    """Of a seek."""
