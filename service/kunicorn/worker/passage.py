"""Partitions on their way into a handler's hands, and out of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunicorn.handling.handlings import Handling
from kunicorn.pipes.messages import Failed, FetcherStart, Stopped
from kunicorn.topics import TopicPartition


@dataclass(slots=True)
class Coming:
    """A partition whose handler has not taken it on yet."""

    start: FetcherStart
    again_at: int = 0
    tries: int = 0
    why: str = ""

    @property
    def tp(self) -> TopicPartition:
        """Which one it is."""
        return TopicPartition(self.start.topic, self.start.partition)


@dataclass(frozen=True, slots=True)
class Going:
    """A report that waits for the handler's last word."""

    handling: Handling[Any]
    tp: TopicPartition
    offset: int
    lost: bool
    report: Stopped | Failed
