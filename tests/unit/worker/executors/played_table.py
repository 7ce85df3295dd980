"""What an executor works on, played: records to begin with, and how they ended."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

from kunicorn.worker.progress import Slots


@dataclass(eq=False)
class Partition:
    """As much of a tracker as an executor asks for."""

    overdue: bool = False


@dataclass(eq=False)
class Played:
    """As much of a flight as an executor asks for."""

    messages: Sequence[Message]
    poison: str = ""
    tracker: Partition = field(default_factory=Partition)


class Table:
    """The table, and the loop: records to begin with, and how they ended."""

    def __init__(self, flights: Sequence[Played], at_once: int = 1) -> None:
        """`at_once`: so many are in hand."""
        self._waiting = list(flights)
        self._free = at_once
        self.ended = queue.Queue[tuple[Any, BaseException | None]]()

    def start_next(self, slots: Slots | None) -> Any:
        if not self._free or not self._waiting:
            return None
        self._free -= 1
        return self._waiting.pop(0)

    def startable(self, slots: Slots) -> bool:
        return bool(self._waiting) and self._free > 0

    def opens_in(self, slots: Slots) -> None:
        """There is no gate."""

    def finish(self, flight: Any) -> Any:
        self._end(flight, None)
        return self.start_next(None)

    def fail(self, flight: Any, error: BaseException) -> None:
        self._end(flight, error)

    def _end(self, flight: Any, error: BaseException | None) -> None:
        self._free += 1
        self.ended.put((flight, error))

    def finished(self) -> None:
        """Nobody waits for room."""


def flights_of(count: int) -> list[Played]:
    """With a record each."""
    return [Played([Message(topic="t", partition=0, offset=offset, value=b"v")]) for offset in range(count)]
