"""A executor of asyncio tasks whose records are interrupted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.handler.decode.forms import Plain
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.record import Record
from kunicorn.worker.executors import tasks
from kunicorn.worker.executors.threads import raise_in
from kunicorn.worker.progress import Slots


@dataclass
class Computing:
    """A record's handler that computes until it is told to stop."""

    begun: threading.Event
    until: threading.Event

    def compute(self) -> None:
        self.begun.set()
        while not self.until.is_set():
            pass


@dataclass(eq=False)
class Played:
    """As much of a flight as an executor asks for."""

    messages: Sequence[Message]
    poison: str = ""


class Table:
    """The table, and the loop: records to begin with, and how they ended."""

    def __init__(self, flights: Sequence[Played]) -> None:
        self._waiting = list(flights)
        self.ended = queue.Queue[tuple[Any, BaseException | None]]()

    def start_next(self, slots: Slots) -> Any:
        return self._waiting.pop(0) if self._waiting else None

    def startable(self, slots: Slots) -> bool:
        return bool(self._waiting)

    def finish(self, flight: Any) -> Any:
        self.ended.put((flight, None))
        return self._waiting.pop(0) if self._waiting else None

    def fail(self, flight: Any, error: BaseException) -> None:
        self.ended.put((flight, error))

    def finished(self) -> None:
        """Nobody waits for room."""


def test_an_interruption_that_hits_another_record_is_no_failed_try_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    late, innocent = (Computing(threading.Event(), threading.Event()) for _ in range(2))

    async def handle(record: Record) -> None:
        (late if record.offset == 0 else innocent).compute()

    def raise_too_late(thread: int, kind: type[BaseException]) -> None:
        late.until.set()
        assert innocent.begun.wait(10), "the loop has gone on to the next record"
        raise_in(thread, kind)

    monkeypatch.setattr(tasks, "raise_in", raise_too_late)
    flights = [Played([Message(topic="t", partition=0, offset=offset, value=b"v")]) for offset in (0, 1)]
    table: Any = Table(flights)
    executor = tasks.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(table, Slots("none", 1), table)
    executor.wake()
    assert late.begun.wait(10)
    first: Any = flights[0]
    executor.interrupt(first, HandlerTimeout(), 0)
    try:
        assert table.ended.get(timeout=10) == (flights[0], None)
        hit, error = table.ended.get(timeout=10)
    finally:
        innocent.until.set()
    assert (hit, type(error)) == (flights[1], DrainDeadline), "a HandlerTimeout would count as its failed try"
    executor.close()
