"""A executor of asyncio tasks whose records are interrupted."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn.handler.decode.forms import Plain
from kunicorn.handler.load import DrainDeadline, HandlerTimeout
from kunicorn.handler.record import Record
from kunicorn.worker import executors
from kunicorn.worker.executors import Work, raise_in


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

    message: Message
    poison: str = ""


def test_an_interruption_that_hits_another_record_is_no_failed_try_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    late, innocent = (Computing(threading.Event(), threading.Event()) for _ in range(2))

    async def handle(record: Record) -> None:
        (late if record.offset == 0 else innocent).compute()

    def raise_too_late(thread: int, kind: type[BaseException]) -> None:
        late.until.set()
        assert innocent.begun.wait(10), "the loop has gone on to the next record"
        raise_in(thread, kind)

    monkeypatch.setattr(executors, "raise_in", raise_too_late)
    flights: list[Any] = [Played(Message(topic="t", partition=0, offset=offset, value=b"v")) for offset in (0, 1)]
    waiting, ended = list(flights), queue.Queue[tuple[Any, BaseException | None]]()

    def start_next() -> Any:
        return waiting.pop(0) if waiting else None

    def finish(flight: Any) -> Any:
        ended.put((flight, None))
        return start_next()

    executor = executors.AsyncioExecutor(handle, Plain(), lambda flight, returned: None)
    executor.begin(Work(start_next, lambda: bool(waiting), finish, lambda *failed: ended.put(failed)))
    executor.wake()
    assert late.begun.wait(10)
    executor.interrupt(flights[0], HandlerTimeout())
    try:
        assert ended.get(timeout=10) == (flights[0], None)
        hit, error = ended.get(timeout=10)
    finally:
        innocent.until.set()
    assert (hit, type(error)) == (flights[1], DrainDeadline), "a HandlerTimeout would count as its failed try"
    executor.close()
